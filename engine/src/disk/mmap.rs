//! The real file: reads through a map, writes through the file. The only `unsafe` of the crate.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::disk::mapped::Mapped;
use crate::disk::{Disk, Map};
use crate::{Error, Result};

/// A tree file. The process must hold the data directory's lock: the map is only sound while no
/// other process truncates the file.
pub struct MmapDisk {
    path: PathBuf,
    file: File,
    /// The newest map; taken anew only when the file has outgrown it.
    map: Mutex<Option<Map>>,
    failed: AtomicBool,
    /// The length was changed since the last sync.
    has_new_len: AtomicBool,
}

impl MmapDisk {
    /// Opens or creates a file, readable by its owner only.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            map: Mutex::new(None),
            failed: AtomicBool::new(false),
            // The process before may have changed it, and not have lived to sync.
            has_new_len: AtomicBool::new(true),
        })
    }

    fn checked<T>(&self, what: &str, result: std::io::Result<T>) -> Result<T> {
        result.map_err(|error| {
            self.failed.store(true, Ordering::SeqCst);
            Error::io(format!("{what} {}", self.path.display()), error)
        })
    }

    /// Reserves the blocks too, so that a full disk shows here and not in the middle of a commit.
    fn grow(&self, old: u64, len: u64) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, old, len - old) {
            Ok(()) => Ok(()),
            // Some file systems cannot reserve: a full disk ends the process there.
            Err(rustix::io::Errno::OPNOTSUPP) => self.checked("resizing", self.file.set_len(len)),
            Err(errno) => {
                // The part that was reserved goes back.
                self.checked("resizing", self.file.set_len(old))?;
                let error = Error::growing(
                    format!("making room in {}", self.path.display()),
                    std::io::Error::from(errno),
                );
                self.failed.fetch_or(!error.is_no_space(), Ordering::SeqCst);
                Err(error)
            }
        }
    }

    fn usable(&self) -> Result<()> {
        if self.failed.load(Ordering::SeqCst) { Err(Error::Poisoned) } else { Ok(()) }
    }
}

impl Disk for MmapDisk {
    fn file_len(&self) -> Result<u64> {
        self.checked("asking the length of", self.file.metadata()).map(|data| data.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.usable()?;
        self.has_new_len.store(true, Ordering::SeqCst);
        let old = self.file_len()?;
        if len > old {
            return self.grow(old, len);
        }
        self.checked("resizing", self.file.set_len(len))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        self.checked("writing", self.file.write_all_at(bytes, offset))
    }

    fn sync(&self) -> Result<()> {
        self.usable()?;
        // Some kernels' ext4 with fast_commit forgot a new length in a data sync (before 5.10.94
        // and 5.15.27).
        let has_new_len = self.has_new_len.swap(false, Ordering::SeqCst);
        self.checked("syncing", if has_new_len { self.file.sync_all() } else { self.file.sync_data() })
    }

    fn map(&self) -> Result<Map> {
        let len = self.file_len()?;
        let mut current = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = current.as_ref().filter(|map| map.bytes().len() as u64 >= len) {
            return Ok(map.clone());
        }
        // SAFETY: the map is read-only and the data directory's lock keeps other processes away.
        // This process never writes to bytes a reader can reach, and shortens the file only by
        // pages that no state a reader can hold names: a map may be longer than the file then, but
        // nothing looks at the part behind its end.
        let mapped = unsafe { memmap2::Mmap::map(&self.file) };
        let mapped = self.checked("mapping", mapped)?;
        let map = Map::new(Arc::new(Mapped::new(mapped)));
        *current = Some(map.clone());
        Ok(map)
    }
}
