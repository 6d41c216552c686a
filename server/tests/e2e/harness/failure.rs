//! Files that a failed test leaves: the logs of its servers, and records of its clients.
//!
//! They are in `target/tmp/failed/`, in a folder with the test's name; the next run replaces them.

use std::cell::OnceCell;
use std::fs::{File, remove_dir_all};
use std::path::{Path, PathBuf};

/// Where the files of this test are, if it is failing at this moment.
pub fn folder() -> Option<&'static Path> {
    thread_local! {
        static FOLDER: OnceCell<&'static Path> = const { OnceCell::new() };
    }
    std::thread::panicking().then(|| FOLDER.with(|folder| *folder.get_or_init(make)))
}

/// An empty one. A test has a thread of its own, which has its name.
fn make() -> &'static Path {
    let name = std::thread::current().name().unwrap_or("nameless").replace("::", ".");
    let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "failed", &name].iter().collect();
    let _ = remove_dir_all(&folder);
    if let Err(error) = std::fs::create_dir_all(&folder) {
        eprintln!("{}: {error}", folder.display());
    }
    eprintln!("logs and records of this test: {}", folder.display());
    Box::leak(folder.into_boxed_path())
}

/// Keeps a file, unless the system refuses: the test has failed anyhow.
pub fn keep(file: &Path) {
    if let (Some(folder), Some(name)) = (folder(), file.file_name()) {
        let _ = std::fs::copy(file, folder.join(name));
    }
}

/// A new file of this name, if the test is failing.
pub fn file(name: &str) -> Option<File> {
    File::create(folder()?.join(name)).ok()
}
