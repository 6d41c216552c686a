//! Frames: the bytes of the log.
//!
//! ```text
//! all integers little-endian; a frame starts at a multiple of 4096
//!  0  u32  "RWAL"
//!  4  u32  CRC-32 of everything from offset 8 to the payload's end
//!  8  u64  life: a random number of this use of the file, the same in all its frames. Bytes
//!          of an earlier use, or bytes a client has sent, never pass for a frame of this one
//! 16  u64  segment number
//! 24  u64  frame number: one more than the frame before, across segments
//! 32  u32  payload bytes
//! 36  u32  number of records
//! 40       payload: the records; then zeros to the next multiple of 4096
//!
//! record:  u8 kind, then
//!   0 segment header (the only record of a segment's first frame, synced before the second):
//!       u32 format version, 1 | u64 cluster id | u64 member id | hard state as in 1
//!       | u64 index and u64 term of the last entry before this segment
//!   1 hard state: u64 term | u64 vote | u64 commit
//!   2 entry: u64 index | u64 term | u8 raft entry type | u32 data bytes | data
//!   3 the log begins again: u64 index | u64 term of the last entry that a received state holds
//! ```

use bytes::{Buf, BufMut, Bytes};

use crate::cluster::Identity;
use crate::mutants::{self, Mutant};
use crate::wal::{BLOCK, FrameContent, HardState, LogEntry, LogRestart};

const MAGIC: u32 = u32::from_le_bytes(*b"RWAL");
const FORMAT: u32 = 1;
/// Bytes before the payload.
pub const FRAME_HEADER: usize = 40;
const ENTRY_HEADER: usize = 1 + 8 + 8 + 1 + 4;

/// The numbers that make a frame the one expected at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameId {
    /// This use of the file.
    pub life: u64,
    /// Segment number.
    pub segment: u64,
    /// LogFrame number.
    pub frame: u64,
}

/// The first record of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SegmentHeader {
    /// The cluster and member it belongs to.
    pub owner: Identity,
    /// Promises as of the frame before.
    pub hard_state: HardState,
    /// Index of the last entry before.
    pub last_index: u64,
    /// Its term.
    pub last_term: u64,
}

/// A decoded frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFrame {
    /// Which one.
    pub id: FrameId,
    /// The header, in a segment's first frame.
    pub header: Option<SegmentHeader>,
    /// Everything else.
    pub content: FrameContent,
    /// Bytes it takes in the file, a multiple of the block size.
    pub len: usize,
}

/// Bytes a frame with this content takes.
#[must_use]
pub fn encoded_len(content: &FrameContent) -> usize {
    let entries: usize = content.entries.iter().map(|entry| ENTRY_HEADER + entry.data.len()).sum();
    let restart = content.restart.map_or(0, |_| 17);
    (FRAME_HEADER + restart + content.hard_state.map_or(0, |_| 25) + entries).next_multiple_of(BLOCK)
}

/// Lays out a frame.
#[must_use]
pub fn encode(id: FrameId, content: &FrameContent) -> Vec<u8> {
    let mut out = begin(id, encoded_len(content));
    if let Some(restart) = content.restart {
        out.put_u8(3);
        out.put_u64_le(restart.index);
        out.put_u64_le(restart.term);
    }
    if let Some(state) = content.hard_state {
        out.put_u8(1);
        put_hard_state(&mut out, state);
    }
    for entry in &content.entries {
        out.put_u8(2);
        out.put_u64_le(entry.index);
        out.put_u64_le(entry.term);
        out.put_u8(entry.kind);
        out.put_u32_le(u32::try_from(entry.data.len()).expect("an entry is bounded"));
        out.put_slice(&entry.data);
    }
    let records = [content.restart.is_some(), content.hard_state.is_some()];
    finish(out, records.into_iter().filter(|is_there| *is_there).count() + content.entries.len())
}

/// Lays out a segment's first frame.
#[must_use]
pub fn encode_header(id: FrameId, header: &SegmentHeader) -> Vec<u8> {
    let mut out = begin(id, BLOCK);
    out.put_u8(0);
    out.put_u32_le(FORMAT);
    out.put_u64_le(header.owner.cluster);
    out.put_u64_le(header.owner.member);
    put_hard_state(&mut out, header.hard_state);
    out.put_u64_le(header.last_index);
    out.put_u64_le(header.last_term);
    finish(out, 1)
}

fn begin(id: FrameId, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.put_u32_le(MAGIC);
    out.put_u32_le(0);
    out.put_u64_le(id.life);
    out.put_u64_le(id.segment);
    out.put_u64_le(id.frame);
    out.put_u64_le(0);
    out
}

