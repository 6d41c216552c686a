//! Planted mutants: each has a place in the code, and no package turns them on.

use super::{assert_none, root, sources};

/// Variants of the table of a crate.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let table = text.split("\n    /// ").skip(1);
    table.filter_map(|part| part.lines().find_map(|line| line.trim().strip_suffix(',')))
}

#[test]
fn every_mutant_of_the_tables_has_a_place_in_the_code() {
    let (sources, mut problems, mut count) = (sources(), Vec::new(), 0);
    for folder in ["engine/src/", "server/member/src/"] {
        let (table, text) =
            sources.iter().find(|(name, _)| *name == format!("{folder}mutants.rs")).expect("it has a table");
        for name in names(text) {
            count += 1;
            let place = format!("mutants::is(Mutant::{name})");
            let is_there = |(file, text): &(String, String)| {
                file.starts_with(folder) && file != table && text.contains(&place)
            };
            if !sources.iter().any(is_there) {
                problems.push(format!("{folder}: {name}"));
            }
        }
    }
    assert!(count >= 30, "only {count} mutants were found");
    assert_none(&problems, "mutants without a place");
}

/// Cargo builds a crate with the features that any package of a build asks for.
#[test]
fn no_package_turns_mutants_on() {
    let manifests =
        ["engine", "proto", "proto/http2", "proto/clients", "server", "server/member", "server/fuzz"]
            .into_iter()
            .chain(["bench", "loadgen", "checker", "sim", "mutants"]);
    for folder in manifests {
        let text = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let turned_on = text.lines().filter(|line| {
            let code = line.split('#').next().unwrap_or_default();
            code.contains("\"mutants\"") || code.contains("default = [")
        });
        assert_eq!(turned_on.collect::<Vec<_>>(), [""; 0], "{folder}/Cargo.toml");
    }
}
