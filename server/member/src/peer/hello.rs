//! The first words of a connection: the dialer says who it is and what it wants, the listener
//! agrees or refuses, before anything else is read.
//!
//! ```text
//! both (all integers little-endian; up to the length the same in every version)
//!   0  [8]  magic
//!   8  u32  CRC-32 of everything behind it
//!  12  u8   length of what follows
//!  13  u8   version of the protocol
//! hello
//!  14  u8   what the connection is for, by the numbers of `Purpose`
//!  15  u64  cluster id
//!  23  u64  member id of the dialer
//!  31  u64  member id that it wants to speak to
//!  39  u64  boot number of the dialer
//!  47  u8   length of the next part
//!  48  where the dialer listens for its peers, URLs with commas between them
//!      server version of the dialer, as text
//! answer
//!  14  u8   0 for agreed, or why not, by the numbers of `Refusal`
//!  15  u64  cluster id
//!  23  u64  member id
//!  31  u64  boot number
//!  39  server version, as text
//! ```

use bytes::{Buf, BufMut as _};

use crate::cluster::Identity;

/// The version of the protocol that this program speaks: another one with any change of the bytes
/// that members write to each other.
pub const PROTOCOL: u8 = 3;
const HELLO_MAGIC: [u8; 8] = *b"revdpeer";
const ANSWER_MAGIC: [u8; 8] = *b"revdback";
/// The bytes that say how many follow.
const PREFIX: usize = 8 + 4 + 1;
/// Bytes of the longest hello or answer.
pub const HELLO_BYTES_MAX: usize = PREFIX + u8::MAX as usize;
/// Bytes of a server's version.
const VERSION_BYTES_MAX: usize = 32;
/// Bytes of the URLs together: the rest of a hello.
const URLS_BYTES_MAX: usize = u8::MAX as usize - HELLO_FRONT - VERSION_BYTES_MAX;
/// URLs of one member.
const URLS_MAX: usize = 4;
/// Bytes of a hello between its prefix and its URLs.
const HELLO_FRONT: usize = 2 + 4 * 8 + 1;

/// The use of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Messages, from the dialer to the listener.
    Messages = 1,
    /// One snapshot, from the dialer to the listener.
    Snapshot = 2,
}

/// The dialer's first words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// For what it dials.
    pub purpose: Purpose,
    /// The dialer and its cluster.
    pub from: Identity,
    /// The member that it wants to speak to.
    pub to: u64,
    /// Changes at every start of the dialer.
    pub boot: u64,
    /// Where it listens for its peers, as far as there is room: a listener that does not know it
    /// answers there.
    pub urls: Vec<String>,
    /// The version of its program.
    pub version: String,
}

/// The listener's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Why the connection is of no use, unless the listener agrees.
    pub refusal: Option<Refusal>,
    /// The version of the protocol that the listener speaks.
    pub protocol: u8,
    /// The listener and its cluster.
    pub from: Identity,
    /// Changes at every start of the listener.
    pub boot: u64,
    /// The version of its program.
    pub version: String,
}

/// Why a listener refuses a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refusal {
    /// Another version of the protocol.
    #[error("it speaks another version of the protocol")]
    Protocol = 1,
    /// Another cluster.
    #[error("it is a member of another cluster")]
    Cluster = 2,
    /// The dialer meant another member: an address changed hands.
    #[error("it is another member than the one that was meant")]
    Member = 3,
    /// The dialer is no member any more.
    #[error("the dialer was removed from the cluster")]
    Removed = 4,
    /// The listener has as many connections as it takes, or no use for this one.
    #[error("it takes no such connection now")]
    Unwanted = 5,
    /// The dialer calls itself what the listener is called.
    #[error("it has the same member id as the dialer")]
    SameMember = 6,
}

/// Why bytes are no hello or answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// No member of this program's kind.
    #[error("it does not speak the protocol of revd's peers")]
    Foreign,
    /// Bytes changed on their way.
    #[error("its first words are damaged")]
    Damaged,
    /// Understood no further than the version. (To be answered, so that the dialer learns why.)
    #[error("it speaks version {0} of the protocol, this program speaks {PROTOCOL}")]
    Protocol(u8),
}

impl Refusal {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Protocol,
            2 => Self::Cluster,
            3 => Self::Member,
            4 => Self::Removed,
            5 => Self::Unwanted,
            6 => Self::SameMember,
            _ => return None,
        })
    }
}

