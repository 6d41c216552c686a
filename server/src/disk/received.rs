//! Files of a state that another member sends, on its way to becoming the tree file.
//!
//! ```text
//! receiving.tmp --whole and synced--> received.revd --the log begins again behind it--> tree.revd
//! ```
//!
//! Each arrow is a rename, and durable when it returns. Which of them a start finds done, and how
//! it goes on, is decided by `revd_member::boot::recovery`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::limits;

/// The names in one directory.
#[derive(Debug, Clone)]
pub struct ReceivedFiles {
    dir: PathBuf,
}

impl ReceivedFiles {
    /// Beside the tree file of this directory.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// The tree file.
    #[must_use]
    pub fn tree(&self) -> PathBuf {
        self.dir.join("tree.revd")
    }

    /// A state that is whole.
    #[must_use]
    pub fn received(&self) -> PathBuf {
        self.dir.join("received.revd")
    }

    /// A part of a state.
    #[must_use]
    pub fn receiving(&self) -> PathBuf {
        self.dir.join("receiving.tmp")
    }

    /// Whether the disk has room for so many bytes, beside what must not fail.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let disk = rustix::fs::statvfs(&self.dir)?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok(free >= bytes.saturating_add(limits::RESERVE_BYTES))
    }

    /// The state that is being received is whole and synced.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn keep(&self) -> io::Result<()> {
        std::fs::rename(self.receiving(), self.received())?;
        self.sync()
    }

    /// The state that was received is the tree file from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install(&self) -> io::Result<()> {
        std::fs::rename(self.received(), self.tree())?;
        self.sync()
    }

    /// Removes the state that was received, and what there is of another one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn forget(&self) -> io::Result<()> {
        for path in [self.receiving(), self.received()] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        std::fs::File::open(&self.dir).and_then(|dir| dir.sync_all())
    }
}
