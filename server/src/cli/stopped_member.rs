//! The files of a member that is stopped, opened without a change.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::Store;
use revd_member::wal::reader::RecoveredLog;

use crate::disk::segments;

/// Where a member's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoppedMember {
    pub(super) data_dir: PathBuf,
    pub(super) wal_dir: PathBuf,
}

impl StoppedMember {
    pub(super) fn tree(&self) -> PathBuf {
        self.data_dir.join("member").join("tree.revd")
    }

    /// Opens the store without changing anything, unless a process uses it.
    pub(super) fn open_store(&self) -> anyhow::Result<Store> {
        let tree = self.tree();
        if !tree.exists() {
            bail!(
                "{} is not there: is {} a data directory of revd?",
                tree.display(),
                self.data_dir.display()
            );
        }
        if is_locked(&self.data_dir.join("lock")) {
            bail!("a process uses {}: stop it, or look at a copy of the directory", self.data_dir.display());
        }
        let context = || format!("opening {}", tree.display());
        let disk = MmapDisk::open(&tree).with_context(context)?;
        Store::open(std::sync::Arc::new(disk), DbOptions::default()).with_context(context)
    }

    /// Of entries up to the applied one only the terms are kept: a log may be larger than memory.
    pub(super) fn read_log(&self, applied: u64) -> anyhow::Result<RecoveredLog> {
        let log = segments::read(&self.wal_dir, applied)?;
        log.with_context(|| format!("{} holds no log", self.wal_dir.display()))
    }
}

fn is_locked(path: &Path) -> bool {
    // Without a lock file no process holds it.
    let Ok(file) = std::fs::File::open(path) else { return false };
    !fs4::fs_std::FileExt::try_lock_shared(&file).unwrap_or(true)
}
