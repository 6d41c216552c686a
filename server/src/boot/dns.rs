//! SRV records, asked for at a start (`--discovery-srv`): the name servers of `/etc/resolv.conf`
//! one after the other, by UDP, and by TCP where an answer is too long for that. Blocks.
//!
//! The system resolves names to addresses (`resolve.rs`) but has no call for other records. Names
//! are completed (`search`, `ndots`) and errors are worded as etcd's resolver does it. An answer
//! may be anything: it is bounded in bytes, records and time, and counts only if it repeats the
//! question.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use revd_member::cluster::srv::SrvTarget;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, TYPE};

use crate::limits;

/// Where a system says which name servers it has.
const SYSTEM_FILE: &str = "/etc/resolv.conf";
/// For tests: address and port of a name server, in place of those of the system.
const SERVER_VARIABLE: &str = "REVD_TEST_NAME_SERVER";
/// The port of name servers.
const PORT: u16 = 53;
/// More of them are passed over, as in every resolver.
const SERVERS_MAX: usize = 3;
/// A name with fewer dots is completed first.
const DOTS_DEFAULT: usize = 1;
/// Times that each server is asked.
const ATTEMPTS: usize = 2;
/// Bytes of a name in a message.
const NAME_BYTES_MAX: usize = 254;

/// The name servers of this system, and how it completes names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dns {
    servers: Vec<SocketAddr>,
    search: Vec<String>,
    dots: usize,
}

/// Why a name server has not helped.
#[derive(Debug, PartialEq, Eq)]
enum Failure {
    /// It knows that there are no such records: the name may be another one.
    NoSuchName,
    /// Another one may know them, or the same one later.
    Other(String),
}

impl Dns {
    /// As the system is set up.
    pub(super) fn of_system() -> Self {
        if let Some(server) = std::env::var(SERVER_VARIABLE).ok().and_then(|server| server.parse().ok()) {
            return Self { servers: vec![server], ..Self::read("") };
        }
        Self::read(&std::fs::read_to_string(SYSTEM_FILE).unwrap_or_default())
    }

    /// Reads such a file; without a server in it, there is one on this machine.
    fn read(text: &str) -> Self {
        let mut dns = Self { servers: Vec::new(), search: Vec::new(), dots: DOTS_DEFAULT };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(|server| server.parse::<IpAddr>().ok());
                    dns.servers.extend(server.map(|server| SocketAddr::from((server, PORT))));
                }
                Some("search" | "domain") => dns.search = words.map(str::to_owned).collect(),
                Some("options") => {
                    let dots = words.find_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    dns.dots = dots.unwrap_or(dns.dots);
                }
                _ => {}
            }
        }
        dns.servers.truncate(SERVERS_MAX);
        if dns.servers.is_empty() {
            dns.servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        }
        dns
    }

    /// The places that the SRV records of a name have; the best ones first.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(super) fn targets(&self, name: &str) -> Result<Vec<SrvTarget>, String> {
        let (mut failure, mut asked) = (Failure::NoSuchName, self.servers[0]);
        for candidate in self.candidates(name) {
            match self.ask_servers(&candidate, &mut asked) {
                Ok(targets) => return Ok(targets),
                // A name that cannot be looked up now may be the right one.
                Err(found) if failure == Failure::NoSuchName => failure = found,
                Err(_) => {}
            }
        }
        Err(match failure {
            Failure::NoSuchName => format!("lookup {name} on {asked}: no such host"),
            Failure::Other(why) => format!("lookup {name} on {asked}: {why}"),
        })
    }

    /// The names that this one may stand for.
    fn candidates(&self, name: &str) -> Vec<String> {
        if let Some(whole) = name.strip_suffix('.') {
            return vec![whole.to_owned()];
        }
        let mut candidates: Vec<String> =
            self.search.iter().map(|domain| format!("{name}.{}", domain.trim_matches('.'))).collect();
        let is_first = name.matches('.').count() >= self.dots;
        candidates.insert(if is_first { 0 } else { candidates.len() }, name.to_owned());
        candidates.retain(|candidate| candidate.len() <= NAME_BYTES_MAX);
        candidates
    }

    fn ask_servers(&self, name: &str, asked: &mut SocketAddr) -> Result<Vec<SrvTarget>, Failure> {
        let mut failure = Failure::NoSuchName;
        for _ in 0..ATTEMPTS {
            for server in &self.servers {
                *asked = *server;
                match ask(*server, name) {
                    Err(Failure::Other(why)) => failure = Failure::Other(why),
                    answer => return answer,
                }
            }
        }
        Err(failure)
    }
}

