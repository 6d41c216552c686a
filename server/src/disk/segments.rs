//! The files of the log: one direct, synchronous write per frame into a prepared segment. Opened
//! with O_DSYNC, a file makes a write durable before it completes: one request to the kernel where
//! a write and a sync would be two (docs/decisions/0004-log-writes.md has the figures).

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use glommio::io::DmaFile;
use revd_member::wal::WalError;
use revd_member::wal::changes::{Before, Changes, Kind, Progress};
use revd_member::wal::disk::LogDisk;
use revd_member::wal::reader::{LogEnd, RecoveredLog, segment_name};
use revd_member::wal::segment_files::{self, ReadSegment};

use crate::disk::directory::DirFiles;
use crate::disk::reserve::Reserve;
use crate::limits;
use crate::queues::sleep::sleep;

/// A directory of the file system.
pub struct DirDisk {
    dir: PathBuf,
    /// Writes are durable when they complete; only `--unsafe-no-fsync` turns it off.
    sync: bool,
    /// Given up when there is no room to prepare a segment.
    reserve: Arc<Reserve>,
    changes: Arc<DirectoryChanges>,
    /// Bytes free on its file system, as of the last segment that was made or taken away.
    room: Arc<AtomicU64>,
}

impl DirDisk {
    /// Segments in this directory. The first of its changes, if there is one, is done before all
    /// others.
    #[must_use]
    pub fn new(dir: PathBuf, sync: bool, reserve: Arc<Reserve>, first: Option<DirectoryChange>) -> Self {
        let room = Arc::new(AtomicU64::new(room_in(&dir)));
        let disk = Self { dir, sync, reserve, changes: Arc::default(), room };
        if let Some(first) = first {
            let (dir, room) = (disk.dir.clone(), Arc::clone(&disk.room));
            let and_look = move || {
                let done = first();
                room.store(room_in(&dir), Ordering::Relaxed);
                done
            };
            disk.changes.begun().waiting.begin(Kind::Other, Box::new(and_look));
        }
        disk
    }

    fn path(&self, segment: u64) -> PathBuf {
        self.dir.join(segment_name(segment))
    }

    async fn open_file(&self, path: &Path) -> Result<DmaFile, WalError> {
        let mut options = glommio::io::OpenOptions::new();
        options.read(true).write(true);
        if self.sync {
            options.custom_flags(rustix::fs::OFlags::DSYNC.bits().cast_signed());
        }
        options.dma_open(path).await.map_err(|error| glommio_io("opening", path, error))
    }
}

impl LogDisk for DirDisk {
    type File = DmaFile;

    async fn create(&self, segment: u64, bytes: u64) -> Result<DmaFile, WalError> {
        let make_now = {
            let (files, reserve) = (DirFiles::new(&self.dir), Arc::clone(&self.reserve));
            let no_room = move || {
                reserve.give_up("a segment of the log");
            };
            move || segment_files::make(&files, segment, bytes, no_room)
        };
        self.changes.in_turn(Before::Other, make_now).await?;
        self.open_file(&self.path(segment)).await
    }

    async fn write(&self, file: &DmaFile, offset: u64, bytes: &[u8]) -> Result<(), WalError> {
        let mut buffer = file.alloc_dma_buffer(bytes.len());
        buffer.as_bytes_mut().copy_from_slice(bytes);
        let path = || file.path().map_or_else(PathBuf::new, |path| path.to_owned());
        let written =
            file.write_at(buffer, offset).await.map_err(|error| glommio_io("writing", &path(), error))?;
        if written == bytes.len() {
            return Ok(());
        }
        let what = format!("{written} of {} bytes were written", bytes.len());
        let source = std::io::Error::new(std::io::ErrorKind::WriteZero, what);
        Err(WalError::Io { what: "writing", path: path(), source })
    }