impl Hello {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![PROTOCOL, self.purpose as u8];
        for number in [self.from.cluster, self.from.member, self.to, self.boot] {
            body.put_u64_le(number);
        }
        let urls = joined(&self.urls);
        body.put_u8(u8::try_from(urls.len()).expect("they are bounded"));
        body.extend(urls.into_bytes());
        with_prefix(&HELLO_MAGIC, body, &self.version)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`HelloError`]
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let mut body = checked(&HELLO_MAGIC, bytes)?;
        if body[0] != PROTOCOL {
            return Err(HelloError::Protocol(body[0]));
        }
        if body.len() < HELLO_FRONT {
            return Err(HelloError::Damaged);
        }
        body.advance(1);
        let purpose = match body.get_u8() {
            1 => Purpose::Messages,
            2 => Purpose::Snapshot,
            _ => return Err(HelloError::Damaged),
        };
        let from = Identity { cluster: body.get_u64_le(), member: body.get_u64_le() };
        let (to, boot) = (body.get_u64_le(), body.get_u64_le());
        let urls_len = usize::from(body.get_u8());
        let (text, rest) = body.split_at_checked(urls_len).ok_or(HelloError::Damaged)?;
        Ok(Self { purpose, from, to, boot, urls: urls(text)?, version: version(rest)? })
    }

    /// Whether a member takes this connection.
    ///
    /// # Errors
    /// The reason why not.
    pub fn judge(&self, own: Identity) -> Result<(), Refusal> {
        if self.from.cluster != own.cluster {
            return Err(Refusal::Cluster);
        }
        if self.from.member == 0 {
            return Err(Refusal::Unwanted); // raft's word for no member
        }
        if self.from.member == own.member {
            return Err(Refusal::SameMember);
        }
        if self.to != own.member { Err(Refusal::Member) } else { Ok(()) }
    }
}

impl Answer {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = vec![self.protocol, self.refusal.map_or(0, |refusal| refusal as u8)];
        for number in [self.from.cluster, self.from.member, self.boot] {
            body.put_u64_le(number);
        }
        with_prefix(&ANSWER_MAGIC, body, &self.version)
    }

    /// Reads one; that of another version of the protocol too, which can only be a refusal.
    ///
    /// # Errors
    /// [`HelloError`]
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let mut body = checked(&ANSWER_MAGIC, bytes)?;
        if body[0] != PROTOCOL {
            return Err(HelloError::Protocol(body[0]));
        }
        if body.len() < 2 + 3 * 8 {
            return Err(HelloError::Damaged);
        }
        let protocol = body.get_u8();
        let refusal = match body.get_u8() {
            0 => None,
            byte => Some(Refusal::from_byte(byte).ok_or(HelloError::Damaged)?),
        };
        let from = Identity { cluster: body.get_u64_le(), member: body.get_u64_le() };
        let boot = body.get_u64_le();
        Ok(Self { refusal, protocol, from, boot, version: version(body)? })
    }
}

/// How many more bytes a hello or an answer has behind those that are there; none to wait for
/// once it is whole.
///
/// # Errors
/// [`HelloError::Foreign`] as soon as the bytes cannot become one.
pub fn missing(bytes: &[u8]) -> Result<usize, HelloError> {
    let front = bytes.len().min(8);
    if !HELLO_MAGIC.starts_with(&bytes[..front]) && !ANSWER_MAGIC.starts_with(&bytes[..front]) {
        return Err(HelloError::Foreign);
    }
    let whole = bytes.get(PREFIX - 1).map_or(PREFIX, |len| PREFIX + usize::from(*len));
    Ok(whole.saturating_sub(bytes.len()))
}

fn with_prefix(magic: &[u8; 8], mut body: Vec<u8>, version: &str) -> Vec<u8> {
    body.extend(version.bytes().filter(u8::is_ascii_graphic).take(VERSION_BYTES_MAX));
    let mut out = magic.to_vec();
    out.put_u32_le(0);
    out.put_u8(u8::try_from(body.len()).expect("the parts are bounded"));
    out.append(&mut body);
    let crc = crc32fast::hash(&out[12..]);
    out[8..12].copy_from_slice(&crc.to_le_bytes());
    out
}

/// The bytes behind the prefix, from the version of the protocol on.
fn checked<'b>(magic: &[u8; 8], bytes: &'b [u8]) -> Result<&'b [u8], HelloError> {
    if !bytes.starts_with(magic) {
        return Err(HelloError::Foreign);
    }
    let (Some(mut crc), Some(body)) = (bytes.get(8..12), bytes.get(PREFIX..)) else {
        return Err(HelloError::Damaged);
    };
    let is_whole = body.len() == usize::from(bytes[PREFIX - 1]) && body.len() >= 2;
    if !is_whole || crc32fast::hash(&bytes[12..]) != crc.get_u32_le() {
        return Err(HelloError::Damaged);
    }
    Ok(body)
}

/// As many of the URLs as there is room for.
fn joined(urls: &[String]) -> String {
    let mut text = String::new();
    for url in urls.iter().filter(|url| is_plain(url.as_bytes())).take(URLS_MAX) {
        if text.len() + 1 + url.len() <= URLS_BYTES_MAX {
            text.extend([if text.is_empty() { "" } else { "," }, url]);
        }
    }
    text
}

