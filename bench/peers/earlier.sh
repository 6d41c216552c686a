#!/usr/bin/env bash
# Builds revd as it was at a commit: members of storms restart as that, and go back.
#
#   bench/peers/earlier.sh COMMIT
#
# Prints the path of its program, in target/earlier/COMMIT. Members of today and of 0492170 understand each other: frames between them
# have been the same since then (32df821 to 0492170 say the same PROTOCOL, and have others).
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
commit=$(git -C "$root" rev-parse --verify --quiet "${1:?which commit}^{commit}") || {
    echo "there is no commit $1" >&2
    exit 2
}
out=$root/target/earlier/$commit
if [ ! -x "$out/revd" ]; then
    dir=$(mktemp -d)
    trap 'git -C "$root" worktree remove --force "$dir/revd"; rm -rf "$dir"' EXIT
    git -C "$root" worktree add --quiet --detach "$dir/revd" "$commit" >&2
    (cd "$dir/revd" && CARGO_TARGET_DIR="$root/target/earlier/build" cargo build --quiet --locked -p revd >&2)
    mkdir -p "$out"
    cp "$root/target/earlier/build/debug/revd" "$out/revd"
fi
echo "$out/revd"
