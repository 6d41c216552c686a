//! Golden scripts: every file of a folder below `tests/scripts` is run by a runner of its own.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;

use goldenscript::{Argument, Command, Runner};

/// Runs each script of a folder. A folder without scripts is a mistake.
pub(crate) fn run_all<R: Runner>(folder: &str, runner: impl Fn() -> R) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(folder);
    let mut count = 0;
    for script in std::fs::read_dir(folder).unwrap() {
        goldenscript::run(&mut runner(), script.unwrap().path()).unwrap();
        count += 1;
    }
    assert!(count > 0, "no scripts");
}

/// The arguments of a line that has only plain ones.
pub(crate) fn words_of(line: &Command) -> Vec<&str> {
    let words = line.args.iter().map(|argument| match argument {
        Argument::Positional(word) => word.as_str(),
        other => panic!("{other} is not a plain argument"),
    });
    words.collect()
}
