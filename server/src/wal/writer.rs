//! Appending to the log: one direct, synchronous write per frame into a prepared segment. Opened with O_DSYNC, the file
//! makes a write durable before it completes: one request to the kernel where a write and a sync would be two
//! (docs/decisions/0004-log-writes.md has the figures). Where things go is decided in `layout`.

use std::path::{Path, PathBuf};

use glommio::io::DmaFile;

use crate::wal::layout::{Layout, LayoutConfig, Step};
use crate::wal::reader::{Recovered, segment_name};
use crate::wal::{FrameContent, WalError};

/// A prepared file that waits to become a segment.
const SPARE: &str = "spare.tmp";
/// A file that is being prepared.
const PREPARING: &str = "preparing.tmp";
/// Bytes written at a time while a file is prepared.
const ZEROS: usize = 1 << 20;

/// What the writer starts with.
#[derive(Debug)]
pub struct WalSeed {
    /// The log's directory.
    pub dir: PathBuf,
    /// How segments are made.
    pub layout: LayoutConfig,
    /// The log so far; without segments for a new one.
    pub log: Recovered,
    /// Writes are durable when they complete; only `--unsafe-no-fsync` turns it off.
    pub sync: bool,
}

/// Log core view: the log's files.
#[derive(Debug)]
pub struct WalWriter {
    dir: PathBuf,
    config: LayoutConfig,
    sync: bool,
    layout: Layout,
    /// The last segment; none in a log that was never written.
    file: Option<DmaFile>,
    preparing: bool,
}

impl WalWriter {
    /// Opens the end of the log.
    ///
    /// # Errors
    /// When a file cannot be opened.
    pub async fn open(seed: WalSeed) -> Result<Self, WalError> {
        let WalSeed { dir, layout: config, log, sync } = seed;
        let (mut file, mut file_bytes) = (None, 0);
        if let Some(last) = log.segments.back() {
            let path = dir.join(segment_name(last.number));
            let open = open_segment(&path, sync).await?;
            file_bytes =
                open.file_size().await.map_err(|error| glommio_io("asking the size of", &path, error))?;
            file = Some(open);
        }
        let layout = Layout::new(config, &log, file_bytes);
        Ok(Self { dir, config, sync, layout, file, preparing: false })
    }

    /// Makes a frame durable. After an error nothing is known about the log's end: the process must end.
    ///
    /// # Errors
    /// When the write failed.
    pub async fn append(&mut self, content: &FrameContent) -> Result<(), WalError> {
        for step in self.layout.append(content) {
            match step {
                Step::Create { segment, bytes } => {
                    self.file = Some(self.create(segment, bytes).await?);
                    self.preparing = false;
                }
                Step::Write { offset, bytes, .. } => {
                    let file = self.file.as_ref().expect("a segment is made before it is written");
                    write(file, offset, &bytes).await?;
                }
            }
        }
        self.prepare_in_time();
        Ok(())
    }

    async fn create(&self, segment: u64, bytes: u64) -> Result<DmaFile, WalError> {
        let (path, spare) = (self.dir.join(segment_name(segment)), self.dir.join(SPARE));
        let dir = self.dir.clone();
        let made = {
            let path = path.clone();
            let prepare_now = move || {
                if std::fs::metadata(&spare).map_or(0, |data| data.len()) != bytes {
                    prepare(&dir, bytes)?;
                }
                std::fs::rename(&spare, &path)?;
                std::fs::File::open(&dir)?.sync_all()
            };
            glommio::executor().spawn_blocking(prepare_now).await
        };
        made.map_err(|source| WalError::Io { what: "making", path: path.clone(), source })?;
        open_segment(&path, self.sync).await
    }

    /// Has the next segment's file ready before it is needed.
    fn prepare_in_time(&mut self) {
        if self.preparing || !self.layout.is_half_full() {
            return;
        }
        self.preparing = true;
        let (dir, bytes) = (self.dir.clone(), self.config.segment_bytes);
        glommio::spawn_local(async move {
            // A file that cannot be prepared now is made when it is needed; the error shows then.
            let _ = glommio::executor().spawn_blocking(move || prepare(&dir, bytes)).await;
        })
        .detach();
    }

    /// Everything up to this index is durable elsewhere: segments that hold nothing above may be used again.
    ///
    /// # Errors
    /// When a file cannot be renamed or removed.
    pub fn release(&mut self, index: u64) -> Result<(), WalError> {
        for segment in self.layout.release(index) {
            let (path, spare) = (self.dir.join(segment_name(segment)), self.dir.join(SPARE));
            let size = std::fs::metadata(&path).map_or(0, |data| data.len());
            let result = if !spare.exists() && size == self.config.segment_bytes {
                std::fs::rename(&path, &spare)
            } else {
                std::fs::remove_file(&path)
            };
            result.map_err(|source| WalError::Io { what: "releasing", path, source })?;
        }
        Ok(())
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
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(ZEROS).min(ZEROS);
        file.write_all(&zeros[..part])?;
        left -= part as u64;
    }
    file.sync_all()?;
    std::fs::rename(&path, dir.join(SPARE))
}

async fn open_segment(path: &Path, sync: bool) -> Result<DmaFile, WalError> {
    let mut options = glommio::io::OpenOptions::new();
    options.read(true).write(true);
    if sync {
        options.custom_flags(rustix::fs::OFlags::DSYNC.bits().cast_signed());
    }
    options.dma_open(path).await.map_err(|error| glommio_io("opening", path, error))
}

async fn write(file: &DmaFile, offset: u64, bytes: &[u8]) -> Result<(), WalError> {
    let mut buffer = file.alloc_dma_buffer(bytes.len());
    buffer.as_bytes_mut().copy_from_slice(bytes);
    let path = || file.path().map_or_else(PathBuf::new, |path| path.to_owned());
    let written =
        file.write_at(buffer, offset).await.map_err(|error| glommio_io("writing", &path(), error))?;
    if written == bytes.len() {
        return Ok(());
    }
    let source = std::io::Error::new(
        std::io::ErrorKind::WriteZero,
        format!("{written} of {} bytes were written", bytes.len()),
    );
    Err(WalError::Io { what: "writing", path: path(), source })
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
