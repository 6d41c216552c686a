#!/usr/bin/env bash
# Mutants that cargo-mutants makes of engine and member: a sample of them, every Nth from the Kth on, or all of them (0/1).
#
#   mutants/sample.sh K/N [options of cargo mutants]
#
# Unit tests come first, then all tests of the package for those that have survived: simulations take minutes. A copy of
# the tree is changed; what has become of each mutant is in target/mutants/PACKAGE/mutants.out/: missed.txt has the survivors.
# A test that does not end is ended. Needs `cargo install cargo-mutants --locked`.
set -eu
cd "$(dirname "$0")/.."
shard=${1:?which sample: K/N, for example 0/150}
shift
for package in revd-engine revd-member; do
    out=target/mutants/$package
    mkdir -p "$out"
    # The tables of planted mutants are no code that serves.
    sample=(--package "$package" --shard "$shard" --sharding round-robin --no-shuffle --exclude-re 'mutants::is' -o "$out")
    cargo mutants "${sample[@]}" --minimum-test-timeout 60 "$@" -- --lib || [ $? -le 3 ]
    cargo mutants "${sample[@]}" --iterate --minimum-test-timeout 300 "$@" || [ $? -le 3 ]
done
wc -l target/mutants/*/mutants.out/{caught,missed,timeout,unviable}.txt
