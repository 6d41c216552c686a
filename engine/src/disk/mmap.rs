//! The real file: reads through a map, writes through the file.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::disk::mapped::Mapped;
use crate::disk::{Disk, Map};
use crate::limits::{
    DIRECT_ALIGNMENT, MAP_BYTES_MIN, MAP_BYTES_MIN_SHORT, MAP_GROWTH, MAP_LIMIT_PART, RESIDENT_PART,
};
use crate::{Error, Result};

/// A tree file. The process must hold the data directory's lock: the map is only sound while no
/// other process truncates the file.
pub struct MmapDisk {
    path: PathBuf,
    file: File,
    /// The same file, past the page cache; none where the file system has no such way.
    direct: OnceLock<Option<File>>,
    /// Addresses for the file and for what it grows by; taken anew when it has outgrown them.
    map: Mutex<Option<Arc<Mapped>>>,
    /// A longer file does not stay in memory.
    resident_max: u64,
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
            direct: OnceLock::new(),
            map: Mutex::new(None),
            resident_max: u64::MAX,
            failed: AtomicBool::new(false),
            // The process before may have changed it, and not have lived to sync.
            has_new_len: AtomicBool::new(true),
        })
    }

    /// The file is read by a process that may use so many bytes of memory. Once it takes more than
    /// [`RESIDENT_PART`] of them, only what is asked for is read from the disk (decision 0032).
    #[must_use]
    pub fn within_memory(self, bytes: u64) -> Self {
        Self { resident_max: bytes / RESIDENT_PART, ..self }
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

    /// The file at so many addresses. They may be more than it has bytes: a page behind its end is
    /// there once the file has grown.
    fn map_addresses(&self, bytes: u64) -> std::io::Result<Arc<Mapped>> {
        let bytes = usize::try_from(bytes).map_err(std::io::Error::other)?;
        // SAFETY: the map is read-only and the data directory's lock keeps other processes away.
        // This process never writes to bytes a reader can reach, and shortens the file only by
        // pages that no state a reader can hold names. Nothing looks at addresses behind the length
        // that the file had when a reader's map was taken, so none that has no page is touched.
        let mapped = unsafe { memmap2::MmapOptions::new().len(bytes).map(&self.file)? };
        Ok(Arc::new(Mapped::new(mapped)))
    }

    /// The file opened anew, by the name that it has had since it was opened.
    fn direct(&self) -> Option<&File> {
        let direct = self.direct.get_or_init(|| {
            let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            OpenOptions::new().write(true).custom_flags(flags).open(&self.path).ok()
        });
        direct.as_ref()
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

    fn write_past_cache(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.usable()?;
        let places = [offset, bytes.len() as u64, bytes.as_ptr().addr() as u64];
        let is_aligned = places.iter().all(|place| place.is_multiple_of(DIRECT_ALIGNMENT as u64));
        if let Some(direct) = self.direct().filter(|_| is_aligned) {
            match direct.write_all_at(bytes, offset) {
                // This device has larger blocks, or its file system does not write that way.
                Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
                result => return self.checked("writing", result),
            }
        }
        self.write_at(offset, bytes)
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
        let mapped = match current.as_ref().filter(|mapped| mapped.covers(len)) {
            Some(mapped) => Arc::clone(mapped),
            None => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
                let mapped = addresses_for(len, limit.unwrap_or(u64::MAX))
                    .into_iter()
                    .find_map(|bytes| self.map_addresses(bytes).ok())
                    .map_or_else(|| self.map_addresses(len), Ok);
                Arc::clone(current.insert(self.checked("mapping", mapped)?))
            }
        };
        if len > self.resident_max {
            mapped.read_exactly(true);
        } else if len < self.resident_max / 2 {
            mapped.read_exactly(false);
        }
        Ok(Map::new(mapped).with_len(len).expect("the map is at least as long as the file was"))
    }
}