/// Letters of a URL, of which none separates URLs.
fn is_plain(url: &[u8]) -> bool {
    !url.is_empty() && url.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',')
}

fn urls(text: &[u8]) -> Result<Vec<String>, HelloError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let urls: Vec<&[u8]> = text.split(|byte| *byte == b',').collect();
    if text.len() > URLS_BYTES_MAX || urls.len() > URLS_MAX || !urls.iter().all(|url| is_plain(url)) {
        return Err(HelloError::Damaged);
    }
    Ok(urls.into_iter().map(|url| String::from_utf8_lossy(url).into_owned()).collect())
}

/// A server's version goes into log lines: plain letters only.
fn version(bytes: &[u8]) -> Result<String, HelloError> {
    if bytes.len() > VERSION_BYTES_MAX || !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(HelloError::Damaged);
    }
    Ok(bytes.iter().copied().map(char::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Identity = Identity { cluster: 5, member: 2 };

    fn hello() -> Hello {
        let from = Identity { cluster: 5, member: 1 };
        let urls = vec!["http://a:2380".to_owned(), "http://10.0.0.1:2380".to_owned()];
        Hello { purpose: Purpose::Messages, from, to: 2, boot: 9, urls, version: "0.1.0".to_owned() }
    }

    fn answer(refusal: Option<Refusal>) -> Answer {
        Answer { refusal, protocol: PROTOCOL, from: OWN, boot: 3, version: "0.2.0".to_owned() }
    }

    #[test]
    fn hello_and_answer_survive_the_round_trip() {
        for purpose in [Purpose::Messages, Purpose::Snapshot] {
            let hello = Hello { purpose, ..hello() };
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }
        for refusal in (1..=6).map(|byte| Refusal::from_byte(byte).unwrap()).map(Some).chain([None]) {
            assert_eq!(Answer::decode(&answer(refusal).encode()), Ok(answer(refusal)));
        }
        let long = Hello { version: "v".repeat(1000), ..hello() };
        assert_eq!(Hello::decode(&long.encode()).unwrap().version.len(), VERSION_BYTES_MAX);
    }

    #[test]
    fn a_hello_names_as_many_urls_as_there_is_room_for() {
        let named = |urls: Vec<String>| {
            let longest = Hello { urls, version: "v".repeat(VERSION_BYTES_MAX), ..hello() };
            Hello::decode(&longest.encode()).unwrap().urls
        };
        let url = |len: usize| "u".repeat(len);
        assert_eq!(named(vec![url(1), url(187), url(2)]), [url(1), url(2)], "one is too long");
        assert_eq!(named(vec![url(187)]), [url(187)]);
        assert!(named(vec![url(188)]).is_empty());
        assert_eq!(named(vec![url(1); 9]), vec![url(1); URLS_MAX]);
        assert!(named(vec!["a,b".to_owned(), "a b".to_owned(), String::new()]).is_empty());
        assert_eq!(urls(b"a,,b"), Err(HelloError::Damaged));
        assert_eq!(urls(b"a,b,c,d,e"), Err(HelloError::Damaged));
    }

    #[test]
    fn every_cut_and_every_flip_is_refused() {
        for bytes in [hello().encode(), answer(None).encode()] {
            let fails = |bytes: &[u8]| Hello::decode(bytes).is_err() && Answer::decode(bytes).is_err();
            for len in 0..bytes.len() {
                assert!(fails(&bytes[..len]), "cut at {len}");
                assert!(missing(&bytes[..len]).unwrap() > 0, "{len} bytes are not whole");
            }
            assert_eq!(missing(&bytes), Ok(0));
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bad = bytes.clone();
                    bad[at] ^= 1 << bit;
                    assert!(fails(&bad), "byte {at} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn another_protocol_is_told_apart_from_noise() {
        let mut bytes = hello().encode();
        bytes[PREFIX] = 7;
        bytes.truncate(PREFIX + 3); // another version may be shorter
        bytes[PREFIX - 1] = 3;
        let crc = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Hello::decode(&bytes), Err(HelloError::Protocol(7)));
        assert_eq!(missing(b"GET / HTTP/1.1"), Err(HelloError::Foreign));
        assert_eq!(missing(b"re"), Ok(PREFIX - 2));
    }

    #[test]
    fn a_member_takes_only_what_is_meant_for_it() {
        assert_eq!(hello().judge(OWN), Ok(()));
        let judged = |change: fn(&mut Hello)| {
            let mut hello = hello();
            change(&mut hello);
            hello.judge(OWN)
        };
        assert_eq!(judged(|hello| hello.from.cluster = 6), Err(Refusal::Cluster));
        assert_eq!(judged(|hello| hello.to = 3), Err(Refusal::Member));
        assert_eq!(judged(|hello| hello.from.member = 2), Err(Refusal::SameMember));
        assert_eq!(judged(|hello| hello.from.member = 0), Err(Refusal::Unwanted));
    }
}
