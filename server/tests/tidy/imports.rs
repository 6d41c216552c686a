//! Which file of a crate uses which: `use` items, groups in them, and paths in the code, each
//! followed through re-exports to the file that has the name.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Token, tokens};

type Path = Vec<String>;

/// One name that a `use` brings into a file.
struct Import {
    /// As written: begins with `crate`, `self`, `super`, a child, another import or a crate.
    path: Path,
    name: String,
    is_public: bool,
    line: usize,
}

struct Module {
    file: String,
    imports: Vec<Import>,
    /// Paths of two words and more in the code, and single words.
    paths: Vec<(usize, Path)>,
}

/// From the file that uses another one, and that one, to the line where it does so first.
pub(crate) type Uses = BTreeMap<(String, String), usize>;

/// The files of one crate, by the path of their module.
pub(crate) struct Crate(BTreeMap<Path, Module>);

impl Crate {
    /// `root` is the folder of `lib.rs` or `main.rs`, with its slash.
    pub(crate) fn new<'s>(root: &str, sources: impl Iterator<Item = &'s (String, String)>) -> Crate {
        let module =
            |(name, text): &(String, String)| (module_path(&name[root.len()..]), Module::new(name, text));
        Crate(sources.map(module).collect())
    }

    /// Every use of a file by another one, in the order of the files.
    pub(crate) fn uses(&self) -> Uses {
        let mut found = Uses::new();
        for (at, module) in &self.0 {
            let mut add = |line: usize, path: &[String]| {
                if let Some(file) = self.resolve(at, path, 0).filter(|file| *file != module.file) {
                    let first = found.entry((module.file.clone(), file.to_owned())).or_insert(line);
                    *first = line.min(*first);
                }
            };
            for import in &module.imports {
                // A folder's mod.rs that passes on names of its own files does not use them.
                let is_passed_on = import.is_public && self.is_below(at, &import.path);
                if !is_passed_on && !self.is_module(at, &import.path) {
                    add(import.line, &import.path);
                }
            }
            for (line, path) in &module.paths {
                if path.len() > 1
                    || module.imports.iter().any(|import| import.is_public && import.name == path[0])
                {
                    add(*line, path);
                }
            }
        }
        found
    }

    fn is_module(&self, at: &Path, path: &[String]) -> bool {
        self.walk(at, path, 0).is_some_and(|(_, rest)| rest.is_empty())
    }

    fn is_below(&self, at: &Path, path: &[String]) -> bool {
        self.walk(at, path, 0).is_some_and(|(module, _)| module.len() > at.len() && module.starts_with(at))
    }

    /// The module that the front of a path written in `at` names, and what is left of the path.
    fn walk<'p>(&self, at: &Path, path: &'p [String], depth: usize) -> Option<(Path, &'p [String])> {
        let (first, mut rest) = path.split_first()?;
        let mut module = at.clone();
        match first.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => drop(module.pop()),
            name => {
                module.push(name.to_owned());
                if !self.0.contains_key(&module) {
                    let import = self.0[at].imports.iter().find(|import| import.name == name)?;
                    if depth > 8 || import.path[0] == name {
                        return None;
                    }
                    let (found, left) = self.walk(at, &import.path, depth + 1)?;
                    return left.is_empty().then(|| self.descend(found, rest));
                }
            }
        }
        while first == "super" && rest.first().is_some_and(|word| word == "super") {
            module.pop();
            rest = &rest[1..];
        }
        Some(self.descend(module, rest))
    }

    fn descend<'p>(&self, mut module: Path, mut rest: &'p [String]) -> (Path, &'p [String]) {
        while let Some((word, after)) = rest.split_first() {
            module.push(word.clone());
            if !self.0.contains_key(&module) {
                module.pop();
                break;
            }
            rest = after;
        }
        (module, rest)
    }

    /// The file that has what a path written in `at` names; none if it is of another crate.
    fn resolve(&self, at: &Path, path: &[String], depth: usize) -> Option<&str> {
        let Some((module, rest)) = self.walk(at, path, 0) else {
            // A name that is imported: the file it comes from.
            let import = self.0[at].imports.iter().find(|import| import.name == path[0])?;
            let is_other = depth > 8 || import.path[0] == path[0];
            return if is_other { None } else { self.resolve(at, &import.path, depth + 1) };
        };
        let here = self.0.get(&module)?;
        let Some(word) = rest.first() else { return Some(&here.file) };
        let passed_on = here.imports.iter().find(|import| import.is_public && import.name == *word);
        match passed_on {
            Some(import) if depth <= 8 => self.resolve(&module, &import.path, depth + 1),
            _ => Some(&here.file),
        }
    }
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; `lib.rs` and `main.rs` are the crate itself.
fn module_path(inside: &str) -> Path {
    let mut path: Path = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod") || matches!(inside, "lib.rs" | "main.rs") {
        path.pop();
    }
    path
}

