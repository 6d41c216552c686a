//! Files, functions and sizes that the docs name are there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::{assert_none, root, sources};

/// The way of one request or event through the files, as docs/ARCHITECTURE.md lists it.
pub(crate) struct CodePath {
    pub name: String,
    /// Files and functions in them.
    pub functions: BTreeSet<(String, String)>,
}

impl CodePath {
    pub(crate) fn files(&self) -> usize {
        self.functions.iter().map(|(file, _)| file).collect::<BTreeSet<_>>().len()
    }
}

fn architecture() -> String {
    std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap()
}

/// Words between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The tables whose rows are `| core | file | functions | what is handed over |`.
pub(crate) fn code_paths() -> Vec<CodePath> {
    let text = architecture();
    let sections = text.split("\n### Functions of ").skip(1);
    let path = |section: &str| {
        let mut functions = BTreeSet::new();
        for row in section.lines().take_while(|line| !line.starts_with("## ")) {
            let cells: Vec<&str> = row.split('|').collect();
            if let [_, _, files, names, ..] = cells[..]
                && let Some(file) = quoted(files).next()
            {
                functions.extend(quoted(names).map(|name| (file.to_owned(), name.to_owned())));
            }
        }
        CodePath { name: section.lines().next().unwrap().to_owned(), functions }
    };
    sections.map(path).collect()
}

#[test]
fn functions_on_the_way_of_a_request_are_there() {
    let (sources, mut problems) = (sources(), Vec::new());
    let paths = code_paths();
    assert!(paths.len() >= 2 && paths.iter().all(|path| path.functions.len() > 40), "the lists are gone");
    for (file, name) in paths.into_iter().flat_map(|path| path.functions) {
        let text = sources.iter().find(|(source, _)| *source == file).map_or("", |(_, text)| text);
        let is_there = ["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")));
        if !is_there {
            problems.push(format!("{file} has no function {name}"));
        }
    }
    assert_none(&problems, "docs/ARCHITECTURE.md lists functions that are there");
}

/// Rows of the code map: `| folder | hundreds of lines | what lives there |`.
#[test]
fn the_code_map_has_every_folder_and_its_size() {
    let (text, sources, mut problems) = (architecture(), sources(), Vec::new());
    let section = text.split("\n## Code map").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut listed = Vec::new();
    for row in section.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, folder, size, ..] = cells[..] else { continue };
        let (Some(folder), Ok(said)) = (quoted(folder).next(), size.replace(',', "").parse::<usize>()) else {
            continue;
        };
        let files = sources.iter().filter(|(name, _)| name.starts_with(folder));
        let lines: usize = files.map(|(_, text)| text.lines().count()).sum();
        if said.abs_diff(lines) > 50 + lines / 4 {
            problems.push(format!("{folder} has {lines} lines, not {said}"));
        }
        listed.push(folder.to_owned());
    }
    for (name, _) in sources.iter().filter(|(name, _)| name.contains("/src/")) {
        if !listed.iter().any(|folder| name.starts_with(folder)) {
            problems.push(format!("{name} is in no folder of the map"));
        }
    }
    assert_none(&problems, "the code map of docs/ARCHITECTURE.md, sizes within a quarter");
}

/// The pages of the docs.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    for folder in ["docs", "docs/decisions"] {
        let found = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        pages.extend(found.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    pages
}

/// Names of the members' scripts, which are tests too.
fn scripts() -> Vec<String> {
    let entries = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let scripts = entries(root().join("server/member/tests/scripts")).flat_map(entries);
    scripts.map(|script| script.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// Names of tests are sentences: four words or more.
#[test]
fn docs_name_tests_that_are_there() {
    let is_sentence = |name: &str| {
        name.split('_').count() >= 4 && name.chars().all(|char| char == '_' || char.is_ascii_alphanumeric())
    };
    let code: String = sources().into_iter().map(|(_, text)| text).chain(scripts()).collect();
    let (mut problems, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for name in quoted(&text).filter(|name| is_sentence(name) && name.to_lowercase() == **name) {
            checked += 1;
            if !code.contains(name) {
                problems.push(format!("{}: {name}", page.display()));
            }
        }
    }
    assert!(checked > 50, "only {checked} names found");
    assert_none(&problems, "docs name tests and functions that are there");
}

/// Paths of our files that a page of the docs names between backquotes, from the root or shortened
/// at the front.
#[test]
fn docs_name_files_that_are_there() {
    let names: Vec<String> = sources().into_iter().map(|(name, _)| format!("/{name}")).collect();
    let (mut problems, mut checked) = (Vec::new(), 0);
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for named in quoted(&text) {
            let is_file = named.ends_with(".rs") && named.contains('/');
            let is_folder = named.contains("/src/") && named.ends_with('/');
            if named.contains([' ', '*', '{', '<']) || !(is_file || is_folder) {
                continue;
            }
            checked += 1;
            let named = format!("/{named}");
            let is_there = |name: &String| {
                if is_folder { name.starts_with(&named) } else { name.ends_with(&named) }
            };
            if !names.iter().any(is_there) {
                problems.push(format!("{}: {named}", page.display()));
            }
        }
    }
    assert!(checked > 100, "only {checked} paths found");
    assert_none(&problems, "docs name files that are there");
}