    async fn read(&self, segment: u64, offset: u64, bytes: u64) -> Result<Bytes, WalError> {
        let path = self.path(segment);
        let read_now = move || {
            let read = read_part(&path, offset, bytes);
            read.map(Bytes::from).map_err(|source| io("reading", &path, source))
        };
        glommio::executor().spawn_blocking(read_now).await
    }

    fn room(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }

    fn prepare(&self, bytes: u64) {
        let (dir, reserve, room) = (self.dir.clone(), Arc::clone(&self.reserve), Arc::clone(&self.room));
        self.changes.begin(Kind::Other, move || {
            let makes_room = || reserve.give_up("the log's next segment");
            segment_files::prepare_next(&DirFiles::new(&dir), bytes, makes_room);
            room.store(room_in(&dir), Ordering::Relaxed);
            Ok(())
        });
    }

    fn remove(&self, segment: u64, spare_bytes: Option<u64>) {
        let (dir, room) = (self.dir.clone(), Arc::clone(&self.room));
        self.changes.begin(Kind::Removal, move || {
            let released = segment_files::release(&DirFiles::new(&dir), segment, spare_bytes);
            room.store(room_in(&dir), Ordering::Relaxed);
            released
        });
    }

    async fn settle(&self) -> Result<(), WalError> {
        self.changes.in_turn(Before::All, || Ok(())).await
    }
}

/// Something to be done to the directory.
pub type DirectoryChange = Box<dyn FnOnce() -> Result<(), WalError> + Send>;

/// Changes of the directory: done on helper threads, in the order of [`Changes`].
#[derive(Default)]
struct DirectoryChanges {
    begun: Mutex<BegunChanges>,
    /// Held by the thread that changes the directory.
    turn: Mutex<Progress>,
}

/// Changes to be made in the background.
#[derive(Default)]
struct BegunChanges {
    waiting: Changes<DirectoryChange>,
    /// A task has them made.
    has_task: bool,
}

impl DirectoryChanges {
    /// Does this when what was begun before is done.
    async fn in_turn(
        self: &Arc<Self>,
        before: Before,
        change: impl FnOnce() -> Result<(), WalError> + Send + 'static,
    ) -> Result<(), WalError> {
        let changes = Arc::clone(self);
        let change_now = move || {
            let mut progress = changes.take_turn();
            while progress.is_well()
                && let Some(change) = changes.next_before(before)
            {
                progress.note(change());
            }
            progress.check()?;
            change()
        };
        glommio::executor().spawn_blocking(change_now).await
    }

    /// Begins to do this in the background.
    fn begin(self: &Arc<Self>, kind: Kind, change: impl FnOnce() -> Result<(), WalError> + Send + 'static) {
        self.begun().waiting.begin(kind, Box::new(change));
        self.go_on();
    }

    /// Sees to it that what was begun is done. The thread is free between two changes: it is the
    /// only one.
    fn go_on(self: &Arc<Self>) {
        if std::mem::replace(&mut self.begun().has_task, true) {
            return;
        }
        let changes = Arc::clone(self);
        glommio::spawn_local(async move {
            while changes.has_more() {
                let now = Arc::clone(&changes);
                let made = glommio::executor().spawn_blocking(move || now.make_next()).await;
                if made == Some(Kind::Removal) {
                    sleep(limits::SEGMENT_REMOVAL_INTERVAL).await;
                }
            }
        })
        .detach();
    }

    /// Whether a task has something to do; else there is none from now on.
    fn has_more(&self) -> bool {
        let mut begun = self.begun();
        begun.has_task = !begun.waiting.is_empty();
        begun.has_task
    }

    /// Makes one change, unless one before it has failed.
    fn make_next(&self) -> Option<Kind> {
        let mut progress = self.take_turn();
        let (kind, change) = self.begun().waiting.take_next()?;
        if progress.is_well() {
            progress.note(change());
        }
        Some(kind)
    }

    fn next_before(&self, before: Before) -> Option<DirectoryChange> {
        self.begun().waiting.next_before(before)
    }

