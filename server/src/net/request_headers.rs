//! Request headers: from header fields to what a call needs (RFC 9113, section 8.3, and the gRPC
//! protocol over it).

use std::rc::Rc;

use revd_http2::hpack::{Decoder, Malformed};
use revd_member::error::Error;
use revd_member::error::Status;

use crate::api::call::{CallerIdentity, Credentials, Metadata, Source};
use crate::api::method::{self, Method};
use crate::config::Served;
use crate::limits;
use crate::net::http;
use crate::secret::Secret;

/// Bytes that a field counts beside its name and value (RFC 9113, section 10.5.1).
const FIELD_OVERHEAD: usize = 32;

/// The request headers of a gRPC call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallHeaders {
    pub method: Method,
    pub metadata: Metadata,
    /// `grpc-timeout` in milliseconds from the call's arrival.
    pub timeout: Option<u64>,
    /// Messages may be compressed.
    pub gzip: bool,
}

/// The request headers of a plain HTTP request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlainHeaders {
    pub method: String,
    pub path: String,
    /// The requests that are answered where it came.
    pub served: Served,
    /// `content-length`, if the request has it.
    pub content_length: Option<u64>,
}

/// Decoded request headers.
#[derive(Debug)]
pub(super) enum RequestHeaders {
    /// A gRPC call.
    Call(CallHeaders),
    /// A gRPC call that is refused.
    Refused(Status),
    /// A call whose headers break the gRPC protocol: the HTTP status and the gRPC status of the
    /// answer.
    Rejected(&'static str, Status),
    /// A plain HTTP request.
    Plain(PlainHeaders),
    /// Malformed headers (RFC 9113, section 8.1.1): the stream must be reset.
    Malformed,
    /// Longer than `HEADER_LIST_BYTES_MAX`.
    TooLarge,
}

/// Decodes request headers, and remembers header blocks that it has decoded to a call.
#[derive(Debug)]
pub(super) struct HeaderDecoder {
    decoder: Decoder,
    bytes_max: usize,
    /// Of the certificate of the connection's client.
    common_name: Option<Rc<str>>,
    /// Where the connection comes from, and what is served there.
    way: (Source, Served),
    /// The caller of the last block that named one.
    last_caller: Credentials,
    seen: Vec<DecodedBlock>,
    /// The place in `seen` that is overwritten next.
    next: usize,
}

/// A header block already decoded to a call; valid while the HPACK table generation is unchanged.
#[derive(Debug)]
struct DecodedBlock {
    block: Box<[u8]>,
    generation: u64,
    head: CallHeaders,
}

impl HeaderDecoder {
    #[must_use]
    pub(super) fn new(bytes_max: usize, common_name: Option<Rc<str>>, way: (Source, Served)) -> Self {
        let (decoder, last_caller, seen) = (Decoder::default(), None, Vec::new());
        Self { decoder, bytes_max, common_name, way, last_caller, seen, next: 0 }
    }

    /// Decodes a header block. Every block of a connection must pass through the decoder, or the
    /// HPACK tables of both sides no longer agree.
    ///
    /// # Errors
    /// When the block cannot be decoded: the connection must end.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<RequestHeaders, Malformed> {
        let generation = self.decoder.generation();
        let is_known = |seen: &&DecodedBlock| seen.generation == generation && *seen.block == *block;
        if let Some(seen) = self.seen.iter().find(is_known) {
            return Ok(RequestHeaders::Call(seen.head.clone()));
        }
        let mut fields = HeaderFields { bytes_left: self.bytes_max, ..HeaderFields::default() };
        self.decoder.decode(block, |name, value| fields.add(name, value))?;
        let caller = fields.caller(self.common_name.as_ref(), &mut self.last_caller);
        let head = fields.head(caller, self.way);
        if let RequestHeaders::Call(head) = &head
            && self.decoder.generation() == generation
            && block.len() <= limits::HEAD_REMEMBERED_BYTES_MAX
        {
            let seen = DecodedBlock { block: block.into(), generation, head: head.clone() };
            if self.seen.len() < limits::HEADS_REMEMBERED {
                self.seen.push(seen);
            } else {
                self.seen[self.next] = seen;
                self.next = (self.next + 1) % limits::HEADS_REMEMBERED;
            }
        }
        Ok(head)
    }

