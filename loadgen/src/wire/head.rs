//! Request headers, and the headers and trailers of replies.

use std::sync::Arc;

use revd_http2::hpack::{Decoder, indexed, literal};

use crate::wire::method::RpcMethod;

/// `:method: POST`, `:scheme: http` and `https` in the static table (RFC 7541, appendix A).
const POST: usize = 3;
const HTTP: usize = 6;
const HTTPS: usize = 7;
/// Where the table that a connection fills begins.
const DYNAMIC: usize = 62;
/// Bytes that a peer keeps in its table, and those that an entry has beside its letters (sections
/// 4.1 and 4.2).
const TABLE_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 32;

/// A field that a connection may have sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallField {
    Authority,
    ContentType,
    Te,
    Path(RpcMethod),
    /// The token with this number.
    Token(u32),
}

/// Encodes request headers: a field that was sent once on the connection is indexed from then on,
/// as long as the peer's table has room.
#[derive(Debug)]
pub struct CallHeads {
    authority: String,
    is_secure: bool,
    /// In whose name calls are made, and how many tokens there were before.
    token: Option<Arc<str>>,
    tokens: u32,
    /// Fields in the dynamic table, oldest first, and the room that is left in it.
    known: Vec<CallField>,
    room: usize,
}

impl CallHeads {
    /// For calls to this host.
    #[must_use]
    pub fn new(authority: &str, is_secure: bool) -> Self {
        let (known, room) = (Vec::new(), TABLE_BYTES);
        Self { authority: authority.to_owned(), is_secure, token: None, tokens: 0, known, room }
    }

    /// The token of all calls that follow.
    pub fn set_token(&mut self, token: Option<Arc<str>>) {
        self.token = token;
        self.tokens += 1;
    }

    /// The token of calls.
    #[must_use]
    pub fn token(&self) -> Option<&Arc<str>> {
        self.token.as_ref()
    }

    /// Appends the request headers of a call.
    pub fn put(&mut self, method: RpcMethod, block: &mut Vec<u8>) {
        indexed(block, POST);
        indexed(block, if self.is_secure { HTTPS } else { HTTP });
        self.field(CallField::Path(method), block);
        self.field(CallField::Authority, block);
        self.field(CallField::ContentType, block);
        self.field(CallField::Te, block);
        if self.token.is_some() {
            self.field(CallField::Token(self.tokens), block);
        }
    }

    fn field(&mut self, field: CallField, block: &mut Vec<u8>) {
        if let Some(at) = self.known.iter().position(|known| *known == field) {
            return indexed(block, DYNAMIC + self.known.len() - 1 - at);
        }
        let (name, value): (&[u8], &[u8]) = match field {
            CallField::Path(method) => (b":path", method.path().as_bytes()),
            CallField::Authority => (b":authority", self.authority.as_bytes()),
            CallField::ContentType => (b"content-type", b"application/grpc"),
            CallField::Te => (b"te", b"trailers"),
            CallField::Token(_) => (b"token", self.token.as_deref().unwrap_or_default().as_bytes()),
        };
        let room = self.room.checked_sub(name.len() + value.len() + ENTRY_BYTES);
        literal(block, name, value, room.is_some());
        if let Some(room) = room {
            self.room = room;
            self.known.push(field);
        }
    }
}

/// Why a call failed: a gRPC status, or what happened to its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure(pub String);

/// The fields of response headers or trailers that decide the outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplyHead {
    http: Option<u16>,
    status: Option<u32>,
    message: String,
}

impl ReplyHead {
    /// Whether it ends well; `is_last` when nothing follows.
    ///
    /// # Errors
    /// With the gRPC or HTTP status of the call.
    pub fn outcome(&self, is_last: bool) -> Result<(), CallFailure> {
        match (self.status, self.http) {
            (Some(0), _) => Ok(()),
            (Some(code), _) => Err(CallFailure(format!("{}: {}", code_name(code), self.message))),
            (None, Some(http)) if http != 200 => {
                Err(CallFailure(format!("HTTP status {http} instead of a reply")))
            }
            (None, _) if is_last => Err(CallFailure("the reply ends without a status".to_owned())),
            (None, _) => Ok(()),
        }
    }
}

/// The HPACK table generation, a block, and its decoded fields.
type KnownBlock = (u64, Box<[u8]>, ReplyHead);

