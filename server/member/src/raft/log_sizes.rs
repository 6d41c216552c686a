//! How much of the disk the log takes, by index.

use std::collections::VecDeque;

/// Marks are apart by this part of the bytes that the log may take.
const MARKS: u64 = 256;

/// Log core view: the bytes of frames that still count.
#[derive(Debug, Default)]
pub(super) struct LogSizes {
    /// The highest index so far, and the bytes of frames since the mark before.
    marks: VecDeque<(u64, u64)>,
    bytes: u64,
    mark_bytes: u64,
}

impl LogSizes {
    /// Marks for a log that may take so many bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { mark_bytes: bytes_max / MARKS, ..Self::default() }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A frame follows: of so many bytes, with entries up to this one.
    pub(super) fn add(&mut self, last: u64, bytes: u64) {
        self.bytes += bytes;
        let last = self.marks.back().map_or(last, |(before, _)| last.max(*before));
        match self.marks.back_mut().filter(|(_, before)| before + bytes <= self.mark_bytes) {
            Some(mark) => *mark = (last, mark.1 + bytes),
            None => self.marks.push_back((last, bytes)),
        }
    }

    /// The index that leaves no more than so many bytes if everything up to it is released.
    pub(super) fn index_below(&self, bytes_max: u64) -> u64 {
        let mut bytes = self.bytes;
        let too_many = self.marks.iter().take_while(|(_, marked)| {
            let is_too_much = bytes > bytes_max;
            bytes -= marked;
            is_too_much
        });
        too_many.last().map_or(0, |(last, _)| *last)
    }

    /// Frames with nothing above this index do not count any more.
    pub(super) fn release(&mut self, index: u64) {
        while let Some((_, bytes)) = self.marks.pop_front_if(|(last, _)| *last <= index) {
            self.bytes -= bytes;
        }
    }

    /// The log begins again: only what follows counts.
    pub(super) fn clear(&mut self) {
        self.marks.clear();
        self.bytes = 0;
    }
}
