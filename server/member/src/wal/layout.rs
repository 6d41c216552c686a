//! Where frames go: segments and offsets, decided apart from doing, so that crashes can be
//! simulated.

use std::collections::VecDeque;

use crate::cluster::Identity;
use crate::limits;
use crate::mutants::{self, Mutant};
use crate::wal::frame::{self, FrameId, SegmentHeader};
use crate::wal::places::{Place, Places};
use crate::wal::reader::{LogEnd, RecoveredLog, SegmentInfo};
use crate::wal::{BLOCK, FrameContent, HardState};

/// A change of a segment's file. Each step is durable before the next one is done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum LogStep {
    /// Make this segment from a file that is full of zeros, or of an earlier use.
    Create {
        /// Its number.
        segment: u64,
        /// Its length.
        bytes: u64,
    },
    /// Write here.
    Write {
        /// The segment.
        segment: u64,
        /// Where in it.
        offset: u64,
        /// Whole blocks.
        bytes: Vec<u8>,
    },
}

/// A segment whose entries are all durable elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReleasedSegment {
    /// Its number.
    pub segment: u64,
    /// Its file may become another segment. That of an earlier process may not: a write of that
    /// process can still be under way, and would land in the new segment.
    pub is_reusable: bool,
}

/// The size of segments, and the secret of their lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutConfig {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes of the first segment of a process: a member alone answers nothing before it is made,
    /// and the one behind it is prepared meanwhile.
    pub first_segment_bytes: u64,
    /// For the lives of new segments: random bits that clients do not know.
    pub secret: u64,
}

/// Log core view: the open end of the log.
///
/// A process never writes to a segment of an earlier one: the earlier one's last write may still be
/// under way, although no process waits for it, and land after the log was read. So the first frame
/// goes to a new segment, and its header says where the log ended when it was read.
#[derive(Debug, Clone)]
pub struct Layout {
    config: LayoutConfig,
    /// Segments up to here are those of earlier processes.
    inherited: u64,
    owner: Identity,
    hard_state: HardState,
    /// Index and term of the last entry.
    last: (u64, u64),
    /// Oldest first.
    segments: VecDeque<SegmentInfo>,
    end: LogEnd,
    /// Bytes of the last segment's file; 0 while it is not ours.
    file_bytes: u64,
    places: Places,
}

impl Layout {
    /// Goes on behind a log that was read; a new one has no segments.
    #[must_use]
    pub fn new(config: LayoutConfig, log: &RecoveredLog) -> Self {
        Self {
            config,
            inherited: log.end.segment,
            owner: log.owner,
            hard_state: log.hard_state,
            last: log.entries.back().map_or(log.base, |entry| (entry.index, entry.term)),
            segments: log.segments.clone(),
            end: log.end,
            file_bytes: 0,
            places: log.places.clone(),
        }
    }

