//! The files of the log: one direct, synchronous write per frame into a prepared segment. Opened
//! with O_DSYNC, a file makes a write durable before it completes: one request to the kernel where
//! a write and a sync would be two (docs/decisions/0004-log-writes.md has the figures).

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use glommio::io::DmaFile;
use revd_member::wal::WalError;
use revd_member::wal::disk::LogDisk;
use revd_member::wal::reader::{LogEnd, RecoveredLog, segment_name};
use revd_member::wal::segment_files;

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
    /// Segments in this directory.
    #[must_use]
    pub fn new(dir: PathBuf, sync: bool, reserve: Arc<Reserve>) -> Self {
        let room = Arc::new(AtomicU64::new(room_in(&dir)));
        Self { dir, sync, reserve, changes: Arc::default(), room }
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
        self.changes.begin(move || {
            let makes_room = || reserve.give_up("the log's next segment");
            segment_files::prepare_next(&DirFiles::new(&dir), bytes, makes_room);
            room.store(room_in(&dir), Ordering::Relaxed);
            Ok(())
        });
    }

    fn remove(&self, segment: u64, spare_bytes: Option<u64>) {
        let (dir, room) = (self.dir.clone(), Arc::clone(&self.room));
        self.changes.begin_removal(move || {
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
type DirectoryChange = Box<dyn FnOnce() -> Result<(), WalError> + Send>;

/// Changes of the directory: done on helper threads, one thing at a time, for two that are under
/// way at once would meet on the spare. After something has failed nothing more is done.
///
/// Segments that go may be hundreds, when the log was kept for a member that lagged behind: they go
/// one by one with pauses in between, and what the log needs to go on goes before them. Other
/// changes are made in the order in which they were begun.
#[derive(Default)]
struct DirectoryChanges {
    begun: Mutex<BegunChanges>,
    /// Held by the thread that changes the directory.
    turn: Mutex<DirectoryState>,
}

/// The changes that are to be made before another one.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    All,
    /// But for removals.
    Other,
}

/// A change that was made.
#[derive(Debug, PartialEq, Eq)]
enum Done {
    Removal,
    Other,
}

/// How the changes went so far.
#[derive(Default)]
enum DirectoryState {
    #[default]
    Well,
    /// A change in the background failed; the next caller is told.
    Failed(WalError),
    /// A caller was told of a failure.
    Told,
}

/// Changes to be made in the background.
#[derive(Default)]
struct BegunChanges {
    waiting: VecDeque<DirectoryChange>,
    /// Files that go, behind those.
    removals: VecDeque<DirectoryChange>,
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
            let mut outcome = changes.take_turn();
            while matches!(*outcome, DirectoryState::Well)
                && let Some(change) = changes.next(&before)
            {
                outcome.note(change());
            }
            match &*outcome {
                DirectoryState::Well => change(),
                DirectoryState::Failed(_) | DirectoryState::Told => Err(outcome.tell()),
            }
        };
        glommio::executor().spawn_blocking(change_now).await
    }

    /// Begins to do this in the background.
    fn begin(self: &Arc<Self>, change: impl FnOnce() -> Result<(), WalError> + Send + 'static) {
        self.begun().waiting.push_back(Box::new(change));
        self.go_on();
    }

    /// Begins to do this in the background, behind other things.
    fn begin_removal(self: &Arc<Self>, change: impl FnOnce() -> Result<(), WalError> + Send + 'static) {
        self.begun().removals.push_back(Box::new(change));
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
                if glommio::executor().spawn_blocking(move || now.do_next()).await == Done::Removal {
                    sleep(limits::SEGMENT_REMOVAL_INTERVAL).await;
                }
            }
        })
        .detach();
    }

    /// Whether a task has something to do; else there is none from now on.
    fn has_more(&self) -> bool {
        let mut begun = self.begun();
        begun.has_task = !(begun.waiting.is_empty() && begun.removals.is_empty());
        begun.has_task
    }

    /// Does one thing, a removal if nothing else waits.
    fn do_next(&self) -> Done {
        let mut outcome = self.take_turn();
        let next = self.begun().waiting.pop_front();
        let done = if next.is_some() { Done::Other } else { Done::Removal };
        let change = next.or_else(|| self.begun().removals.pop_front());
        if let (Some(change), DirectoryState::Well) = (change, &*outcome) {
            outcome.note(change());
        }
        done
    }

    fn next(&self, before: &Before) -> Option<DirectoryChange> {
        let mut begun = self.begun();
        let other = begun.waiting.pop_front();
        other.or_else(|| if *before == Before::All { begun.removals.pop_front() } else { None })
    }

    fn begun(&self) -> MutexGuard<'_, BegunChanges> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_turn(&self) -> MutexGuard<'_, DirectoryState> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirectoryState {
    fn note(&mut self, done: Result<(), WalError>) {
        if let Err(error) = done {
            *self = Self::Failed(error);
        }
    }

    fn tell(&mut self) -> WalError {
        match std::mem::replace(self, Self::Told) {
            Self::Failed(error) => error,
            Self::Well | Self::Told => {
                let source = std::io::Error::other("an earlier change of the log's directory failed");
                WalError::Io { what: "changing", path: PathBuf::new(), source }
            }
        }
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

    /// Changes that write down their names.
    fn changes(named: &[(&'static str, Done)], made: &Arc<Mutex<Vec<&'static str>>>) -> DirectoryChanges {
        let changes = DirectoryChanges::default();
        for (name, kind) in named {
            let (name, made) = (*name, Arc::clone(made));
            let change: DirectoryChange = Box::new(move || {
                made.lock().unwrap().push(name);
                if name == "bad" {
                    Err(io("making", Path::new(name), std::io::ErrorKind::Other.into()))
                } else {
                    Ok(())
                }
            });
            match kind {
                Done::Removal => changes.begun().removals.push_back(change),
                Done::Other => changes.begun().waiting.push_back(change),
            }
        }
        changes
    }

    #[test]
    fn segments_go_one_by_one_and_behind_what_the_log_needs() {
        let made = Arc::default();
        let named = [("first", Done::Removal), ("second", Done::Removal), ("prepared", Done::Other)];
        let changes = changes(&named, &made);
        assert_eq!(changes.do_next(), Done::Other);
        assert_eq!(*made.lock().unwrap(), ["prepared"]);
        assert_eq!(changes.do_next(), Done::Removal);
        assert_eq!(*made.lock().unwrap(), ["prepared", "first"]);
        assert!(changes.has_more());
        assert_eq!(changes.do_next(), Done::Removal);
        assert_eq!(*made.lock().unwrap(), ["prepared", "first", "second"]);
        assert!(!changes.has_more());
    }

    #[test]
    fn nothing_is_done_after_a_failure() {
        let made = Arc::default();
        let changes =
            changes(&[("bad", Done::Other), ("other", Done::Other), ("gone", Done::Removal)], &made);
        let done = [changes.do_next(), changes.do_next(), changes.do_next()];
        assert_eq!(done, [Done::Other, Done::Other, Done::Removal]);
        assert_eq!(*made.lock().unwrap(), ["bad"]);
        assert!(!changes.has_more(), "what is left is not asked for again and again");
    }
}