    fn begun(&self) -> MutexGuard<'_, BegunChanges> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_turn(&self) -> MutexGuard<'_, Progress> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the log in `dir`; blocks.
///
/// # Errors
/// As [`segment_files::read`].
pub fn read(dir: &Path, applied: u64) -> Result<Option<RecoveredLog>, WalError> {
    segment_files::read(&DirFiles::new(dir), applied)
}

/// Bytes free on the file system of this directory; endless if it does not say. Blocks shortly.
fn room_in(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Reads a part of a segment whose frames are written, and leaves nothing of it in the page cache:
/// what is behind it there is yet to be written, past the cache. Blocks.
fn read_part(path: &Path, offset: u64, bytes: u64) -> std::io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::open(path)?;
    // Only advice: where it is not taken, the pages are read as they are.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    let mut part = vec![0; usize::try_from(bytes).map_err(std::io::Error::other)?];
    file.read_exact_at(&mut part, offset)?;
    let _ = rustix::fs::fadvise(&file, offset, NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed);
    Ok(part)
}

fn io(what: &'static str, path: &Path, source: std::io::Error) -> WalError {
    WalError::Io { what, path: path.to_owned(), source }
}

/// Bytes of the first segment of this process.
#[must_use]
pub fn first_segment_bytes(dir: &Path) -> u64 {
    let (whole, short) = (limits::SEGMENT_BYTES, limits::FIRST_SEGMENT_BYTES);
    segment_files::first_segment_bytes(&DirFiles::new(dir), whole, short)
}

/// Begins a start, before it is known which entries the state holds: reads the last segment, and
/// makes the file for the first one of this process, if there is room. Blocks.
#[must_use]
pub fn begin(dir: &Path) -> Option<ReadSegment> {
    let files = DirFiles::new(dir);
    let last = segment_files::read_last(&files);
    segment_files::prepare_next(&files, first_segment_bytes(dir), || false);
    last
}

/// Reads the log in `dir`, of which one segment may have been read; blocks.
///
/// # Errors
/// As [`segment_files::read`].
pub fn read_behind(
    dir: &Path,
    applied: u64,
    before: Option<ReadSegment>,
) -> Result<Option<RecoveredLog>, WalError> {
    segment_files::read_behind(&DirFiles::new(dir), applied, before)
}

/// Removes files that a process which is dead by now was preparing. Blocks.
///
/// # Errors
/// When the system refuses.
pub fn remove_leftovers(dir: &Path) -> std::io::Result<()> {
    segment_files::remove_leftovers(&DirFiles::new(dir))
}

/// Gives back the room that a dead process has taken and not used. Blocks.
///
/// # Errors
/// When the system refuses.
pub fn give_back_unused(dir: &Path, end: &LogEnd) -> std::io::Result<()> {
    segment_files::give_back_unused(&DirFiles::new(dir), end)
}

fn glommio_io(what: &'static str, path: &Path, error: glommio::GlommioError<()>) -> WalError {
    let source = match error {
        glommio::GlommioError::IoError(source) | glommio::GlommioError::EnhancedIoError { source, .. } => {
            source
        }
        other => std::io::Error::other(other.to_string()),
    };
    WalError::Io { what, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_done_after_a_failure() {
        let (changes, made) = (DirectoryChanges::default(), Arc::new(Mutex::new(Vec::new())));
        for (name, kind) in [("bad", Kind::Other), ("other", Kind::Other), ("gone", Kind::Removal)] {
            let made = Arc::clone(&made);
            let change: DirectoryChange = Box::new(move || {
                made.lock().unwrap().push(name);
                Err(io("making", Path::new(name), std::io::ErrorKind::Other.into()))
            });
            changes.begun().waiting.begin(kind, change);
        }
        let done = [changes.make_next(), changes.make_next(), changes.make_next(), changes.make_next()];
        assert_eq!(done, [Some(Kind::Other), Some(Kind::Other), Some(Kind::Removal), None]);
        assert_eq!(*made.lock().unwrap(), ["bad"]);
        assert!(!changes.has_more(), "what is left is not asked for again and again");
    }
}
