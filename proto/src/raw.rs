//! Messages and frames as bytes, for clients that measure servers or send what is not a message at all.

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::http2::hpack::literal;

/// An HTTP/2 frame as it is on the wire, whatever sense it makes.
///
/// # Panics
/// When the payload is longer than a frame can say.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a payload of a frame's length");
    let [0, length @ ..] = length.to_be_bytes() else { panic!("a payload of {length} bytes") };
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of a gRPC call that leaves no trace in the other side's table.
#[must_use]
pub fn call_block(path: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    literal(&mut block, b":path", path.as_bytes(), false);
    literal(&mut block, b"content-type", b"application/grpc", false);
    block
}

/// A codec that leaves messages as they are.
#[derive(Debug, Default, Clone, Copy)]
pub struct RawCodec;

impl Codec for RawCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
