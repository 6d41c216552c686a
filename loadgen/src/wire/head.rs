//! Request headers, and the headers and trailers of replies.

use revd_http2::hpack::{Decoder, indexed, literal};

use crate::wire::method::RpcMethod;

/// `:method: POST`, `:scheme: http` in the static table (RFC 7541, appendix A).
const POST: usize = 3;
const HTTP: usize = 6;
/// Where the table that a connection fills begins.
const DYNAMIC: usize = 62;

/// Encodes request headers: a field that was sent once on the connection is indexed from then on.
#[derive(Debug)]
pub struct CallHeads {
    authority: String,
    /// Paths in the dynamic table, oldest first; three common fields were inserted before them.
    known: Vec<RpcMethod>,
    is_common_known: bool,
}

impl CallHeads {
    /// For calls to this host.
    #[must_use]
    pub fn new(authority: &str) -> Self {
        Self { authority: authority.to_owned(), known: Vec::new(), is_common_known: false }
    }

    /// Appends the request headers of a call.
    pub fn put(&mut self, method: RpcMethod, block: &mut Vec<u8>) {
        indexed(block, POST);
        indexed(block, HTTP);
        let behind = self.known.len();
        match self.known.iter().position(|known| *known == method) {
            Some(at) => indexed(block, DYNAMIC + behind - 1 - at),
            None if self.is_common_known => {
                literal(block, b":path", method.path().as_bytes(), true);
                self.known.push(method);
            }
            // The first one goes in front of the common fields only in the block: it is not kept.
            None => literal(block, b":path", method.path().as_bytes(), false),
        }
        if self.is_common_known {
            for at in (0..3).rev() {
                indexed(block, DYNAMIC + self.known.len() + at);
            }
            return;
        }
        literal(block, b":authority", self.authority.as_bytes(), true);
        literal(block, b"content-type", b"application/grpc", true);
        literal(block, b"te", b"trailers", true);
        self.is_common_known = true;
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

    #[test]
    fn heads_mean_the_same_however_they_are_said() {
        let mut heads = CallHeads::new("host:1");
        let mut decoder = Decoder::default();
        for method in [
            RpcMethod::Put,
            RpcMethod::Range,
            RpcMethod::Put,
            RpcMethod::Txn,
            RpcMethod::Range,
            RpcMethod::Put,
        ] {
            let (mut block, mut fields) = (Vec::new(), Vec::new());
            heads.put(method, &mut block);
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            decoder.decode(&block, |name, value| fields.push((text(name), text(value)))).unwrap();
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
            assert_eq!(fields, expected);
        }
        let mut block = Vec::new();
        heads.put(RpcMethod::Put, &mut block);
        assert!(block.len() < 10, "{} bytes for a head that is known", block.len());
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
