#!/usr/bin/env bash
# Writes the files of a member as the program of this commit leaves them when it is killed:
#
#   server/tests/format/write.sh REVD ETCDCTL FOLDER
#
# `tree-5` was made so by 1f25e70. `server/tests/e2e/format.rs` says what is in it.
set -eu
revd=$1 tool=$2 to=$3
client=127.0.0.1:23791 peer=127.0.0.1:23801
export ETCDCTL_ENDPOINTS="http://$client"
etcdctl() { "$tool" "$@" >/dev/null; }
data=$(mktemp -d)
"$revd" --name m0 --data-dir "$data" --bcrypt-cost 4 --listen-client-urls "http://$client" --advertise-client-urls "http://$client" \
    --listen-peer-urls "http://$peer" --initial-advertise-peer-urls "http://$peer" --initial-cluster "m0=http://$peer" &
member=$!
trap 'kill -9 $member 2>/dev/null || true; wait $member || true; rm -r "$data"' EXIT
for _ in $(seq 100); do etcdctl endpoint health 2>/dev/null && break || sleep 0.1; done

many() { printf "$1%.0s" $(seq "$2"); }
etcdctl put first one
etcdctl put first two
etcdctl put long "$(many v 6000)"
etcdctl put "$(many k 1500)" long-key
etcdctl put gone soon
etcdctl del gone
lease=$("$tool" lease grant 1000000000 | cut -d ' ' -f 2)
etcdctl put leased here --lease="$lease"
etcdctl compact 3
# Enough keys for leaves of the saved index that have once what keys begin with. A transaction: its comparisons, what is done
# where they hold, and where not.
for hundred in $(seq 1 5); do
    (echo && for number in $(seq -w 0 99); do echo "put /registry/pods/default/pod-$hundred$number value"; done && echo && echo) | etcdctl txn
done
etcdctl role add reader
etcdctl role grant-permission reader read /registry/ --prefix=true
etcdctl user add root:correct-horse-battery
etcdctl user grant-role root root
etcdctl user add ann:correct-horse-battery
etcdctl user grant-role ann reader
etcdctl auth enable
sleep 3 # all of it is in the tree file now; what follows is in the log alone, or in both
export ETCDCTL_USER=root:correct-horse-battery
etcdctl put first three
etcdctl put after checkpoint
etcdctl del /registry/pods/default/pod-107
etcdctl user add bob --no-password=true
kill -9 $member
wait $member || true # the kernel ends its writes

mkdir -p "$to"
for file in tree.revd wal/0000000000000001.wal; do
    # Zeros at the ends of files are left out.
    perl -0777 -pe 's/\0+\z//' "$data/member/$file" > "$to/$(basename "$file")"
    echo "$file: $(stat -c %s "$data/member/$file") bytes with its zeros"
done
