//! Appending to the log: one direct, synchronous write per frame into a prepared segment. Opened with O_DSYNC, the file
//! makes a write durable before it completes: one request to the kernel where a write and a sync would be two
//! (docs/decisions/0004-log-writes.md has the figures).

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use glommio::io::DmaFile;

use crate::wal::frame::{self, FrameId, SegmentHeader};
use crate::wal::reader::{LogEnd, Recovered, SegmentInfo, segment_name};
use crate::wal::{BLOCK, FrameContent, HardState, Owner, WalError};

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
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// For the lives of new segments: random bits nobody outside knows.
    pub secret: u64,
    /// Whose log it is.
    pub owner: Owner,
    /// Raft's promises so far.
    pub hard_state: HardState,
    /// Index and term of the last entry.
    pub last: (u64, u64),
    /// The segments there are.
    pub segments: VecDeque<SegmentInfo>,
    /// Where the next frame goes; none for a new log.
    pub end: Option<LogEnd>,
    /// Writes are durable when they complete; only `--unsafe-no-fsync` turns it off.
    pub sync: bool,
}

impl WalSeed {
    /// Goes on behind a log that was read.
    pub fn set_recovered(&mut self, log: &Recovered) {
        self.owner = log.owner;
        self.hard_state = log.hard_state;
        self.last = log.entries.back().map_or(log.base, |entry| (entry.index, entry.term));
        self.segments.clone_from(&log.segments);
        self.end = Some(log.end);
    }
}

/// Log core view: the open end of the log.
#[derive(Debug)]
pub struct WalWriter {
    seed: WalSeed,
    file: Rc<DmaFile>,
    end: LogEnd,
    /// Bytes of the current file.
    file_bytes: u64,
    preparing: bool,
}

impl WalWriter {
    /// Opens the end of the log; a new log gets its first segment.
    ///
    /// # Errors
    /// When a file cannot be made or opened.
    pub async fn open(mut seed: WalSeed) -> Result<Self, WalError> {
        let file = match seed.end {
            Some(end) => open_segment(&seed.dir.join(segment_name(end.segment)), seed.sync).await?,
            None => {
                // Frame numbers go on across segments; the first segment begins with frame 1.
                let before = LogEnd { segment: 0, life: 0, offset: 0, frame: 1 };
                let (file, end) = new_segment(&seed, before, seed.segment_bytes).await?;
                seed.segments.push_back(SegmentInfo { number: end.segment, last_index: seed.last.0 });
                seed.end = Some(end);
                file
            }
        };
        let file_bytes =
            file.file_size().await.map_err(|error| glommio_io("asking the size of", &seed.dir, error))?;
        let end = seed.end.expect("set above");
        Ok(Self { seed, file: Rc::new(file), end, file_bytes, preparing: false })
    }

    /// Makes a frame durable. After an error nothing is known about the log's end: the process must end.
    ///
    /// # Errors
    /// When the write or the sync failed.
    pub async fn append(&mut self, content: &FrameContent) -> Result<(), WalError> {
        let len = frame::encoded_len(content) as u64;
        if self.end.offset + len > self.file_bytes {
            self.roll(len).await?;
        }
        let id = FrameId { life: self.end.life, segment: self.end.segment, frame: self.end.frame };
        write(&self.file, self.end.offset, &frame::encode(id, content)).await?;
        self.end.offset += len;
        self.end.frame += 1;
        if let Some(state) = content.hard_state {
            self.seed.hard_state = state;
        }
        if let Some(last) = content.entries.last() {
            self.seed.last = (last.index, last.term);
            self.seed.segments.back_mut().expect("there is a current segment").last_index = last.index;
        }
        self.prepare_in_time();
        Ok(())
    }

    /// Goes on in a new segment that has room for a frame of this length.
    async fn roll(&mut self, frame_len: u64) -> Result<(), WalError> {
        let size = self.seed.segment_bytes.max(frame_len + BLOCK as u64);
        let (file, end) = new_segment(&self.seed, self.end, size).await?;
        self.file = Rc::new(file);
        self.end = end;
        self.file_bytes = size;
        self.preparing = false;
        self.seed.segments.push_back(SegmentInfo { number: end.segment, last_index: self.seed.last.0 });
        Ok(())
    }

    /// Has the next segment's file ready before it is needed.
    fn prepare_in_time(&mut self) {
        if self.preparing || self.end.offset < self.file_bytes / 2 {
            return;
        }
        self.preparing = true;
        let (dir, bytes) = (self.seed.dir.clone(), self.seed.segment_bytes);
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
        while self.seed.segments.len() > 1 && self.seed.segments[0].last_index <= index {
            let segment = self.seed.segments.pop_front().expect("there are two");
            let (path, spare) = (self.seed.dir.join(segment_name(segment.number)), self.seed.dir.join(SPARE));
            let size = std::fs::metadata(&path).map_or(0, |data| data.len());
            let result = if !spare.exists() && size == self.seed.segment_bytes {
                std::fs::rename(&path, &spare)
            } else {
                std::fs::remove_file(&path)
            };
            result.map_err(|source| WalError::Io { what: "releasing", path, source })?;
        }
        Ok(())
    }
}

/// Makes the segment after `before`, its header durable.
async fn new_segment(seed: &WalSeed, before: LogEnd, bytes: u64) -> Result<(DmaFile, LogEnd), WalError> {
    let number = before.segment + 1;
    let (path, spare) = (seed.dir.join(segment_name(number)), seed.dir.join(SPARE));
    let dir = seed.dir.clone();
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
    let file = open_segment(&path, seed.sync).await?;
    // Unknown to clients and different for each segment: a good mix of secret and number is all it takes.
    let life = (seed.secret ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ seed.secret;
    let header = SegmentHeader {
        owner: seed.owner,
        hard_state: seed.hard_state,
        last_index: seed.last.0,
        last_term: seed.last.1,
    };
    let id = FrameId { life, segment: number, frame: before.frame };
    write(&file, 0, &frame::encode_header(id, &header)).await?;
    Ok((file, LogEnd { segment: number, life, offset: BLOCK as u64, frame: before.frame + 1 }))
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
