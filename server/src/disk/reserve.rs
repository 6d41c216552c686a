//! Room on the disk kept for what must not fail: when the disk is full, the reserve is given up,
//! and in its place what was begun can be finished (the log's next segment, a checkpoint) while
//! clients are told that there is no space.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use revd_member::files::is_no_space;
use serde_json::json;

use crate::observe::log;

/// Node view: a file of zeros, and whether the disk was found full.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    bytes: u64,
    is_full: AtomicBool,
    /// Held by the thread that makes the file or removes it: which of both came last is what the
    /// disk was found to be.
    turn: Mutex<()>,
}

impl Reserve {
    /// A reserve in this file; it is made by [`Reserve::fill`].
    #[must_use]
    pub fn new(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes, is_full: AtomicBool::new(false), turn: Mutex::default() }
    }

    /// The disk was found full, and had no room for the reserve since.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Makes the reserve, or makes it again after it was given up. Blocks.
    ///
    /// # Errors
    /// When there is no room for it.
    pub fn fill(&self) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&self.path)?;
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&file, flags, 0, self.bytes) {
            // A file system that cannot reserve: the server goes on without.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(errno) => {
                let _ = std::fs::remove_file(&self.path);
                self.is_full.store(is_no_space(&errno.into()), Ordering::Relaxed);
                return Err(errno.into());
            }
        }
        if self.is_full.swap(false, Ordering::Relaxed) {
            log::info("the disk has room again", json!({"reserve-bytes": self.bytes}));
        }
        Ok(())
    }

    /// The disk has no room for `what`: gives the reserve up, if that has not happened yet; true if
    /// there may be room now. Blocks shortly.
    pub fn give_up(&self, what: &str) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_full.store(true, Ordering::Relaxed);
        let given_up = std::fs::remove_file(&self.path).is_ok();
        if given_up {
            log::warn(
                "the disk is full: reads, deletes and compactions go on, what needs space is refused; free some space, \
                 then clear the alarm (etcdctl alarm disarm)",
                json!({"no-room-for": what, "reserve-given-up": self.bytes, "path": self.path}),
            );
        }
        given_up
    }
}
