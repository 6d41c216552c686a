//! The order of modules: what a module may use. It stands in the `lib.rs` (or `main.rs`) of each
//! crate: highest first, and under a line `// Leaves` what every module may use. Files that use
//! each other in a circle are none the less one file.

use std::collections::BTreeSet;

use super::imports::{Crate, Uses, circles};
use super::{assert_none, sources};

/// Every crate: its folder, with a slash, and which file of it uses which.
fn crates() -> Vec<(String, Uses)> {
    let sources = sources();
    let is_root = |name: &&str| name.ends_with("/lib.rs") || name.ends_with("/main.rs");
    let roots = sources.iter().map(|(name, _)| name.as_str()).filter(is_root);
    let folders: BTreeSet<&str> = roots.filter_map(|name| Some(&name[..=name.rfind('/')?])).collect();
    let read = |folder: &&str| {
        // A program in a folder of its own is a crate of its own.
        let is_deeper = |name: &str| {
            folders
                .iter()
                .any(|other| other.starts_with(folder) && other != folder && name.starts_with(other))
        };
        let own = sources.iter().filter(|(name, _)| name.starts_with(folder) && !is_deeper(name));
        Crate::new(folder, own).uses()
    };
    folders.iter().map(|folder| ((*folder).to_owned(), read(folder))).collect()
}

/// The modules that a crate's root lists, highest first, and the number of those above its leaves.
fn order(folder: &str) -> (Vec<String>, usize) {
    let is_root = |name: &str| ["lib.rs", "main.rs"].iter().any(|root| *name == format!("{folder}{root}"));
    let sources = sources();
    let (_, text) = sources.iter().find(|(name, _)| is_root(name)).unwrap();
    let (above, leaves) = text.split_once("\n// Leaves").unwrap_or((text, ""));
    let modules = |text: &str| -> Vec<String> {
        let names = text.lines().filter_map(|line| {
            let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            line.strip_prefix("mod ")?.strip_suffix(';').map(str::to_owned)
        });
        names.collect()
    };
    let above = modules(above);
    let count = above.len();
    (above.into_iter().chain(modules(leaves)).collect(), count)
}

#[test]
fn a_module_uses_only_those_below_it() {
    let (mut problems, mut checked) = (Vec::new(), 0);
    for (folder, uses) in crates() {
        let (modules, above) = order(&folder);
        let place = |file: &str| {
            let module = file[folder.len()..].split(['/', '.']).next().unwrap();
            modules.iter().position(|listed| listed == module)
        };
        for ((from, to), line) in &uses {
            // A crate's root may use every module, and be used by each.
            let (Some(own), Some(used)) = (place(from), place(to)) else { continue };
            checked += 1;
            if used >= above.min(own) {
                continue;
            }
            problems.push(format!("{from}:{line}: {} must not use {to}", modules[own]));
        }
    }
    assert!(checked > 500, "only {checked} uses found");
    assert_none(&problems, "a module uses only those below it, in the order of its crate's root");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut problems = Vec::new();
    for (_, uses) in crates() {
        for circle in circles(&uses) {
            let is_inside = |((from, to), _): &(&(String, String), &usize)| {
                circle.contains(from.as_str()) && circle.contains(to.as_str())
            };
            let inside = uses.iter().filter(is_inside);
            problems.extend(inside.map(|((from, to), line)| format!("{from}:{line} uses {to}")));
        }
    }
    assert_none(&problems, "files that use each other in a circle");
}
