//! Heads and trailers of replies, as header blocks.

use revd_http2::hpack::{self, DYNAMIC, indexed, literal};
use revd_member::error::Status;

use crate::net::http::PlainReply;

/// `:status: 200` in the static table.
const OK: usize = 8;

/// What the client's table holds of ours: `content-type` is the first thing we put
/// there, `grpc-status: 0` the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Blocks {
    /// Nothing yet.
    #[default]
    New,
    /// The content type.
    Head,
    /// Both: every good reply is three bytes of headers.
    Both,
    /// The client keeps no table.
    Never,
}

/// A block that is the same for every call.
type Block = smallvec::SmallVec<[u8; 32]>;

impl Blocks {
    /// The client's table has this size now.
    pub(super) fn table(&mut self, bytes: usize) {
        if bytes < hpack::TABLE_BYTES {
            *self = Self::Never;
        }
    }

    /// The head of a reply that is sent now.
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

    /// Head and good trailers that are sent together now, and how things stand when they are.
    pub(super) fn short(self) -> (Block, Block, Self) {
        let mut trailers = Vec::new();
        match self {
            Self::Both => {
                // The usual case, without building anything.
                return (Block::from_slice(&[0x88, 0xbf]), Block::from_slice(&[0xbe]), self);
            }
            Self::Never => literal(&mut trailers, b"grpc-status", b"0", false),
            Self::New | Self::Head => literal(&mut trailers, b"grpc-status", b"0", true),
        }
        let after = if self == Self::Never { self } else { Self::Both };
        (self.head_block(), Block::from_vec(trailers), after)
    }

    /// A reply without messages: the status travels in the head.
    pub(super) fn refusal(&mut self, status: &Status) -> Vec<u8> {
        let mut block = self.head().to_vec();
        put_status(&mut block, status);
        block
    }
}

/// The answer to a call whose head is wrong: not with HTTP's status 200.
#[must_use]
pub(super) fn rejection(http: &str, status: &Status) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, b":status", http.as_bytes(), false);
    literal(&mut block, b"content-type", b"application/grpc", false);
    put_status(&mut block, status);
    block
}

/// Trailers that may be sent at any later time: they do not lean on the table.
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

/// What a request is told whose head is longer than we read.
#[must_use]
pub(super) fn too_large() -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, b":status", b"431", false);
    block
}

/// The head of a plain reply.
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
    fn replies_say_the_same_in_ever_fewer_bytes() {
        const HEAD: &str = ":status=200 content-type=application/grpc";
        for start in [Blocks::New, Blocks::Never] {
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
            assert_eq!(bytes[2], if start == Blocks::New { 3 } else { 35 });
        }
    }
}