/// Bytes of address space for a file of this length, of so many that there are, the most first. A
/// map that is made anew costs each reader the faults of all its pages again, so that is to happen
/// a few times in a file's life; addresses cost nothing.
fn addresses_for(len: u64, limit: u64) -> [u64; 3] {
    let grown = len.saturating_mul(MAP_GROWTH);
    let hardly_grown = len.saturating_add(len / 8);
    let most = (limit / MAP_LIMIT_PART).max(hardly_grown);
    [grown.max(MAP_BYTES_MIN), grown.max(MAP_BYTES_MIN_SHORT), hardly_grown].map(|bytes| bytes.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_stays_where_it_is_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let disk = MmapDisk::open(&dir.path().join("tree")).unwrap();
        let empty = disk.map().unwrap();
        assert_eq!(empty.bytes(), b"");
        disk.set_len(1 << 20).unwrap();
        let one = disk.map().unwrap();
        disk.set_len(5 << 20).unwrap();
        let five = disk.map().unwrap();
        assert_eq!([one.bytes().len(), five.bytes().len()], [1 << 20, 5 << 20]);
        assert_eq!([&empty, &one].map(|map| map.bytes().as_ptr()), [five.bytes().as_ptr(); 2]);
        disk.write_at((5 << 20) - 3, b"end").unwrap();
        assert_eq!(five.bytes()[(5 << 20) - 3..], *b"end");
        disk.set_len(2 << 20).unwrap();
        assert_eq!(disk.map().unwrap().bytes().len(), 2 << 20);
        // Of the sparse kind, which takes no room.
        disk.file.set_len(100 << 30).unwrap();
        assert_eq!(disk.map().unwrap().bytes().as_ptr(), five.bytes().as_ptr());
        disk.file.set_len(MAP_BYTES_MIN + 1).unwrap();
        let grown = disk.map().unwrap();
        assert_eq!(grown.bytes().len() as u64, MAP_BYTES_MIN + 1);
        assert_ne!(grown.bytes().as_ptr(), five.bytes().as_ptr());
        let last = usize::try_from(MAP_BYTES_MIN).unwrap();
        assert_eq!((five.bytes()[0], grown.bytes()[last]), (0, 0), "both maps can be read");
    }

    #[test]
    fn a_limit_of_addresses_leaves_most_of_them_for_memory() {
        let gib = |count: u64| count << 30;
        assert_eq!(addresses_for(0, u64::MAX), [MAP_BYTES_MIN, MAP_BYTES_MIN_SHORT, 0]);
        assert_eq!(addresses_for(gib(40), u64::MAX), [gib(160), gib(160), gib(45)]);
        assert_eq!(addresses_for(gib(1), gib(64)), [gib(16), gib(4), gib(1) + gib(1) / 8]);
        assert_eq!(addresses_for(gib(24), gib(64)), [gib(27); 3]);
        assert_eq!(addresses_for(0, gib(2)), [gib(1) / 2, gib(1) / 2, 0]);
    }

    /// Whether the flag of `madvise(MADV_RANDOM)` is on the addresses of a map.
    #[cfg(target_os = "linux")]
    fn is_exact(map: &Map) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", map.bytes().as_ptr().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        flags.split_whitespace().any(|flag| flag == "rr")
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn nothing_is_read_around_a_page_once_the_file_does_not_stay_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let disk = MmapDisk::open(&dir.path().join("tree")).unwrap().within_memory(4 << 20);
        disk.set_len(1 << 20).unwrap();
        let map = disk.map().unwrap();
        map.will_need(0..4096);
        assert!(!is_exact(&map));
        disk.set_len((1 << 20) + 4096).unwrap();
        let map = disk.map().unwrap();
        map.will_need(0..4096);
        map.will_need((1 << 20) - 1..5 << 20);
        map.will_need(3 << 20..5 << 20);
        assert!(is_exact(&map));
        disk.set_len(1 << 20).unwrap();
        assert!(is_exact(&disk.map().unwrap()), "it may grow again soon");
        disk.set_len(1 << 18).unwrap();
        assert!(!is_exact(&disk.map().unwrap()));
    }

    /// A file system in memory has no direct writes, and a buffer may lie anywhere: what is written
    /// is the same.
    #[test]
    fn what_is_written_past_the_cache_is_there() {
        let homes =
            [std::env::temp_dir(), PathBuf::from("/dev/shm"), PathBuf::from(env!("CARGO_MANIFEST_DIR"))];
        for home in homes.iter().filter(|home| home.is_dir()) {
            let dir = tempfile::tempdir_in(home).unwrap();
            let disk = MmapDisk::open(&dir.path().join("file")).unwrap();
            let buffer: Vec<u8> =
                (0..5 * DIRECT_ALIGNMENT).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let aligned = buffer.as_ptr().addr().wrapping_neg() % DIRECT_ALIGNMENT;
            let mut expected = vec![0; 8 * DIRECT_ALIGNMENT];
            disk.set_len(expected.len() as u64).unwrap();
            for (offset, start, len) in [
                (0, aligned, 2 * DIRECT_ALIGNMENT),
                (3 * DIRECT_ALIGNMENT, aligned + 1, DIRECT_ALIGNMENT),
                (5 * DIRECT_ALIGNMENT, aligned, 100),
                (6 * DIRECT_ALIGNMENT + 1, aligned, DIRECT_ALIGNMENT),
            ] {
                let bytes = &buffer[start..start + len];
                disk.write_past_cache(offset as u64, bytes).unwrap();
                expected[offset..offset + len].copy_from_slice(bytes);
            }
            disk.sync().unwrap();
            assert!(disk.map().unwrap().bytes() == expected, "in {}", home.display());
        }
    }
}
