//! What the docs say of the source is there.

use super::{assert_none, root, sources};

/// Paths of our files that a page of the docs names between backquotes, from the root or shortened
/// at the front.
#[test]
fn docs_name_files_that_are_there() {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs", "docs/decisions"] {
        let found = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(found.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    let names: Vec<String> = sources().into_iter().map(|(name, _)| format!("/{name}")).collect();
    let (mut problems, mut checked) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_file = quoted.ends_with(".rs") && quoted.contains('/');
            let is_folder = quoted.contains("/src/") && quoted.ends_with('/');
            if quoted.contains([' ', '*', '{', '<']) || !(is_file || is_folder) {
                continue;
            }
            checked += 1;
            let is_there = |name: &String| {
                let named = format!("/{quoted}");
                if is_folder { name.starts_with(&named) } else { name.ends_with(&named) }
            };
            if !names.iter().any(is_there) {
                problems.push(format!("{}: {quoted}", page.display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} paths found");
    assert_none(&problems, "docs name files that are there");
}