    /// Decodes a header block whose fields have no meaning to us, such as trailers; false if it has
    /// fields that are forbidden there (section 8.1).
    ///
    /// # Errors
    /// As [`HeaderDecoder::read`].
    pub(super) fn skip(&mut self, block: &[u8]) -> Result<bool, Malformed> {
        let mut may_be = true;
        self.decoder.decode(block, |name, _| may_be &= !name.starts_with(b":"))?;
        Ok(may_be)
    }
}

/// The header fields of one request, as they are decoded.
#[derive(Debug, Default)]
struct HeaderFields {
    bytes_left: usize,
    is_too_large: bool,
    is_malformed: bool,
    has_regular: bool,
    method: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    has_scheme: bool,
    is_grpc: bool,
    /// The content type, if it is not gRPC's.
    content_type: Vec<u8>,
    bad_version: bool,
    /// Why the last bad field is refused, in grpc-go's words.
    bad_field: Option<String>,
    requires_leader: bool,
    /// The first `token`, and the first `authorization`.
    tokens: [Option<Secret>; 2],
    /// A JSON gateway passes the request on: the connection's certificate is the gateway's.
    is_of_gateway: bool,
    timeout: Option<u64>,
    content_length: Option<u64>,
    encoding: Option<String>,
}

impl HeaderFields {
    fn add(&mut self, name: &[u8], value: &[u8]) {
        match self.bytes_left.checked_sub(name.len() + value.len() + FIELD_OVERHEAD) {
            Some(left) => self.bytes_left = left,
            None => return self.is_too_large = true,
        }
        if let Some(pseudo) = name.strip_prefix(b":") {
            self.is_malformed |= self.has_regular || !self.add_pseudo(pseudo, value);
            return;
        }
        self.has_regular = true;
        let is_bad = |byte: &u8| byte.is_ascii_uppercase() || *byte <= b' ' || *byte >= 0x7f;
        self.is_malformed |= name.is_empty() || name.iter().any(is_bad);
        self.is_malformed |= value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
        match name {
            b"content-type" => {
                self.is_grpc = is_grpc(value);
                self.content_type = if self.is_grpc { Vec::new() } else { value.to_vec() };
            }
            b"te" => self.is_malformed |= value != b"trailers",
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                self.is_malformed = true;
            }
            b"content-length" => {
                self.content_length = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.is_malformed |= self.content_length.is_none();
            }
            b"grpc-timeout" => {
                self.timeout = timeout(value);
                if self.timeout.is_none() {
                    self.bad_field = Some(format!("malformed grpc-timeout: {}", bad_timeout(value)));
                }
            }
            b"grpc-encoding" => self.encoding = Some(String::from_utf8_lossy(value).into_owned()),
            b"grpcgateway-accept" => self.is_of_gateway = true,
            b"hasleader" => self.requires_leader = value == b"true",
            b"token" => self.tokens[0] = self.tokens[0].take().or_else(|| Some(value.to_vec().into())),
            b"authorization" => {
                self.tokens[1] = self.tokens[1].take().or_else(|| Some(value.to_vec().into()));
            }
            b"client-api-version" => self.bad_version = std::str::from_utf8(value).is_err(),
            _ if name.ends_with(b"-bin") => {
                if let Some(at) = bad_base64(value) {
                    let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                    let text = format!("malformed binary metadata {value:?} in header {name:?}");
                    self.bad_field = Some(format!("{text}: illegal base64 data at input byte {at}"));
                }
            }
            _ => {}
        }
    }

    /// The names that the caller gives itself. If they are those of the last one, they are shared,
    /// and what was found out about it.
    fn caller(&mut self, common_name: Option<&Rc<str>>, last: &mut Credentials) -> Credentials {
        let common_name = common_name.filter(|_| !self.is_of_gateway).cloned();
        let [token, authorization] = std::mem::take(&mut self.tokens);
        let token = token.or(authorization).map(|token| match token.expose().strip_prefix(b"Bearer ") {
            Some(bare) => bare.to_vec().into(),
            None => token,
        });
        if token.is_none() && common_name.is_none() {
            return None;
        }
        let caller = CallerIdentity::new(token, common_name);
        if last.as_deref() != Some(&caller) {
            *last = Some(Rc::new(caller));
        }
        last.clone()
    }

    /// Adds a pseudo header field; false if it is unknown or there twice.
    fn add_pseudo(&mut self, name: &[u8], value: &[u8]) -> bool {
        match name {
            b"method" => self.method.replace(value.to_vec()).is_none(),
            b"path" => !value.is_empty() && self.path.replace(value.to_vec()).is_none(),
            b"scheme" => !std::mem::replace(&mut self.has_scheme, true),
            b"authority" => true,
            _ => false,
        }
    }

    fn head(self, caller: Credentials, (source, served): (Source, Served)) -> RequestHeaders {
        if self.is_too_large {
            return RequestHeaders::TooLarge;
        }
        let (Some(method), Some(path)) = (self.method, self.path) else { return RequestHeaders::Malformed };
        if self.is_malformed || !self.has_scheme {
            return RequestHeaders::Malformed;
        }
        let path = String::from_utf8_lossy(&path).into_owned();
        let is_never_call = matches!(served, Served::Plain | Served::Metrics);
        if !self.is_grpc || is_never_call {
            let method = String::from_utf8_lossy(&method).into_owned();
            if is_never_call || (served == Served::All && http::is_served(served, &path)) {
                let content_length = self.content_length;
                return RequestHeaders::Plain(PlainHeaders { method, path, served, content_length });
            }
            let content_type = String::from_utf8_lossy(&self.content_type);
            let text = format!("invalid gRPC request content-type {content_type:?}");
            return RequestHeaders::Rejected("415", Status::invalid_argument(text));
        }
        if let Some(text) = self.bad_field {
            return RequestHeaders::Rejected("400", Status::internal(text));
        }
        if method != b"POST" {
            let method = String::from_utf8_lossy(&method);
            let text = format!("Received a HEADERS frame with :method {method:?} which should be POST");
            return RequestHeaders::Rejected("405", Status::internal(text));
        }
        if self.bad_version {
            return RequestHeaders::Refused(Error::InvalidClientApiVersion.into());
        }
        let gzip = match self.encoding.as_deref() {
            None | Some("identity") => false,
            Some("gzip") => true,
            Some(other) => {
                let text = format!("grpc: Decompressor is not installed for grpc-encoding \"{other}\"");
                return RequestHeaders::Refused(Status::unimplemented(text));
            }
        };
        let metadata = Metadata { source, requires_leader: self.requires_leader, caller };
        match method::find(&path) {
            Ok(method) => RequestHeaders::Call(CallHeaders { method, metadata, timeout: self.timeout, gzip }),
            Err(status) => RequestHeaders::Refused(status),
        }
    }
}