/// The answer of one server.
fn ask(server: SocketAddr, name: &str) -> Result<Vec<SrvTarget>, Failure> {
    let other = |error: io::Error| match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Failure::Other("i/o timeout".to_owned()),
        _ => Failure::Other(error.to_string()),
    };
    let mut id = [0; 2];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| other(error.into()))?;
    let query = Query::new(u16::from_le_bytes(id), name)?;
    let answer = ask_by_udp(server, &query).map_err(other)?;
    if let Some(found) = query.read(&answer).and_then(Answer::whole) {
        return found;
    }
    let answer = ask_by_tcp(server, &query.bytes).map_err(other)?;
    let found = query.read(&answer).and_then(Answer::whole);
    found.unwrap_or_else(|| Err(Failure::Other("cannot unmarshal DNS message".to_owned())))
}

/// The first answer that belongs to the question.
fn ask_by_udp(server: SocketAddr, query: &Query) -> io::Result<Vec<u8>> {
    let own: SocketAddr = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("an address");
    let socket = UdpSocket::bind(own)?;
    // From here on only what comes from there is received.
    socket.connect(server)?;
    socket.send(&query.bytes)?;
    let started = crate::clock::now();
    let mut answer = vec![0; limits::DNS_ANSWER_BYTES_MAX];
    loop {
        socket.set_read_timeout(Some(time_left(started)?))?;
        let length = socket.recv(&mut answer)?;
        if query.read(&answer[..length]).is_some() {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

fn ask_by_tcp(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let started = crate::clock::now();
    let mut stream = TcpStream::connect_timeout(&server, limits::DNS_DEADLINE)?;
    stream.set_write_timeout(Some(limits::DNS_DEADLINE))?;
    let length = u16::try_from(query.len()).map_err(|_| ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes(), query].concat())?;
    let mut read = |bytes: &mut [u8]| -> io::Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            stream.set_read_timeout(Some(time_left(started)?))?;
            match stream.read(&mut bytes[at..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                length => at += length,
            }
        }
        Ok(())
    };
    let mut length = [0; 2];
    read(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    read(&mut answer)?;
    Ok(answer)
}

/// A server that sends without an end is not listened to without one.
fn time_left(started: Instant) -> io::Result<Duration> {
    let left = limits::DNS_DEADLINE.saturating_sub(crate::clock::since(started));
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A question for SRV records.
struct Query<'n> {
    id: u16,
    name: Name<'n>,
    bytes: Vec<u8>,
}

/// An answer to it.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Whole(Result<Vec<SrvTarget>, Failure>),
    /// It was too long.
    Cut,
}

impl Answer {
    fn whole(self) -> Option<Result<Vec<SrvTarget>, Failure>> {
        if let Self::Whole(found) = self { Some(found) } else { None }
    }
}

impl<'n> Query<'n> {
    fn new(id: u16, name: &'n str) -> Result<Self, Failure> {
        let name = Name::new(name).map_err(|_| Failure::NoSuchName)?;
        let mut packet = Packet::new_query(id);
        packet.set_flags(PacketFlag::RECURSION_DESIRED);
        packet.questions.push(Question::new(name.clone(), TYPE::SRV.into(), CLASS::IN.into(), false));
        let bytes = packet.build_bytes_vec().map_err(|_| Failure::NoSuchName)?;
        Ok(Self { id, name, bytes })
    }

    /// Reads bytes that may be an answer to this question; none if they are none.
    fn read(&self, bytes: &[u8]) -> Option<Answer> {
        let packet = Packet::parse(bytes).ok()?;
        let [question] = &packet.questions[..] else { return None };
        let is_name = question.qname.to_string().eq_ignore_ascii_case(&self.name.to_string());
        let is_answer = packet.has_flags(PacketFlag::RESPONSE) && packet.id() == self.id;
        if !is_answer || !is_name || question.qtype != QTYPE::TYPE(TYPE::SRV) {
            return None;
        }
        if packet.has_flags(PacketFlag::TRUNCATION) {
            return Some(Answer::Cut);
        }
        Some(Answer::Whole(match packet.rcode() {
            RCODE::NoError => targets_in(&packet),
            RCODE::NameError => Err(Failure::NoSuchName),
            _ => Err(Failure::Other("server misbehaving".to_owned())),
        }))
    }
}

/// The places that the records of an answer have, in the order of their priorities.
fn targets_in(packet: &Packet<'_>) -> Result<Vec<SrvTarget>, Failure> {
    let mut targets = Vec::new();
    for record in &packet.answers {
        let RData::SRV(srv) = &record.rdata else { continue };
        let host = srv.target.to_string();
        if host.bytes().any(|byte| !byte.is_ascii_alphanumeric() && !b"-_.".contains(&byte)) {
            let why = "DNS response contained records which contain invalid names";
            return Err(Failure::Other(why.to_owned()));
        }
        targets.push((srv.priority, SrvTarget { host, port: srv.port }));
    }
    if targets.len() > limits::SRV_RECORDS_MAX {
        return Err(Failure::Other(format!("more than {} records", limits::SRV_RECORDS_MAX)));
    }
    targets.sort();
    if targets.is_empty() {
        Err(Failure::NoSuchName)
    } else {
        Ok(targets.into_iter().map(|it| it.1).collect())
    }
}

#[cfg(test)]
mod tests;