    /// Three quarters of the last segment are used, or it is the short one that a process begins
    /// with: the next one is to be prepared, unless one was let go of by now.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        let is_short = self.end.segment == self.inherited + 1
            && (self.config.first_segment_bytes..self.config.segment_bytes).contains(&self.file_bytes);
        self.file_bytes > 0 && (is_short || self.end.offset >= self.file_bytes / 4 * 3)
    }

    /// The steps that make a frame durable.
    pub fn append(&mut self, content: &FrameContent) -> Vec<LogStep> {
        let len = frame::encoded_len(content) as u64;
        let mut steps = Vec::with_capacity(1);
        if self.end.offset + len > self.file_bytes {
            self.roll(len, &mut steps);
        }
        let id = FrameId { life: self.end.life, segment: self.end.segment, frame: self.end.frame };
        self.places.add(id, self.end.offset, len, content);
        let bytes = frame::encode(id, content);
        steps.push(LogStep::Write { segment: self.end.segment, offset: self.end.offset, bytes });
        self.end.offset += len;
        self.end.frame += 1;
        if let Some(state) = content.hard_state {
            self.hard_state = state;
        }
        let restart = content.restart.map(|restart| (restart.index, restart.term));
        if let Some(last) = content.entries.last().map(|last| (last.index, last.term)).or(restart) {
            self.last = last;
            self.segments.back_mut().expect("there is a segment now").last_index = last.0;
        }
        steps
    }

    /// Goes on in a new segment that has room for a frame of this length.
    fn roll(&mut self, frame_len: u64, steps: &mut Vec<LogStep>) {
        let segment = self.end.segment + 1;
        let LayoutConfig { segment_bytes, first_segment_bytes, .. } = self.config;
        let usual = if self.file_bytes == 0 { first_segment_bytes } else { segment_bytes };
        let bytes = usual.max(frame_len + BLOCK as u64);
        // Unknown to clients and different for each segment: a good mix of secret and number is all
        // it takes.
        let secret = self.config.secret;
        let life = (secret ^ segment).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ secret;
        let header = SegmentHeader {
            owner: self.owner,
            hard_state: if mutants::is(Mutant::SegmentHeaderWithoutHardState) {
                HardState::default()
            } else {
                self.hard_state
            },
            last_index: self.last.0,
            last_term: self.last.1,
        };
        let id = FrameId { life, segment, frame: self.end.frame };
        steps.push(LogStep::Create { segment, bytes });
        steps.push(LogStep::Write { segment, offset: 0, bytes: frame::encode_header(id, &header) });
        self.end = LogEnd { segment, life, offset: BLOCK as u64, frame: self.end.frame + 1 };
        self.file_bytes = bytes;
        self.segments.push_back(SegmentInfo { number: segment, last_index: self.last.0, bytes });
    }

    /// The last segment, which is not made yet, is to be no larger than it must be; its bytes.
    pub fn shrink(&mut self) -> u64 {
        self.file_bytes = self.file_bytes.min(self.end.offset.max(limits::SEGMENT_BYTES_MIN));
        self.file_bytes
    }

    /// Everything up to this index is durable elsewhere: the segments that hold nothing above are
    /// released. The last segment that is there always stays, for it says where the log ends: while
    /// the one behind it waits to be made (`is_waiting`), two are kept.
    pub fn release(&mut self, index: u64, is_waiting: bool) -> Vec<ReleasedSegment> {
        let kept = 1 + usize::from(is_waiting);
        let index = index + u64::from(mutants::is(Mutant::SegmentReleasedEarly));
        let mut released = Vec::new();
        while self.segments.len() > kept && self.segments[0].last_index <= index {
            released.extend(self.segments.pop_front().map(|segment| ReleasedSegment {
                segment: segment.number,
                is_reusable: segment.number > self.inherited || mutants::is(Mutant::FormerSegmentReused),
            }));
        }
        if let Some(first) = self.segments.front().filter(|_| !released.is_empty()) {
            self.places.release(first.number);
        }
        released
    }

    /// Where entries from `low` on and below `high` are, if they are written: some of them, and
    /// with the second one no more than these bytes.
    #[must_use]
    pub fn plan(&self, low: u64, high: u64, bytes_max: u64) -> Vec<Place> {
        self.places.plan(low, high, bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;

    use super::*;
    use crate::wal::LogEntry;
    use crate::wal::birth::empty_log;
    use crate::wal::reader;

    const CONFIG: LayoutConfig =
        LayoutConfig { segment_bytes: 3 * BLOCK as u64, first_segment_bytes: 3 * BLOCK as u64, secret: 7 };
    const STATE: HardState = HardState { term: 5, vote: 2, commit: 1 };

    fn append(layout: &mut Layout, index: u64, hard_state: Option<HardState>) -> Vec<LogStep> {
        let entries = vec![LogEntry { index, term: 5, kind: 0, data: Bytes::from_static(b"data") }];
        layout.append(&FrameContent { hard_state, entries, ..FrameContent::default() })
    }

    /// The oldest segments are let go of, and with them the frames that said it last.
    #[test]
    fn each_segment_says_the_term_and_the_vote_that_its_frames_go_on_from() {
        let mut layout = Layout::new(CONFIG, &empty_log(Identity { cluster: 1, member: 2 }));
        let mut last = Vec::new();
        for index in 2..9 {
            for step in append(&mut layout, index, (index == 2).then_some(STATE)) {
                match step {
                    LogStep::Create { bytes, .. } => last = vec![0; usize::try_from(bytes).unwrap()],
                    LogStep::Write { offset, bytes, .. } => {
                        let at = usize::try_from(offset).unwrap();
                        last[at..at + bytes.len()].copy_from_slice(&bytes);
                    }
                }
            }
        }
        let files = [(layout.end.segment, Bytes::from(last))];
        let log = reader::assemble(Path::new("wal"), &files).unwrap().unwrap();
        assert_eq!((log.hard_state, log.last()), (STATE, 8));
    }

    #[test]
    fn a_process_begins_with_a_short_segment_and_prepares_a_whole_one_at_once() {
        let config = LayoutConfig { segment_bytes: 8 * BLOCK as u64, ..CONFIG };
        let mut layout = Layout::new(config, &empty_log(Identity { cluster: 1, member: 2 }));
        assert!(!layout.is_nearly_full(), "there is none");
        let mut made = Vec::new();
        for index in 2..13 {
            for step in append(&mut layout, index, None) {
                if let LogStep::Create { segment, bytes } = step {
                    made.push((segment, bytes / BLOCK as u64));
                }
            }
            // A header, and a frame for each entry: two in the first one, seven in each other.
            let is_prepared = [2, 3, 8, 9, 10].contains(&index);
            assert_eq!(layout.is_nearly_full(), is_prepared, "entry {index}");
        }
        assert_eq!(made, [(1, 3), (2, 8), (3, 8)]);
        // One that was made as small as can be, on a full disk, is no such segment.
        let mut layout = Layout::new(
            LayoutConfig { segment_bytes: 16 << 20, first_segment_bytes: 1 << 20, secret: 7 },
            &empty_log(Identity { cluster: 1, member: 2 }),
        );
        drop(append(&mut layout, 2, None));
        assert!(layout.is_nearly_full());
        assert_eq!(layout.shrink(), limits::SEGMENT_BYTES_MIN);
        assert!(!layout.is_nearly_full());
    }

    /// Its last write may be under way still.
    #[test]
    fn a_segment_of_an_earlier_process_does_not_become_another_one() {
        let mut before = Layout::new(CONFIG, &empty_log(Identity { cluster: 1, member: 2 }));
        (2..9).for_each(|index| drop(append(&mut before, index, None)));
        let log = RecoveredLog {
            segments: before.segments.clone(),
            end: before.end,
            base: before.last,
            ..empty_log(Identity { cluster: 1, member: 2 })
        };
        let inherited = before.end.segment;
        let mut layout = Layout::new(CONFIG, &log);
        (9..19).for_each(|index| drop(append(&mut layout, index, None)));
        let released = layout.release(18, false);
        let own = released.iter().filter(|it| it.segment > inherited).count();
        assert!(own > 1 && released.len() > own + 1, "{released:?}");
        assert!(released.iter().all(|it| it.is_reusable == (it.segment > inherited)), "{released:?}");
    }
}
