//! Plain requests to the peer port of another member. They block: for threads that may.

use std::io::{self, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use revd_engine::mvcc::Hashed;
use revd_member::cluster::hash_checks::MemberHash;
use revd_member::urls;
use revd_proto::etcdserverpb::Member;
use serde_json::Value;

use crate::config::{Listened, listened};
use crate::limits;
use crate::net::tls::{self, TlsDomain};
use crate::resolve;

/// The whole answer, head and body.
///
/// # Errors
/// When nothing answers within this time, at each step.
pub fn get(url: &str, path: &str, deadline: Duration, tls: &TlsDomain) -> io::Result<String> {
    let (host, is_secure) = host(url)?;
    if let Some((Listened::File(file), is_secure)) = listened(url.trim()) {
        let stream = UnixStream::connect(file)?;
        stream.set_read_timeout(Some(deadline))?;
        stream.set_write_timeout(Some(deadline))?;
        return exchange_over(stream, is_secure, &host, path, tls);
    }
    let stream = connect(resolve::addresses(&host)?)?;
    stream.set_read_timeout(Some(deadline))?;
    stream.set_write_timeout(Some(deadline))?;
    exchange_over(stream, is_secure, &host, path, tls)
}

fn exchange_over(
    stream: impl io::Read + io::Write,
    is_secure: bool,
    host: &str,
    path: &str,
    tls: &TlsDomain,
) -> io::Result<String> {
    if is_secure {
        return exchange(tls::connect_blocking(stream, host, tls)?, host, path);
    }
    exchange(stream, host, path)
}

/// Host and port of a URL, and whether TLS is spoken there. A row has what `MemberUpdate` brought:
/// a scheme in capitals must not make a request in the clear of one that was to be secret.
fn host(url: &str) -> io::Result<(String, bool)> {
    let url = urls::parse(&[url.to_owned()]).map_err(io::Error::other)?.concat();
    let (_, is_secure) = listened(&url).ok_or(io::ErrorKind::Unsupported)?;
    Ok((urls::authority(&url).to_owned(), is_secure))
}

fn exchange(mut stream: impl io::Read + io::Write, host: &str, path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(limits::REMOTE_CLUSTER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// HashKV of a revision of these members of a cluster, as far as they answer.
#[must_use]
pub fn hashes(members: &[Member], cluster: u64, revision: i64, tls: &TlsDomain) -> Vec<MemberHash> {
    let path = format!("/members/hashkv?revision={revision}");
    let of_member = |member: &Member| {
        let answers = member.peer_ur_ls.iter().map(|url| get(url, &path, limits::REMOTE_HASH_DEADLINE, tls));
        answers.flatten().find_map(|answer| read_hash(&answer, member.id, cluster))
    };
    members.iter().filter_map(of_member).collect()
}

/// Reads an answer; none if it is a refusal, or that of a member of another cluster.
fn read_hash(answer: &str, member: u64, cluster: u64) -> Option<MemberHash> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.lines().next()?.contains(" 200 ") {
        return None;
    }
    let answer: Value = serde_json::from_str(body.trim()).ok()?;
    let header = &answer["header"];
    if header["cluster_id"].as_u64() != Some(cluster) || header["member_id"].as_u64() != Some(member) {
        return None;
    }
    let number = |name: &str| answer[name].as_i64();
    let hashed = Hashed {
        hash: u32::try_from(number("hash")?).ok()?,
        revision: number("hash_revision")?,
        compact_revision: number("compact_revision")?,
    };
    Some(MemberHash { member, hashed, newest: header["revision"].as_i64()? })
}

/// Connects to the first of these addresses where something listens.
fn connect(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in addresses {
        result = TcpStream::connect_timeout(&address, limits::REMOTE_CLUSTER_DEADLINE);
        if result.is_ok() {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_scheme_in_capitals_is_the_same_scheme() {
        let secure = |url: &str| host(url).map(|(_, is_secure)| is_secure).ok();
        assert_eq!(
            [secure("HTTPS://h:1"), secure(" https://h:1"), secure("Http://h:1")].map(Option::unwrap),
            [true, true, false]
        );
        assert_eq!(host("hTTps://h:1").unwrap().0, "h:1");
        assert_eq!([secure("unixs://h:1"), secure("unix://h:1")], [Some(true), Some(false)]);
        assert_eq!([secure("ftp://h:1"), secure("h:1"), secure("")], [None; 3]);
    }

    #[test]
    fn a_name_stands_for_all_its_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (silent, closed) = ("[::1]:1".parse().unwrap(), "127.0.0.1:1".parse().unwrap());
        let stream = connect(vec![silent, closed, address]).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert!(connect(vec![closed]).is_err() && connect(vec![]).is_err());
    }

    #[test]
    fn only_whole_answers_of_the_member_that_was_asked_count() {
        let answer = "HTTP/1.1 200 OK\r\n\r\n{\"header\":{\"cluster_id\":9,\"member_id\":2,\"revision\":8},\
                      \"hash\":4294967295,\"compact_revision\":-1,\"hash_revision\":7}\n";
        let hashed = Hashed { hash: u32::MAX, revision: 7, compact_revision: -1 };
        assert_eq!(read_hash(answer, 2, 9), Some(MemberHash { member: 2, hashed, newest: 8 }));
        assert_eq!(read_hash(answer, 3, 9), None);
        assert_eq!(read_hash(answer, 2, 8), None);
        assert_eq!(read_hash(&answer.replace(" 200 ", " 400 "), 2, 9), None);
        for cut in 0..answer.len() - 1 {
            assert_eq!(read_hash(&answer[..cut], 2, 9), None, "cut at {cut}");
        }
    }
}
