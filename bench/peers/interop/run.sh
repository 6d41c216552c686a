#!/usr/bin/env bash
# Third-party clients against revd: Go (etcd's own client), Rust (crate etcd-client), Python (PyPI etcd3), Node (npm etcd3),
# Java (jetcd over grpc-java).
#
#   bench/peers/interop/run.sh [endpoint,...]     without an endpoint a revd is started on a fresh directory;
#   bench/peers/interop/run.sh --members 3        three of them, as one cluster
#
# Clients are installed below target/interop. A client whose language is missing here is named and skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
work=$root/target/interop
mkdir -p "$work"
failed=0

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

start() { # members
    (cd "$root" && cargo build --release -p revd)
    data=$(mktemp -d)
    servers= endpoint= initial=
    trap 'kill $servers 2>/dev/null || true; wait $servers 2>/dev/null || true; rm -rf "$data"' EXIT
    for n in $(seq "$1"); do
        eval "client_$n=http://127.0.0.1:$(free_port) peer_$n=http://127.0.0.1:$(free_port)"
        eval "endpoint=$endpoint\${endpoint:+,}\$client_$n initial=$initial\${initial:+,}m$n=\$peer_$n"
    done
    for n in $(seq "$1"); do
        eval "client=\$client_$n peer=\$peer_$n"
        "$root/target/release/revd" --name "m$n" --data-dir "$data/m$n" --log-level error \
            --listen-client-urls "$client" --advertise-client-urls "$client" \
            --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$initial" &
        servers="$servers $!"
    done
    for url in ${endpoint//,/ }; do
        until curl -sf "$url/health" >/dev/null; do sleep 0.05; done
    done
}

case ${1:-} in
    "") start 1 ;;
    --members) start "$2" ;;
    *) endpoint=$1 ;;
esac

client() { # name, program it needs, command
    name=$1 needs=$2
    shift 2
    if ! command -v "$needs" >/dev/null; then
        echo "$name: skipped, no $needs here"
    elif (cd "$work" && "$@") >"$work/$name.log" 2>&1 && grep -q 'all checks passed' "$work/$name.log"; then
        echo "$name: all checks passed"
    else
        echo "$name: FAILED"
        tail -20 "$work/$name.log"
        failed=1
    fi
}

go_client() { "$here/../build.sh" && "$root/target/peers/interop" "${endpoint##*,}"; }
rust_client() { (cd "$root" && cargo test -p revd --test e2e etcd_client) && echo "all checks passed"; }
python_client() {
    [ -x venv/bin/python ] || python3 -m venv venv
    venv/bin/pip install --quiet 'etcd3==0.12.0' 'protobuf<3.21' setuptools
    venv/bin/python "$here/check.py" "$endpoint"
}
node_client() {
    [ -d node_modules/etcd3 ] || npm install --silent --no-fund --no-audit --prefix . etcd3@1.1.2
    node "$here/check.mjs" "$endpoint"
}

java_client() {
    mvn -q -B -f "$here/jetcd/pom.xml" -Dbuild.dir="$work/jetcd" compile exec:java -Dexec.args="$endpoint"
}

client go go go_client
client rust cargo rust_client
client python python3 python_client
client node node node_client
client java mvn java_client
exit $failed
