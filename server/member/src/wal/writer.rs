//! Appending to the log. Where things go is decided in `layout`, how they get there in `disk`.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::wal::disk::LogDisk;
use crate::wal::layout::{Layout, LayoutConfig, LogStep, ReleasedSegment};
use crate::wal::places::Place;
use crate::wal::reader::RecoveredLog;
use crate::wal::{FrameContent, LogEntry, WalError};

/// The log so far, and where and how it goes on.
#[derive(Debug)]
pub struct WalSeed<D> {
    /// The log's files.
    pub disk: D,
    /// How segments are made.
    pub layout: LayoutConfig,
    /// The log so far; without segments for a new one.
    pub log: RecoveredLog,
}

/// Why entries cannot be read from the segments.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The system refused.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The log lets go of them.
    #[error("segment {:016x}, which held entries {} to {}, was released", .0.frame.segment, .0.first, .0.last)]
    Released(Place),
    /// Something else is there.
    #[error(
        "segment {:016x} is damaged: it does not hold entries {} to {} at offset {} any more",
        .0.frame.segment, .0.first, .0.last, .0.offset
    )]
    Damaged(Place),
}

/// Log core view: the open end of the log.
pub struct WalWriter<D: LogDisk> {
    disk: Rc<D>,
    segment_bytes: u64,
    layout: Layout,
    /// The last segment; none before the first frame.
    file: Option<D::File>,
    /// Steps of the frame that is being appended.
    steps: VecDeque<LogStep>,
    is_next_prepared: bool,
    /// The first segment that is not released.
    first: Rc<Cell<u64>>,
}

impl<D: LogDisk> WalWriter<D> {
    /// Goes on behind the log so far, in a segment of its own.
    #[must_use]
    pub fn new(seed: WalSeed<D>) -> Self {
        let WalSeed { disk, layout: config, log } = seed;
        let layout = Layout::new(config, &log);
        let (segment_bytes, steps, first) = (config.segment_bytes, VecDeque::new(), Rc::default());
        let disk = Rc::new(disk);
        Self { disk, segment_bytes, layout, file: None, steps, is_next_prepared: false, first }
    }

    /// Makes a frame durable. After [`WalError::NoSpace`] nothing of it is written, and
    /// [`WalWriter::resume`] tries again.
    ///
    /// # Errors
    /// When the write failed: nothing is known about the log's end then, the process must end.
    pub async fn append(&mut self, content: &FrameContent) -> Result<(), WalError> {
        debug_assert!(self.steps.is_empty(), "one frame at a time");
        self.steps.extend(self.layout.append(content));
        self.resume().await
    }

    /// Goes on with the frame that found no room.
    ///
    /// # Errors
    /// As [`WalWriter::append`].
    pub async fn resume(&mut self) -> Result<(), WalError> {
        while let Some(step) = self.steps.front_mut() {
            match step {
                LogStep::Create { segment, bytes } => {
                    let mut made = self.disk.create(*segment, *bytes).await;
                    // A checkpoint makes room, but the segment before this one stays, and what a
                    // checkpoint would save may be applied only when this frame is written.
                    if matches!(made, Err(WalError::NoSpace { .. })) {
                        *bytes = self.layout.shrink();
                        made = self.disk.create(*segment, *bytes).await;
                    }
                    self.file = Some(made?);
                    self.is_next_prepared = false;
                }
                LogStep::Write { offset, bytes, .. } => {
                    let file = self.file.as_ref().expect("a segment is made before it is written");
                    self.disk.write(file, *offset, bytes).await?;
                }
            }
            self.steps.pop_front();
        }
        // Ready before it is needed.
        if !self.is_next_prepared && self.layout.is_nearly_full() {
            self.is_next_prepared = true;
            self.disk.prepare(self.segment_bytes);
        }
        Ok(())
    }

    /// Everything up to this index is durable elsewhere: segments that hold nothing above may be
    /// used again. They go in the background; the one before a segment that found no room yet
    /// stays.
    pub fn release(&mut self, index: u64) {
        for ReleasedSegment { segment, is_reusable } in self.layout.release(index, !self.steps.is_empty()) {
            self.first.set(segment + 1);
            self.disk.remove(segment, is_reusable.then_some(self.segment_bytes));
        }
    }

    /// Reads entries from `low` on and below `high`: some of them, and with the second one no more
    /// than these bytes. They are written by now, and the segments that hold them may be released
    /// while they are read.
    pub fn fetch(
        &self,
        low: u64,
        high: u64,
        bytes_max: u64,
    ) -> impl Future<Output = Result<Vec<LogEntry>, FetchError>> + use<D> {
        let (disk, plan) = (Rc::clone(&self.disk), self.layout.plan(low, high, bytes_max));
        let first = Rc::clone(&self.first);
        async move {
            let mut entries = Vec::new();
            for place in plan {
                let read = disk.read(place.frame.segment, place.offset, place.bytes).await;
                let decoded = read.map(|bytes| place.decode(&bytes));
                // Its file is another one's by now, or is gone.
                if !matches!(decoded, Ok(Some(_))) && place.frame.segment < first.get() {
                    return Err(FetchError::Released(place));
                }
                entries.extend(decoded?.ok_or(FetchError::Damaged(place))?);
            }
            Ok(entries)
        }
    }

    /// Bytes that the disk has room for beside the log, as far as it was looked at.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.disk.room()
    }

    /// Waits until nothing is done in the background any more.
    ///
    /// # Errors
    /// When a file could not be renamed or removed.
    pub async fn settle(&self) -> Result<(), WalError> {
        self.disk.settle().await
    }
}
