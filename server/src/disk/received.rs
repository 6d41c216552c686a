//! The files of a state that another member sends, and the tree file beside them. Which of them
//! change, in which order, is decided by `revd_member::boot`.

use std::io;
use std::path::{Path, PathBuf};

use revd_engine::disk::MmapDisk;
use revd_member::boot::received_files::{self, RECEIVED, RECEIVING, TREE};
use revd_member::files::Files as _;

use crate::disk::directory::DirFiles;
use crate::limits;
use crate::memory;

/// The names in one directory.
#[derive(Debug, Clone)]
pub struct ReceivedFiles {
    files: DirFiles,
    /// Memory that the files may take.
    memory_bytes: u64,
}

impl ReceivedFiles {
    /// Beside the tree file of this directory; in so much memory, or in what the machine has for
    /// the process.
    #[must_use]
    pub fn new(dir: &Path, memory_bytes: Option<u64>) -> Self {
        let memory_bytes = memory_bytes.unwrap_or_else(memory::available_bytes);
        Self { files: DirFiles::new(dir), memory_bytes }
    }

    /// Opens one of them for a store.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(&self, path: &Path) -> revd_engine::Result<MmapDisk> {
        Ok(MmapDisk::open(path)?.within_memory(self.memory_bytes))
    }

    /// The tree file.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.files.file(TREE)
    }

    /// A state that is whole.
    #[must_use]
    pub fn received(&self) -> PathBuf {
        self.files.file(RECEIVED)
    }

    /// A part of a state.
    #[must_use]
    pub fn receiving(&self) -> PathBuf {
        self.files.file(RECEIVING)
    }

    /// Whether the disk has room for so many bytes, beside what must not fail.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let disk = rustix::fs::statvfs(self.files.path())?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok(free >= bytes.saturating_add(limits::RESERVE_BYTES))
    }

    /// The state that is being received is whole and synced.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&self) -> io::Result<()> {
        received_files::keep(&self.files)
    }

    /// The state that was received is the tree file from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install(&self) -> io::Result<()> {
        received_files::install(&self.files)
    }

    /// Removes the state that was received, and what there is of another one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn forget(&self) -> io::Result<()> {
        received_files::forget(&self.files)
    }
}
