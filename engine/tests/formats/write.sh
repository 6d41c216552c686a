#!/usr/bin/env bash
# Writes the file of a format with the commit that wrote that format last:
#   engine/tests/formats/write.sh 2 1e0a3a5 [folder]
# makes 2-1e0a3a5.revd there, and 2-1e0a3a5.contents, which has to be what `contents` says.
# Zeros at the end of the file are left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
format=$1 commit=$2 out=$(cd "${3:-.}" && pwd)
tree=$(mktemp -d)
trap 'git -C "$here" worktree remove --force "$tree"' EXIT
git -C "$here" worktree add --detach "$tree" "$commit"
examples=$tree/engine/examples/write
mkdir -p "$examples"
cp "$here/script.rs" "$here/contents.rs" "$examples/"
cp "$here/write.rs" "$examples/main.rs"
# A step of a compaction is shorter, so that a small file can be in the middle of one. Nothing else
# of a commit is changed, and nothing of those whose compactions begin again after a crash.
limits=$tree/engine/src/limits.rs
if ! grep -q COMPACT_LOOKS_PER_RECORD "$limits"; then
    sed -i -e 's/^\(pub const COMPACT_RECORDS_PER_STEP: usize =\).*/\1 10;/' \
        -e 's/^\(pub const COMPACT_LOOKS_PER_STEP: usize =\).*/\1 30;/' "$limits"
fi
name=$out/$format-$commit
rm -f "$name.revd"
(cd "$tree" && cargo run -p revd-engine --example write -- "$here/script" "$name.revd" "$name.contents")
perl -0777 -pi -e 's/\0+\z//' "$name.revd"
