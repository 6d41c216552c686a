#!/usr/bin/env bash
# Mutants that cargo-mutants makes of a package: a sample of them, every Nth from the Kth on, or all of them (0/1).
#
#   mutants/sample.sh revd-engine|revd-member K/N [options of cargo mutants]
#
# Unit tests come first, then quick models and scripts for those that have survived, then all tests of the package: simulations
# take minutes. `REVD_PASSES="unit quick"` leaves the last ones out. A copy of the tree is changed; what has become of each mutant is in
# target/mutants/PACKAGE/PASS/mutants.out/: missed.txt of the last pass has the survivors. A test that does not end is ended:
# that is no find, look at timeout.txt. Needs `cargo install cargo-mutants --locked`.
set -eu
cd "$(dirname "$0")/.."
package=${1:?which package: revd-engine or revd-member}
shard=${2:?which sample: K/N, for example 0/150}
shift 2
case $package in
revd-engine) quick=(scripts tree_model index_model transfer bugs hash_kv readers damage) ;;
revd-member) quick=(scripts core_scripts cluster_scripts start_scripts raft_scripts lease_scripts watch_scripts watch_steps log_damage range_model) ;;
*) echo "no tests are known of $package" >&2 && exit 2 ;;
esac

# The tables of planted mutants are no code that serves.
which=(--shard "$shard" --sharding round-robin --exclude-re 'mutants::is')
for pass in ${REVD_PASSES:-unit quick all}; do
    case $pass in
    unit) tests=(--lib) limit=60 ;;
    quick) tests=("${quick[@]/#/--test=}") limit=180 ;;
    all) tests=() limit=600 ;;
    esac
    out=target/mutants/$package/$pass
    rm -rf "$out"
    mkdir -p "$out"
    status=0
    cargo mutants --package "$package" --no-shuffle "${which[@]}" -o "$out" --minimum-test-timeout "$limit" "$@" -- "${tests[@]}" ||
        status=$?
    # 2: some were missed, 3: some tests did not end. Anything else is no result.
    case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac
    wc -l "$out"/mutants.out/{caught,missed,timeout,unviable}.txt
    # The next pass is of the survivors, by name: those of other lines do not come into it.
    which=()
    while read -r name; do
        which+=(--re "^$(sed 's/[][\.+*?()|{}^$]/\\&/g' <<<"$name")\$")
    done <"$out/mutants.out/missed.txt"
    [ ${#which[@]} -gt 0 ] || break
done
