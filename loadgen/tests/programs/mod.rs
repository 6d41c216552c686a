//! The real programs: loadgen, and the revd it is run against.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;

/// revd, built if it is not there. `cargo test --workspace` has built it by now, with features of
/// its own: building it here again would build half of the workspace twice.
pub(crate) fn revd() -> PathBuf {
    static BUILT: Once = Once::new();
    let program = Path::new(env!("CARGO_BIN_EXE_loadgen")).parent().unwrap().join("revd");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    BUILT.call_once(|| {
        if !program.is_file() {
            let build = Command::new(env!("CARGO")).args(["build", "-p", "revd"]).current_dir(root).status();
            assert!(build.unwrap().success(), "revd cannot be built");
        }
    });
    program
}

/// Runs loadgen with these words.
pub(crate) fn loadgen(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loadgen")).args(words).output().unwrap()
}

/// Its output; it must have succeeded.
pub(crate) fn good(words: &[&str]) -> String {
    let output = loadgen(words);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{words:?}: {}\n{out}\n{err}", output.status);
    out
}

/// Standard output and standard error.
pub(crate) fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
