//! The files of the log: one direct, synchronous write per frame into a prepared segment. Opened with O_DSYNC, a file
//! makes a write durable before it completes: one request to the kernel where a write and a sync would be two
//! (docs/decisions/0004-log-writes.md has the figures).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use glommio::io::DmaFile;

use crate::reserve::{Reserve, is_no_space};
use crate::wal::WalError;
use crate::wal::reader::segment_name;

/// A prepared file that waits to become a segment.
const SPARE: &str = "spare.tmp";
/// A file that is being prepared.
const PREPARING: &str = "preparing.tmp";
/// Bytes written at a time while a file is prepared.
const ZEROS: usize = 1 << 20;

/// Segment files, as little of them as the log needs. After any error but [`WalError::NoSpace`] nothing is known about
/// what is on the disk, and the process must end.
pub trait LogDisk: 'static {
    /// A segment open for writing.
    type File;

    /// Opens a segment; also its length in bytes.
    ///
    /// # Errors
    /// When the system refuses.
    fn open(&self, segment: u64) -> impl Future<Output = Result<(Self::File, u64), WalError>>;

    /// Makes a segment of so many bytes, zeros or those of an earlier use, under its name.
    ///
    /// # Errors
    /// [`WalError::NoSpace`], with nothing changed; else when the system refuses.
    fn create(&self, segment: u64, bytes: u64) -> impl Future<Output = Result<Self::File, WalError>>;

    /// Writes whole blocks; they are durable when this returns.
    ///
    /// # Errors
    /// When not everything was written.
    fn write(
        &self,
        file: &Self::File,
        offset: u64,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), WalError>>;

    /// Begins to make the file for the segment after this one, in the background.
    fn prepare(&self, bytes: u64);

    /// Takes a segment away that nobody needs any more; its file, if it has so many bytes, may become another segment.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove(&self, segment: u64, reusable_bytes: u64) -> Result<(), WalError>;
}

/// A directory of the file system.
#[derive(Debug)]
pub struct DirDisk {
    dir: PathBuf,
    /// Writes are durable when they complete; only `--unsafe-no-fsync` turns it off.
    sync: bool,
    /// Given up when there is no room to prepare a segment.
    reserve: Arc<Reserve>,
}

impl DirDisk {
    /// Segments in this directory.
    #[must_use]
    pub fn new(dir: PathBuf, sync: bool, reserve: Arc<Reserve>) -> Self {
        Self { dir, sync, reserve }
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

    async fn open(&self, segment: u64) -> Result<(DmaFile, u64), WalError> {
        let path = self.path(segment);
        let file = self.open_file(&path).await?;
        let bytes = file.file_size().await.map_err(|error| glommio_io("asking the size of", &path, error))?;
        Ok((file, bytes))
    }

    async fn create(&self, segment: u64, bytes: u64) -> Result<DmaFile, WalError> {
        let (dir, path) = (self.dir.clone(), self.path(segment));
        let make_now = {
            let path = path.clone();
            move || {
                let spare = dir.join(SPARE);
                if std::fs::metadata(&spare).map_or(0, |data| data.len()) != bytes {
                    prepare(&dir, bytes)?;
                }
                std::fs::rename(&spare, &path)?;
                std::fs::File::open(&dir)?.sync_all()
            }
        };
        let made = glommio::executor().spawn_blocking(make_now).await;
        made.map_err(|source| {
            if is_no_space(&source) {
                self.reserve.give_up("a segment of the log");
                return WalError::NoSpace { path: path.clone(), source };
            }
            WalError::Io { what: "making", path: path.clone(), source }
        })?;
        self.open_file(&path).await
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

    fn prepare(&self, bytes: u64) {
        let (dir, reserve) = (self.dir.clone(), Arc::clone(&self.reserve));
        let prepare_now = move || {
            if std::fs::metadata(dir.join(SPARE)).is_ok_and(|data| data.len() == bytes) {
                return Ok(()); // a segment that was let go of
            }
            let first = prepare(&dir, bytes);
            if first.as_ref().is_err_and(is_no_space) && reserve.give_up("the log's next segment") {
                return prepare(&dir, bytes);
            }
            first
        };
        glommio::spawn_local(async move {
            // A file that cannot be prepared now is made when it is needed; the error shows then.
            let _ = glommio::executor().spawn_blocking(prepare_now).await;
        })
        .detach();
    }

    fn remove(&self, segment: u64, reusable_bytes: u64) -> Result<(), WalError> {
        let (path, spare) = (self.path(segment), self.dir.join(SPARE));
        let bytes = std::fs::metadata(&path).map_or(0, |data| data.len());
        let result = if !spare.exists() && bytes == reusable_bytes {
            std::fs::rename(&path, &spare)
        } else {
            std::fs::remove_file(&path)
        };
        result.map_err(|source| WalError::Io { what: "releasing", path, source })
    }
}

/// Writes a file full of zeros, so that later syncs have no metadata to write, and calls it the spare. Blocks.
fn prepare(dir: &Path, bytes: u64) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = dir.join(PREPARING);
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let zeros = vec![0; ZEROS];
    let mut left = bytes;
    let filled = loop {
        let part = usize::try_from(left).unwrap_or(ZEROS).min(ZEROS);
        if part == 0 {
            break file.sync_all();
        }
        if let Err(error) = file.write_all(&zeros[..part]) {
            break Err(error);
        }
        left -= part as u64;
    };
    if let Err(error) = filled {
        // What was written of it must not take the last room. If it cannot go, the next attempt starts it anew.
        let _ = std::fs::remove_file(&path);
        return Err(error);
    }
    std::fs::rename(&path, dir.join(SPARE))
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
