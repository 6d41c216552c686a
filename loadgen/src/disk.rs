//! The disk: the room that files take, and waiting until it is at rest.
//!
//! Removing gigabytes makes the file system discard blocks, and a write that must be durable waits
//! behind that for seconds: one measurement must not slow the next one down so.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use crate::clock;
use crate::started;

/// A durable write of a block that takes no longer shows a disk that is at rest.
const QUICK: Duration = Duration::from_millis(20);
/// So many in a row do, with rests between them.
const QUICK_WRITES: usize = 10;
const REST: Duration = Duration::from_millis(50);
/// Then it is measured all the same.
const PATIENCE: Duration = Duration::from_secs(120);

/// File systems in memory: of tmpfs and ramfs (statfs(2)).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether files there are in memory only: a durable write costs nothing then.
///
/// # Errors
/// When there is no such folder.
pub fn is_memory(folder: &Path) -> anyhow::Result<bool> {
    let kind = rustix::fs::statfs(folder)?.f_type;
    Ok(u64::try_from(kind).is_ok_and(|kind| IN_MEMORY.contains(&kind)))
}

/// The room that files take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes that are allocated for all of them, and for their folders.
    pub allocated: u64,
    /// Bytes in the longest one: of revd the tree file, of etcd the database, once there is much.
    pub longest_file: u64,
}

impl DiskRoom {
    /// Of everything below a folder. Files that go meanwhile count as if they had never been there.
    #[must_use]
    pub fn below(path: &Path) -> Self {
        let Ok(data) = std::fs::symlink_metadata(path) else { return Self::default() };
        let longest_file = if data.is_file() { data.len() } else { 0 };
        let mut room = Self { allocated: data.blocks() * 512, longest_file };
        if data.is_dir() {
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                let inside = Self::below(&entry.path());
                room.allocated += inside.allocated;
                room.longest_file = room.longest_file.max(inside.longest_file);
            }
        }
        room
    }
}

/// How waiting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// How long it took.
    pub waited: Duration,
    /// The disk was quick in the end.
    pub is_quick: bool,
}

/// Writes everything back, then waits until small durable writes below `folder` are quick again, or
/// for two minutes.
///
/// # Errors
/// When nothing can be written there.
pub fn settle(folder: &Path) -> anyhow::Result<Settled> {
    settle_within(folder, PATIENCE)
}

fn settle_within(folder: &Path, patience: Duration) -> anyhow::Result<Settled> {
    let start = clock::nanos();
    rustix::fs::sync();
    let own = started::folder_in(folder, "loadgen-probe-")?;
    let probe = std::fs::File::create(own.path().join("probe"))?;
    let mut quick = 0;
    loop {
        let begun = clock::nanos();
        probe.write_all_at(&[0; 4096], 0)?;
        probe.sync_data()?;
        let took = Duration::from_nanos(clock::nanos() - begun);
        quick = if took <= QUICK { quick + 1 } else { 0 };
        let waited = Duration::from_nanos(clock::nanos() - start);
        if quick == QUICK_WRITES || waited > patience {
            return Ok(Settled { waited, is_quick: quick == QUICK_WRITES });
        }
        clock::rest(REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_are_told_from_those_on_a_disk() {
        assert!(!is_memory(Path::new("/proc")).unwrap());
        assert!(is_memory(Path::new("/nowhere")).is_err());
        // Not everywhere, and not always in memory.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        if mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
            assert!(is_memory(Path::new("/dev/shm")).unwrap());
        }
    }

    #[test]
    fn room_is_that_of_all_files_and_of_the_longest() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inside")).unwrap();
        std::fs::write(folder.path().join("short"), [1; 5_000]).unwrap();
        std::fs::write(folder.path().join("inside/long"), [1; 50_000]).unwrap();
        let room = DiskRoom::below(folder.path());
        assert!(room.longest_file == 50_000 && room.allocated >= 55_000, "{room:?}");
        assert_eq!(DiskRoom::below(&folder.path().join("nothing")), DiskRoom::default());
    }

    #[test]
    fn the_probe_is_removed_and_a_folder_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let settled = settle_within(folder.path(), Duration::ZERO).unwrap();
        assert!(!settled.is_quick, "one write does not show a disk at rest");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(settle(Path::new("/nowhere")).is_err());
    }
}