impl Module {
    fn new(file: &str, text: &str) -> Module {
        let tokens = tokens(text);
        let mut module = Module { file: file.to_owned(), imports: Vec::new(), paths: Vec::new() };
        let mut at = 0;
        while at < tokens.len() {
            let next = tokens.get(at + 1).map_or("", |token| token.text);
            let before = at.checked_sub(1).map_or("", |before| tokens[before].text);
            if tokens[at].text == "use" && !matches!(next, "<" | "::") {
                let is_public = matches!(before, "pub" | ")");
                at += 1;
                module.read_tree(&tokens, &mut at, &[], is_public);
            } else if tokens[at].is_word() && !matches!(before, "$" | "::" | "." | "mod" | "fn") {
                let line = tokens[at].line;
                let path = read_path(&tokens, &mut at);
                module.paths.push((line, path));
            } else {
                at += 1;
            }
        }
        module
    }

    /// One `use` tree: a path, with a name, a star or a group at its end.
    fn read_tree(&mut self, tokens: &[Token<'_>], at: &mut usize, front: &[String], is_public: bool) {
        let line = tokens[*at].line;
        let mut path = front.to_vec();
        path.extend(read_path(tokens, at));
        match tokens.get(*at).map_or("", |token| token.text) {
            "{" => {
                *at += 1;
                while tokens[*at].text != "}" {
                    self.read_tree(tokens, at, &path, is_public);
                    *at += usize::from(tokens[*at].text == ",");
                }
                *at += 1;
            }
            "*" => {
                *at += 1;
                path.push("*".to_owned());
                self.imports.push(Import { name: "*".to_owned(), path, is_public, line });
            }
            end => {
                if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
                    path.pop();
                }
                let mut name = path.last().cloned().unwrap_or_default();
                if end == "as" {
                    tokens[*at + 1].text.clone_into(&mut name);
                    *at += 2;
                }
                self.imports.push(Import { path, name, is_public, line });
            }
        }
    }
}

/// Words with `::` between them, also one behind the last.
fn read_path(tokens: &[Token<'_>], at: &mut usize) -> Path {
    let mut path = Path::new();
    while *at < tokens.len() && tokens[*at].is_word() {
        path.push(tokens[*at].text.to_owned());
        *at += 1;
        if tokens.get(*at).is_none_or(|token| token.text != "::") {
            break;
        }
        *at += 1;
    }
    path
}

/// Files that use each other, directly or through others: one set for each circle.
pub(crate) fn circles(uses: &Uses) -> BTreeSet<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in uses.keys() {
        next.entry(from).or_default().push(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reached_from(file, &next))).collect();
    let mut found = BTreeSet::new();
    for (file, seen) in &reached {
        let comes_back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(file));
        found.insert(seen.iter().filter(comes_back).copied().collect());
    }
    found.remove(&BTreeSet::new());
    found
}

fn reached_from<'u>(file: &'u str, next: &BTreeMap<&'u str, Vec<&'u str>>) -> BTreeSet<&'u str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![file]);
    while let Some(file) = open.pop() {
        let others = next.get(file).into_iter().flatten();
        open.extend(others.filter(|other| seen.insert(**other)));
    }
    seen
}

#[cfg(test)]
fn uses_of(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<(String, String)> =
        files.iter().map(|(name, text)| (format!("x/{name}"), (*text).to_owned())).collect();
    let uses = Crate::new("x/", sources.iter()).uses();
    uses.iter().map(|((from, to), line)| format!("{} {line} {}", &from[2..], &to[2..])).collect()
}

#[test]
fn every_way_to_name_another_file_is_found() {
    let files = [
        ("lib.rs", "pub mod a; pub mod b; pub use a::one::First;"),
        ("a/mod.rs", "mod one; mod two; pub use one::First; pub(crate) use two::{Second, third};"),
        ("a/one.rs", "use super::{Second, super::b};\nfn f() { b::g() }"),
        ("a/two.rs", "fn f(x: crate::b::B) { self::h() }\nuse std::{fmt, io::{self, Write}};"),
        ("b.rs", "use crate::{a::{self, third}};\nuse crate::First as F;\nfn f() { a::Second::new() }"),
        ("c.rs", "use crate::a::*;"),
    ];
    let expected = [
        "a/one.rs 1 a/two.rs",
        "a/one.rs 2 b.rs",
        "a/two.rs 1 b.rs",
        "b.rs 2 a/one.rs",
        "b.rs 1 a/two.rs",
        "c.rs 1 a/mod.rs",
    ];
    assert_eq!(uses_of(&files), expected);
}

#[test]
fn a_mod_file_that_needs_what_it_passes_on_uses_it() {
    let files = [("lib.rs", "mod a; pub use a::A;\nfn f(a: A) {}"), ("a.rs", "use crate::B;")];
    assert_eq!(uses_of(&files), ["a.rs 1 lib.rs", "lib.rs 2 a.rs"]);
}

#[test]
fn circles_are_found_through_others() {
    let pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("e", "a")];
    let uses = pairs.map(|(from, to)| ((from.to_owned(), to.to_owned()), 1)).into();
    assert_eq!(circles(&uses), [["a", "b", "c"].into()].into());
}
