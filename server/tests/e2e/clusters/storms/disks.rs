//! Disks without room, and busy ones.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::harness::SmallDisk;

/// A file that takes all room of a small disk, as long as this lives.
pub struct Ballast(PathBuf);

impl Ballast {
    /// Fills the disk that is mounted there.
    pub fn fill(disk: &SmallDisk, at: &Path) -> Self {
        let path = disk.path(&at.join("ballast"));
        let mut file = File::create(&path).unwrap();
        for bytes in [1 << 20, 4096] {
            while file.write_all(&vec![7; bytes]).is_ok() {}
        }
        Self(path)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Something else that writes and syncs megabytes on the disk of the members, as long as this
/// lives. A disk that is slow by itself needs a device mapper.
pub struct BusyDisk {
    is_over: Arc<AtomicBool>,
    writing: Option<JoinHandle<()>>,
}

impl BusyDisk {
    pub fn begin(dir: &Path) -> Self {
        let (path, is_over) = (dir.join("busy"), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&is_over);
        let writing = std::thread::spawn(move || {
            let mut file = File::create(&path).unwrap();
            while !ended.load(Ordering::Relaxed) {
                file.rewind().unwrap();
                file.write_all(&vec![7; 4 << 20]).unwrap();
                file.sync_data().unwrap();
            }
            let _ = std::fs::remove_file(&path);
        });
        Self { is_over, writing: Some(writing) }
    }
}

impl Drop for BusyDisk {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(writing) = self.writing.take() {
            let _ = writing.join();
        }
    }
}