fn finish(mut out: Vec<u8>, records: usize) -> Vec<u8> {
    let payload = u32::try_from(out.len() - FRAME_HEADER).expect("a frame is bounded");
    out[32..36].copy_from_slice(&payload.to_le_bytes());
    out[36..40].copy_from_slice(&u32::try_from(records).expect("a frame is bounded").to_le_bytes());
    let crc = crc32fast::hash(&out[8..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn put_hard_state(out: &mut Vec<u8>, state: HardState) {
    out.put_u64_le(state.term);
    out.put_u64_le(state.vote);
    out.put_u64_le(state.commit);
}

/// Which frame the bytes begin with if they are one: a look at the front only.
#[must_use]
pub fn peek(bytes: &[u8]) -> Option<FrameId> {
    let mut head = bytes.get(..FRAME_HEADER)?;
    if head.get_u32_le() != MAGIC {
        return None;
    }
    head.advance(4);
    Some(FrameId { life: head.get_u64_le(), segment: head.get_u64_le(), frame: head.get_u64_le() })
}

/// Reads the frame at the start of `bytes`; none if there is none that is whole.
#[must_use]
pub fn decode(bytes: &Bytes) -> Option<LogFrame> {
    let id = peek(bytes)?;
    let crc = bytes.slice(4..).get_u32_le();
    let mut sizes = bytes.slice(32..);
    let (payload, records) = (sizes.get_u32_le() as usize, sizes.get_u32_le());
    let end = FRAME_HEADER.checked_add(payload)?;
    if crc32fast::hash(bytes.get(8..end)?) != crc && !mutants::is(Mutant::FrameChecksumIgnored) {
        return None;
    }
    let mut frame =
        LogFrame { id, header: None, content: FrameContent::default(), len: end.next_multiple_of(BLOCK) };
    let mut rest = bytes.slice(FRAME_HEADER..end);
    for _ in 0..records {
        decode_record(&mut rest, &mut frame)?;
    }
    rest.is_empty().then_some(frame)
}

fn decode_record(rest: &mut Bytes, frame: &mut LogFrame) -> Option<()> {
    match rest.try_get_u8().ok()? {
        0 => {
            if rest.try_get_u32_le().ok()? != FORMAT {
                return None;
            }
            let owner =
                Identity { cluster: rest.try_get_u64_le().ok()?, member: rest.try_get_u64_le().ok()? };
            let hard_state = take_hard_state(rest)?;
            let (last_index, last_term) = (rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?);
            frame.header = Some(SegmentHeader { owner, hard_state, last_index, last_term });
        }
        1 => frame.content.hard_state = Some(take_hard_state(rest)?),
        2 => {
            let (index, term) = (rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?);
            let (kind, len) = (rest.try_get_u8().ok()?, rest.try_get_u32_le().ok()? as usize);
            if rest.len() < len {
                return None;
            }
            frame.content.entries.push(LogEntry { index, term, kind, data: rest.split_to(len) });
        }
        3 => {
            let (index, term) = (rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?);
            frame.content.restart = Some(LogRestart { index, term });
        }
        _ => return None,
    }
    Some(())
}

fn take_hard_state(rest: &mut Bytes) -> Option<HardState> {
    Some(HardState {
        term: rest.try_get_u64_le().ok()?,
        vote: rest.try_get_u64_le().ok()?,
        commit: rest.try_get_u64_le().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (FrameId, FrameContent) {
        let entry = |index, size| LogEntry { index, term: 3, kind: 0, data: Bytes::from(vec![7; size]) };
        let content = FrameContent {
            restart: Some(LogRestart { index: 9, term: 2 }),
            hard_state: Some(HardState { term: 3, vote: 1, commit: 9 }),
            entries: vec![entry(10, 0), entry(11, 5000)],
        };
        (FrameId { life: 99, segment: 2, frame: 17 }, content)
    }

    #[test]
    fn frames_survive_the_round_trip() {
        let (id, content) = sample();
        let bytes = Bytes::from(encode(id, &content));
        assert_eq!(bytes.len(), encoded_len(&content));
        let frame = decode(&bytes).unwrap();
        assert_eq!((frame.id, frame.len, frame.header), (id, 8192, None));
        assert_eq!(frame.content, content);
        let header = SegmentHeader {
            owner: Identity { cluster: 1, member: 2 },
            hard_state: HardState { term: 4, vote: 5, commit: 6 },
            last_index: 7,
            last_term: 8,
        };
        let frame = decode(&encode_header(id, &header).into()).unwrap();
        assert_eq!((frame.header, frame.len), (Some(header), BLOCK));
    }

    /// The length is known before the frame is laid out: the next one begins there.
    #[test]
    fn a_frame_that_just_fits_its_blocks_takes_no_other_one() {
        for what in 0..4 {
            let (id, mut content) = sample();
            content.restart.take_if(|_| what % 2 == 0);
            content.hard_state.take_if(|_| what < 2);
            let mut lens = Vec::new();
            for size in 0..=BLOCK {
                content.entries.truncate(1);
                let data = Bytes::from(vec![7; size]);
                content.entries.push(LogEntry { index: 11, term: 3, kind: 0, data });
                let bytes = Bytes::from(encode(id, &content));
                assert_eq!(bytes.len(), encoded_len(&content), "{what}: {size} bytes of data");
                let frame = decode(&bytes).unwrap();
                assert_eq!((frame.len, &frame.content), (bytes.len(), &content));
                lens.push(bytes.len());
            }
            assert!(lens.is_sorted() && lens[0] == BLOCK && lens[BLOCK] == 2 * BLOCK, "{what}");
        }
    }

    #[test]
    fn no_cut_and_no_flip_passes_for_a_frame() {
        let (id, content) = sample();
        let bytes = encode(id, &content);
        let end = FRAME_HEADER + u32::from_le_bytes(bytes[32..36].try_into().unwrap()) as usize;
        for len in (0..end).step_by(13) {
            assert!(decode(&Bytes::copy_from_slice(&bytes[..len])).is_none());
        }
        for at in (0..end).filter(|at| *at < 200 || at % 37 == 0) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad.into()).is_none(), "byte {at}");
        }
    }
}