fn is_grpc(content_type: &[u8]) -> bool {
    content_type
        .strip_prefix(b"application/grpc")
        .is_some_and(|rest| rest.is_empty() || matches!(rest[0], b'+' | b';'))
}

/// Shortest timeout that is not over at once: a shorter one has passed before etcd looks at it.
const NANOSECONDS_MIN: u64 = 50_000;

/// Parses `grpc-timeout`, at most eight digits and a unit, to milliseconds. A part of a millisecond
/// is rounded up, since a read can be answered in it; less than `NANOSECONDS_MIN` is no time at
/// all.
fn timeout(value: &[u8]) -> Option<u64> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => number * 3_600_000,
        b'M' => number * 60_000,
        b'S' => number * 1_000,
        b'm' => number,
        b'u' => whole_milliseconds(number * 1_000),
        b'n' => whole_milliseconds(number),
        _ => return None,
    })
}

fn whole_milliseconds(nanoseconds: u64) -> u64 {
    if nanoseconds < NANOSECONDS_MIN { 0 } else { nanoseconds.div_ceil(1_000_000) }
}

/// Why a `grpc-timeout` is malformed, in grpc-go's words.
#[cold]
fn bad_timeout(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value);
    match value {
        [] | [_] => format!("transport: timeout string is too short: {text:?}"),
        [_, _, _, _, _, _, _, _, _, _, ..] => format!("transport: timeout string is too long: {text:?}"),
        [.., b'H' | b'M' | b'S' | b'm' | b'u' | b'n'] => {
            let digits = String::from_utf8_lossy(&value[..value.len() - 1]);
            format!("strconv.ParseUint: parsing {digits:?}: invalid syntax")
        }
        _ => format!("transport: timeout unit is not recognized: {text:?}"),
    }
}

