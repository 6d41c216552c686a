//! Frames: how messages are cut out of a stream of bytes.
//!
//! ```text
//! frame (all integers little-endian)
//!   0  u32  magic, and a check of the length: `mark_of`
//!   4  u32  CRC-32 of everything behind it
//!   8  u32  length of the payload
//!  12  payload: messages, as `codec.rs` draws them; none where a peer only shows that it lives
//! ```
//!
//! A connection carries the frames of one direction in order, and ends at the first byte that is
//! wrong: what follows could not be cut any more.

use bytes::{Buf as _, BufMut as _, Bytes};
use crc32fast::Hasher;

use crate::limits;

/// Bytes in front of the payload.
pub const FRAME_HEADER: usize = 12;
/// The payload's length and what follows it are covered by the checksum.
const CHECKED_FROM: usize = 8;

/// Why a stream cannot be cut into frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The sender speaks something else, or the length has changed on its way.
    #[error("bytes {0:08x} where a frame should begin")]
    Mark(u32),
    /// A frame that no member would send.
    #[error("a frame of {0} bytes, more than {1}")]
    TooLong(usize, usize),
    /// Bytes changed on their way.
    #[error("a frame of {0} bytes whose checksum is wrong")]
    Checksum(usize),
}

/// The first bytes of a frame with a payload of this length. A length that has changed on its way
/// is known at once: a longer one would be waited for, and swallow all frames until then, for as
/// long as the connection lives.
fn mark_of(payload: u32) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(b"rvdF");
    hasher.update(&payload.to_le_bytes());
    hasher.finalize()
}

/// Begins a frame at the end of `out`: [`finish`] follows when its payload stands behind it.
#[must_use]
pub fn begin(out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.resize(start + FRAME_HEADER, 0);
    start
}

