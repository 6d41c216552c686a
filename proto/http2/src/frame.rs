//! Frames (RFC 9113, section 4.1): nine bytes of head, then a payload.

use crate::error::{ErrorCode, Fault};

/// Bytes before a payload.
pub const HEAD_BYTES: usize = 9;
/// The longest payload that must be accepted, and the longest we do (section 4.2).
pub const FRAME_BYTES_MAX: usize = 16_384;

/// Kinds of frames.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const PRIORITY: u8 = 2;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub(crate) mod flag {
    /// Of DATA and HEADERS.
    pub(crate) const END_STREAM: u8 = 0x1;
    /// Of SETTINGS and PING.
    pub(crate) const ACK: u8 = 0x1;
    /// Of HEADERS and CONTINUATION.
    pub(crate) const END_HEADERS: u8 = 0x4;
    /// Of DATA and HEADERS.
    pub(crate) const PADDED: u8 = 0x8;
    /// Of HEADERS.
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings (section 6.5.2).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// A frame that has arrived in full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'i> {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: &'i [u8],
}

impl Frame<'_> {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Takes the next frame off the front; none while it has not arrived in full.
pub(crate) fn take<'i>(input: &mut &'i [u8]) -> Result<Option<Frame<'i>>, Fault> {
    let Some((head, rest)) = input.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [high, middle, low, kind, flags, stream @ ..] = *head;
    let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
    if length > FRAME_BYTES_MAX {
        return Err(Fault::new(ErrorCode::FrameSize, "a frame is longer than 16384 bytes"));
    }
    let Some((payload, behind)) = rest.split_at_checked(length) else { return Ok(None) };
    *input = behind;
    Ok(Some(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload }))
}

/// The header of a frame: length, kind, flags, stream.
pub(crate) fn head(length: usize, kind: u8, flags: u8, stream: u32) -> [u8; HEAD_BYTES] {
    let [_, high, middle, low] = u32::try_from(length).expect("a frame is short").to_be_bytes();
    let [s0, s1, s2, s3] = stream.to_be_bytes();
    [high, middle, low, kind, flags, s0, s1, s2, s3]
}

/// The payload without its padding (section 6.1).
pub(crate) fn unpadded<'i>(frame: &Frame<'i>) -> Result<&'i [u8], Fault> {
    if !frame.has(flag::PADDED) {
        return Ok(frame.payload);
    }
    let too_long = Fault::protocol("a frame has more padding than bytes");
    let (padding, rest) = frame.payload.split_first().ok_or(too_long)?;
    let length = rest.len().checked_sub(usize::from(*padding)).ok_or(too_long)?;
    Ok(&rest[..length])
}