/// The position at which a value is no base64, as Go's decoder counts it; a value whose length is a
/// multiple of four may be padded.
fn bad_base64(value: &[u8]) -> Option<usize> {
    let is_padded = value.len().is_multiple_of(4);
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let digits = value.iter().position(|byte| !is_digit(byte)).unwrap_or(value.len());
    let rest = &value[digits..];
    match (is_padded, digits % 4) {
        (_, 0) | (true, 2 | 3) | (false, 2 | 3) if rest.is_empty() => None,
        (true, 2) if rest == b"==" => None,
        (true, 3) if rest == b"=" => None,
        (true, 2) if rest.starts_with(b"=") => Some(digits + 1),
        (true, 3) if rest.starts_with(b"=") => Some(digits + 1),
        (_, part) if rest.is_empty() => Some(digits - part),
        _ => Some(digits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::method::Unary;
    use revd_http2::hpack::{indexed, literal};

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            literal(&mut block, name.as_bytes(), value.as_bytes(), false);
        }
        block
    }

    const PUT: [(&str, &str); 5] = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/etcdserverpb.KV/Put"),
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
    ];

    fn read(fields: &[(&str, &str)]) -> RequestHeaders {
        read_where(Served::All, fields)
    }

    fn read_where(served: Served, fields: &[(&str, &str)]) -> RequestHeaders {
        let mut heads = HeaderDecoder::new(4_000, None, (Source::default(), served));
        heads.read(&block(fields)).unwrap()
    }

    fn with(name: &'static str, value: &'static str) -> Vec<(&'static str, &'static str)> {
        PUT.iter().copied().chain([(name, value)]).collect()
    }

    fn caller(common_name: Option<&str>, fields: &[(&str, &str)]) -> Credentials {
        let way = (Source::default(), Served::All);
        let mut heads = HeaderDecoder::new(4_000, common_name.map(Rc::from), way);
        let read = [(); 2].map(|()| match heads.read(&block(fields)).unwrap() {
            RequestHeaders::Call(head) => head.metadata.caller,
            other => panic!("{other:?}"),
        });
        assert_eq!(read[0], read[1], "also of a block that was seen before");
        read[0].clone()
    }

    #[test]
    fn a_caller_is_named_by_its_token_and_by_its_certificate() {
        assert_eq!(caller(None, &PUT), None);
        let named = caller(None, &with("token", "t.7")).unwrap();
        assert_eq!(
            (named.token.as_ref().map(Secret::expose), &named.common_name),
            (Some(&b"t.7"[..]), &None)
        );
        let bearer = caller(None, &with("authorization", "Bearer t.7")).unwrap();
        assert_eq!(bearer.token, named.token);
        assert!(!format!("{named:?}").contains("t.7"), "a token is in no log");
        let named = caller(Some("root"), &PUT).unwrap();
        assert_eq!((&named.token, named.common_name.as_deref()), (&None, Some("root")));
        let named = caller(Some("root"), &with("token", "t.7")).unwrap();
        assert!(named.token.is_some() && named.common_name.is_some());
    }

    #[test]
    fn calls_of_a_connection_share_their_caller_while_it_is_the_same() {
        let mut heads = HeaderDecoder::new(4_000, None, (Source::default(), Served::All));
        let mut caller = |fields: &[(&str, &str)]| match heads.read(&block(fields)).unwrap() {
            RequestHeaders::Call(head) => head.metadata.caller,
            other => panic!("{other:?}"),
        };
        let first = caller(&with("token", "t.7")).unwrap();
        // A block that is not the same, as of calls with a time that is left to them.
        let timed = [with("token", "t.7"), vec![("grpc-timeout", "5S")]].concat();
        assert!(Rc::ptr_eq(&caller(&timed).unwrap(), &first));
        assert_eq!(caller(&PUT), None, "a call without a token has no caller");
        let other = caller(&with("token", "t.8")).unwrap();
        assert_eq!(other.token.as_ref().map(Secret::expose), Some(&b"t.8"[..]));
        assert!(!Rc::ptr_eq(&other, &first));
    }

    /// Row 86 of the bugs never to have (CVE-2018-16886): the certificate is the gateway's own.
    #[test]
    fn the_certificate_of_a_gateway_names_no_caller() {
        assert_eq!(caller(Some("root"), &with("grpcgateway-accept", "*/*")), None);
    }

    #[test]
    fn a_call_is_understood_and_recognised() {
        let mut heads = HeaderDecoder::new(4_000, None, (Source::default(), Served::All));
        let mut bytes = block(&with("grpc-timeout", "5S"));
        for _ in 0..3 {
            let RequestHeaders::Call(head) = heads.read(&bytes).unwrap() else { panic!("no call") };
            assert_eq!((head.method, head.timeout), (Method::Unary(Unary::Put), Some(5_000)));
        }
        assert_eq!(heads.seen.len(), 1);
        // A block that changes the table is not remembered: it decodes to other fields the next
        // time.
        literal(&mut bytes, b"x", b"y", true);
        heads.read(&bytes).unwrap();
        assert_eq!(heads.seen.len(), 1);
        let mut twice = block(&PUT);
        indexed(&mut twice, revd_http2::hpack::DYNAMIC);
        assert!(matches!(heads.read(&twice).unwrap(), RequestHeaders::Call(_)));
    }

    #[test]
    fn malformed_too_large_and_plain_requests_are_told_apart() {
        assert!(matches!(read(&PUT[..2]), RequestHeaders::Malformed), "no path");
        for (name, value) in [
            (":path", "/x"),
            (":new", "x"),
            ("Upper", "x"),
            ("te", "gzip"),
            ("connection", "close"),
            ("a", "b\r\n"),
        ] {
            assert!(matches!(read(&with(name, value)), RequestHeaders::Malformed), "{name}: {value}");
        }
        let long = "v".repeat(4_000);
        let fields: Vec<_> = PUT.iter().copied().chain([("x", long.as_str())]).collect();
        assert!(matches!(read(&fields), RequestHeaders::TooLarge));
        assert!(matches!(read(&with("grpc-encoding", "snappy")), RequestHeaders::Refused(_)));
        assert!(matches!(read(&PUT[..3]), RequestHeaders::Rejected("415", _)));
        let plain = [(":method", "GET"), (":scheme", "http"), (":path", "/health?serializable=true")];
        assert!(matches!(read(&plain), RequestHeaders::Plain(..)));
        assert!(matches!(read_where(Served::Calls, &plain), RequestHeaders::Rejected("415", _)));
        assert!(matches!(read_where(Served::Calls, &PUT), RequestHeaders::Call(_)));
        assert!(matches!(read_where(Served::Plain, &PUT), RequestHeaders::Plain(..)), "and not found");
    }

    #[test]
    fn timeouts_have_a_number_and_a_unit() {
        let read = |text: &str| timeout(text.as_bytes());
        assert_eq!(
            [read("1H"), read("2M"), read("3S"), read("4m")],
            [3_600_000, 120_000, 3_000, 4].map(Some)
        );
        assert_eq!([read("1500u"), read("0n"), read("1n"), read("99999999n")], [2, 0, 0, 100].map(Some));
        assert_eq!([read("49u"), read("50u"), read("49999n"), read("1000u")], [0, 1, 0, 1].map(Some));
        assert_eq!([read(""), read("S"), read("123456789S"), read("-1S"), read("1x")], [None; 5]);
    }
}
