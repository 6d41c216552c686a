//! Frames and header blocks as bytes, for load generators and for tests that break the protocol.

use crate::hpack::literal;

/// An HTTP/2 frame as it is on the wire; it need not be valid.
///
/// # Panics
/// When the payload is longer than a frame can say.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload of a frame's length");
    let [0, length @ ..] = length.to_be_bytes() else { panic!("a payload of {length} bytes") };
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The request headers of a gRPC call, without any entry for the peer's HPACK table.
#[must_use]
pub fn call_block(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    literal(&mut block, b":path", path.as_bytes(), false);
    literal(&mut block, b"content-type", b"application/grpc", false);
    block
}