/// Finishes the frame that begins at `start`.
///
/// # Panics
/// If its payload is longer than a frame may be.
pub fn finish(out: &mut [u8], start: usize) {
    let frame = &mut out[start..];
    let payload = frame.len() - FRAME_HEADER;
    assert!(payload <= limits::PEER_FRAME_BYTES_MAX, "a payload of {payload} bytes");
    let payload = u32::try_from(payload).expect("checked above");
    frame[..4].copy_from_slice(&mark_of(payload).to_le_bytes());
    frame[8..12].copy_from_slice(&payload.to_le_bytes());
    let crc = crc32fast::hash(&frame[CHECKED_FROM..]);
    frame[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// The header of a frame that claims a payload of this length, for tests of hostile bytes; its
/// checksum is wrong.
#[must_use]
pub fn header_of(payload: u32) -> [u8; FRAME_HEADER] {
    let mut header = [0; FRAME_HEADER];
    header[..4].copy_from_slice(&mark_of(payload).to_le_bytes());
    header[8..12].copy_from_slice(&payload.to_le_bytes());
    header
}

/// Cuts the bytes of one connection into frames.
#[derive(Debug)]
pub struct FrameReader {
    payload_max: usize,
    header: Vec<u8>,
    payload: Vec<u8>,
    hasher: Hasher,
}

impl Default for FrameReader {
    /// For frames of messages.
    fn default() -> Self {
        Self::new(limits::PEER_FRAME_BYTES_MAX)
    }
}

impl FrameReader {
    /// For frames whose payloads have at most so many bytes.
    #[must_use]
    pub fn new(payload_max: usize) -> Self {
        Self { payload_max, header: Vec::new(), payload: Vec::new(), hasher: Hasher::new() }
    }

    /// Bytes that have come of a payload that is not whole yet.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.payload.len()
    }

    /// Takes from the front of `bytes` up to the end of a frame; the payload of one that is
    /// whole now. Memory grows with the bytes that have come, not with the length that a frame
    /// claims.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is of no more use.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Bytes>, FrameError> {
        if self.header.len() < FRAME_HEADER {
            let missing = (FRAME_HEADER - self.header.len()).min(bytes.len());
            self.header.put_slice(&bytes[..missing]);
            bytes.advance(missing);
            if self.header.len() < FRAME_HEADER {
                return Ok(None);
            }
            let mark = self.header.as_slice().get_u32_le();
            if mark != mark_of((&self.header[8..12]).get_u32_le()) {
                return Err(FrameError::Mark(mark));
            }
            if self.claimed() > self.payload_max {
                return Err(FrameError::TooLong(self.claimed(), self.payload_max));
            }
            self.hasher.update(&self.header[CHECKED_FROM..]);
        }
        let claimed = self.claimed();
        let missing = (claimed - self.payload.len()).min(bytes.len());
        if self.payload.is_empty() {
            self.payload.reserve_exact(claimed.min(limits::PEER_FRAME_BYTES));
        }
        self.hasher.update(&bytes[..missing]);
        self.payload.put_slice(&bytes[..missing]);
        bytes.advance(missing);
        if self.payload.len() < claimed {
            return Ok(None);
        }
        let crc = (&self.header[4..8]).get_u32_le();
        if std::mem::take(&mut self.hasher).finalize() != crc {
            return Err(FrameError::Checksum(claimed));
        }
        self.header.clear();
        Ok(Some(std::mem::take(&mut self.payload).into()))
    }

    /// Length of the payload, by the header.
    fn claimed(&self) -> usize {
        (&self.header[8..12]).get_u32_le() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let start = begin(&mut out);
        out.extend_from_slice(payload);
        finish(&mut out, start);
        out
    }

    /// Every payload of these bytes, handed over in pieces of this size.
    fn cut(mut bytes: &[u8], piece: usize) -> Result<Vec<Bytes>, FrameError> {
        let (mut reader, mut payloads) = (FrameReader::default(), Vec::new());
        while !bytes.is_empty() {
            let mut front = &bytes[..piece.min(bytes.len())];
            bytes.advance(front.len());
            while !front.is_empty() {
                payloads.extend(reader.take(&mut front)?);
            }
        }
        Ok(payloads)
    }

    #[test]
    fn frames_are_cut_however_their_bytes_arrive() {
        let long = vec![7; 10_000];
        let stream = [frame(b"one"), frame(b""), frame(&long), frame(b"four")].concat();
        for piece in [1, 2, 3, 11, 12, 13, 500, stream.len()] {
            let payloads = cut(&stream, piece).unwrap();
            assert_eq!(payloads, [&b"one"[..], b"", &long, b"four"], "in pieces of {piece}");
        }
    }

    #[test]
    fn a_frame_that_is_cut_short_is_waited_for() {
        let whole = frame(b"payload");
        for len in 0..whole.len() {
            assert_eq!(cut(&whole[..len], 5), Ok(vec![]), "cut at {len}");
        }
    }

    #[test]
    fn every_flip_is_found() {
        let whole = [frame(b"payload"), frame(b"more")].concat();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bad = whole.clone();
                bad[at] ^= 1 << bit;
                assert!(cut(&bad, 7).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn a_frame_claims_no_memory_and_not_too_much() {
        let most = u32::try_from(limits::PEER_FRAME_BYTES_MAX).unwrap();
        let header = header_of(most);
        let mut reader = FrameReader::default();
        assert_eq!(reader.take(&mut &header[..]), Ok(None));
        assert_eq!(reader.take(&mut &[7; 100][..]), Ok(None));
        assert!(reader.payload.capacity() <= limits::PEER_FRAME_BYTES);
        let header = header_of(most + 1);
        let too_long = Err(FrameError::TooLong(most as usize + 1, most as usize));
        assert_eq!(FrameReader::default().take(&mut &header[..]), too_long);
        let small = FrameReader::new(6).take(&mut &frame(b"payload")[..]);
        assert_eq!(small, Err(FrameError::TooLong(7, 6)));
        let mut http = &b"GET /members HTTP/1.1\r\n"[..];
        assert!(matches!(FrameReader::default().take(&mut http), Err(FrameError::Mark(_))));
    }
}