/// Decodes header blocks of replies; the last block of each kind is recognised while the HPACK
/// table is unchanged.
#[derive(Debug, Default)]
pub struct ReplyHeads {
    decoder: Decoder,
    /// Of heads and of trailers.
    known: [Option<KnownBlock>; 2],
}

impl ReplyHeads {
    /// Decodes a block; every block must be decoded, or the HPACK table is out of step.
    ///
    /// # Errors
    /// None when it cannot be decoded: the connection must end.
    pub fn read(&mut self, block: &[u8], is_last: bool) -> Option<Result<(), CallFailure>> {
        let generation = self.decoder.generation();
        let known = &mut self.known[usize::from(is_last)];
        if let Some((same, bytes, said)) = known
            && *same == generation
            && **bytes == *block
        {
            return Some(said.outcome(is_last));
        }
        let mut said = ReplyHead::default();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        self.decoder
            .decode(block, |name, value| match name {
                b":status" => said.http = text(value).parse().ok(),
                b"grpc-status" => said.status = text(value).parse().ok(),
                b"grpc-message" => said.message = unescaped(value),
                _ => {}
            })
            .ok()?;
        let outcome = said.outcome(is_last);
        if self.decoder.generation() == generation {
            *known = Some((generation, block.into(), said));
        }
        Some(outcome)
    }
}

/// A percent-encoded message.
fn unescaped(value: &[u8]) -> String {
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match rest.split_at_checked(2) {
            Some((digits, behind)) if *byte == b'%' && hex(digits).is_some() => {
                out.extend(hex(digits));
                rest = behind;
            }
            _ => out.push(*byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The name of a gRPC status code.
fn code_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(code as usize).copied().unwrap_or("unknown status")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |name, value| fields.push((text(name), text(value)))).unwrap();
        fields
    }

    #[test]
    fn heads_mean_the_same_however_they_are_said() {
        let mut heads = CallHeads::new("host:1", false);
        let mut decoder = Decoder::default();
        for method in [
            RpcMethod::Put,
            RpcMethod::Range,
            RpcMethod::Put,
            RpcMethod::Txn,
            RpcMethod::Range,
            RpcMethod::Put,
        ] {
            let mut block = Vec::new();
            heads.put(method, &mut block);
            let expected = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method.path()),
                (":authority", "host:1"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ];
            let expected: Vec<_> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(decoded(&mut decoder, &block), expected);
        }
        let mut block = Vec::new();
        heads.put(RpcMethod::Put, &mut block);
        assert!(block.len() < 10, "{} bytes for a head that is known", block.len());
    }

    /// However many there are, and however long: the peer's table has an end.
    #[test]
    fn tokens_change_and_are_said_in_full_where_the_table_is_full() {
        let mut heads = CallHeads::new("host:1", true);
        let mut decoder = Decoder::default();
        for number in 0..50_usize {
            let token = format!("{number}.{}", "t".repeat(number * 60));
            heads.set_token(Some(Arc::from(token.as_str())));
            for _ in 0..2 {
                let mut block = Vec::new();
                heads.put(RpcMethod::Put, &mut block);
                let fields = decoded(&mut decoder, &block);
                assert_eq!(fields.len(), 7);
                assert_eq!(fields[1], (":scheme".to_owned(), "https".to_owned()));
                assert_eq!(fields[6], ("token".to_owned(), token.clone()));
            }
        }
        heads.set_token(None);
        let mut block = Vec::new();
        heads.put(RpcMethod::Put, &mut block);
        assert_eq!(decoded(&mut decoder, &block).len(), 6);
    }

    #[test]
    fn errors_are_read() {
        let mut block = Vec::new();
        literal(&mut block, b":status", b"200", false);
        literal(&mut block, b"grpc-status", b"8", false);
        literal(&mut block, b"grpc-message", b"etcdserver: mvcc: 100%25 full", false);
        let outcome = ReplyHeads::default().read(&block, true).unwrap();
        assert_eq!(outcome, Err(CallFailure("RESOURCE_EXHAUSTED: etcdserver: mvcc: 100% full".to_owned())));
        let mut block = Vec::new();
        literal(&mut block, b":status", b"200", false);
        assert!(ReplyHeads::default().read(&block, false).unwrap().is_ok());
        assert!(ReplyHeads::default().read(&block, true).unwrap().is_err());
    }
}
