//! The response encoder: response headers and trailers as header blocks.

use revd_http2::hpack::{self, DYNAMIC, indexed, literal};
use revd_member::error::Status;

use crate::net::plain::PlainReply;

/// `:status: 200` in the static table.
const OK: usize = 8;

/// Encodes response headers, by what the client's HPACK table holds: the first entry that we add is
/// `content-type`, the second `grpc-status: 0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ResponseEncoder {
    /// No entry of ours.
    #[default]
    New,
    /// The content type.
    Head,
    /// Both entries: the headers of a successful reply take three bytes.
    Both,
    /// The client's table is too small: no entries are added.
    Never,
}

/// A short header block, without an allocation.
type Block = smallvec::SmallVec<[u8; 32]>;

impl ResponseEncoder {
    /// Notes the smallest size that the client's table ever had.
    pub(super) fn table(&mut self, bytes: usize) {
        if bytes < hpack::TABLE_BYTES {
            *self = Self::Never;
        }
    }

    /// Response headers that are sent now.
    pub(super) fn head(&mut self) -> Block {
        let block = self.head_block();
        if *self == Self::New {
            *self = Self::Head;
        }
        block
    }

    fn head_block(self) -> Block {
        let mut block = Vec::new();
        indexed(&mut block, OK);
        match self {
            Self::New | Self::Never => {
                literal(&mut block, b"content-type", b"application/grpc", self == Self::New);
            }
            Self::Head => indexed(&mut block, DYNAMIC),
            Self::Both => indexed(&mut block, DYNAMIC + 1),
        }
        Block::from_vec(block)
    }

    /// Response headers and trailers of a successful reply, and the encoder to go on with once they
    /// are sent.
    pub(super) fn short(self) -> (Block, Block, Self) {
        let mut trailers = Vec::new();
        match self {
            Self::Both => {
                // The usual case: constants.
                return (Block::from_slice(&[0x88, 0xbf]), Block::from_slice(&[0xbe]), self);
            }
            Self::Never => literal(&mut trailers, b"grpc-status", b"0", false),
            Self::New | Self::Head => literal(&mut trailers, b"grpc-status", b"0", true),
        }
        let after = if self == Self::Never { self } else { Self::Both };
        (self.head_block(), Block::from_vec(trailers), after)
    }

    /// Response headers of a reply without messages, with its status (trailers-only).
    pub(super) fn refusal(&mut self, status: &Status) -> Vec<u8> {
        let mut block = self.head().to_vec();
        put_status(&mut block, status);
        block
    }
}

/// Response headers for a call whose request headers break the protocol: an HTTP status other than
/// 200.
#[must_use]
pub(super) fn rejection(http: &str, status: &Status) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, b":status", http.as_bytes(), false);
    literal(&mut block, b"content-type", b"application/grpc", false);
    put_status(&mut block, status);
    block
}

/// Trailers that may be sent at any later time: they use no table entries of ours.
#[must_use]
pub(super) fn trailers(result: &Result<(), Status>) -> Vec<u8> {
    let mut block = Vec::new();
    match result {
        Ok(()) => literal(&mut block, b"grpc-status", b"0", false),
        Err(status) => put_status(&mut block, status),
    }
    block
}

fn put_status(block: &mut Vec<u8>, status: &Status) {
    literal(block, b"grpc-status", (status.code() as i32).to_string().as_bytes(), false);
    if !status.message().is_empty() {
        literal(block, b"grpc-message", percent_encoded(status.message()).as_bytes(), false);
    }
}

/// `grpc-message` is UTF-8, percent-encoded where it is not printable ASCII.
fn percent_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b' '..=b'~').contains(&byte) && byte != b'%' {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Response headers for request headers that are too long.
#[must_use]
pub(super) fn too_large() -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, b":status", b"431", false);
    block
}

/// Response headers of a plain HTTP reply.
#[must_use]
pub(super) fn plain(reply: &PlainReply) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, b":status", reply.status.as_str().as_bytes(), false);
    for (name, value) in reply.headers() {
        literal(&mut block, name.as_bytes(), value.as_bytes(), false);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_http2::hpack::Decoder;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> String {
        let mut text = Vec::new();
        let field = |name: &[u8], value: &[u8]| text.push([name, b"=", value].concat());
        decoder.decode(block, field).unwrap();
        String::from_utf8(text.join(&b' ')).unwrap()
    }

    #[test]
    fn response_headers_shrink_as_the_table_fills() {
        const HEAD: &str = ":status=200 content-type=application/grpc";
        for start in [ResponseEncoder::New, ResponseEncoder::Never] {
            let (mut blocks, mut decoder) = (start, Decoder::default());
            let status = Status::not_found("5 % of \u{e4}");
            let refusal = blocks.refusal(&status);
            assert_eq!(
                decoded(&mut decoder, &refusal),
                format!("{HEAD} grpc-status=5 grpc-message=5 %25 of %C3%A4")
            );
            let mut bytes = Vec::new();
            for _ in 0..3 {
                let (head, trailers, after) = blocks.short();
                assert_eq!(decoded(&mut decoder, &head), HEAD);
                assert_eq!(decoded(&mut decoder, &trailers), "grpc-status=0");
                let later = super::trailers(&Ok(()));
                assert_eq!(decoded(&mut decoder, &later), "grpc-status=0");
                blocks = after;
                bytes.push(head.len() + trailers.len());
                assert_eq!(decoded(&mut decoder, &blocks.head()), HEAD);
            }
            assert_eq!(bytes[2], if start == ResponseEncoder::New { 3 } else { 35 });
        }
    }
}
