//! Answers of name servers: right, broken, cut and hostile ones.

use super::*;
use std::net::TcpListener;
use std::thread::JoinHandle;

use simple_dns::ResourceRecord;
use simple_dns::rdata::{A, SRV, TXT};

const NAME: &str = "_etcd-server._tcp.d.test";

fn query() -> Query<'static> {
    Query::new(7, NAME).unwrap()
}

/// An answer with these records: priority, port and host.
fn answer(id: u16, rcode: RCODE, records: &[(u16, u16, &'static str)]) -> Packet<'static> {
    let mut packet = Packet::new_reply(id);
    *packet.rcode_mut() = rcode;
    let name = Name::new(NAME).unwrap();
    packet.questions.push(Question::new(name.clone(), TYPE::SRV.into(), CLASS::IN.into(), false));
    for (priority, port, host) in records {
        let target = Name::new(host).unwrap();
        let srv = RData::SRV(SRV { priority: *priority, weight: 0, port: *port, target });
        packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, srv));
    }
    packet
}

fn bytes(packet: &Packet<'_>) -> Vec<u8> {
    packet.build_bytes_vec_compressed().unwrap()
}

fn places(found: &[SrvTarget]) -> Vec<String> {
    found.iter().map(|target| format!("{}:{}", target.host, target.port)).collect()
}

fn servers(servers: &[SocketAddr]) -> Dns {
    Dns { servers: servers.to_vec(), ..Dns::read("") }
}

/// A name server for one request by UDP, and one by TCP if it answers that.
fn serve(udp: Vec<Vec<u8>>, tcp: Option<Vec<u8>>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let socket = UdpSocket::bind(address).unwrap();
    let with_id = |mut answer: Vec<u8>, id: &[u8]| {
        answer.splice(..2.min(answer.len()), id.to_vec());
        answer
    };
    let serving = std::thread::spawn(move || {
        let mut request = [0; 512];
        let (_, client) = socket.recv_from(&mut request).unwrap();
        for answer in udp {
            socket.send_to(&with_id(answer, &request[..2]), client).unwrap();
        }
        let Some(answer) = tcp else { return };
        let (mut stream, _) = listener.accept().unwrap();
        let mut length = [0; 2];
        stream.read_exact(&mut length).unwrap();
        let mut request = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut request).unwrap();
        let answer = with_id(answer, &request[..2]);
        stream.write_all(&u16::try_from(answer.len()).unwrap().to_be_bytes()).unwrap();
        stream.write_all(&answer).unwrap();
    });
    (address, serving)
}

#[test]
fn the_file_of_the_system_is_read() {
    let read = Dns::read(
        "# a comment\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver ::1\nsearch a.test b.test.\n\
         options edns0 ndots:5\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n",
    );
    let servers = ["10.0.0.1:53", "[::1]:53", "10.0.0.3:53"].map(|server| server.parse().unwrap());
    assert_eq!((&read.servers[..], read.dots), (&servers[..], 5));
    assert_eq!(read.candidates("x.y"), ["x.y.a.test", "x.y.b.test", "x.y"]);
    assert_eq!(read.candidates("x.y."), ["x.y"]);
    assert_eq!(Dns { dots: 1, ..read }.candidates("x.y"), ["x.y", "x.y.a.test", "x.y.b.test"]);
    assert_eq!(Dns::read("").servers, ["127.0.0.1:53".parse().unwrap()]);
}

#[test]
fn only_an_answer_to_the_question_counts() {
    let read = |packet: &Packet<'_>| query().read(&bytes(packet));
    let whole = answer(7, RCODE::NoError, &[(2, 1, "a.d.test"), (1, 3, "c.d.test"), (1, 2, "B.d.test")]);
    let found = read(&whole).unwrap().whole().unwrap().unwrap();
    assert_eq!(places(&found), ["B.d.test:2", "c.d.test:3", "a.d.test:1"]);
    assert_eq!(read(&answer(8, RCODE::NoError, &[(0, 1, "a")])), None, "another question's");
    assert_eq!(query().read(&query().bytes), None, "a question");
    let mut other = whole.clone();
    other.questions[0].qname = Name::new("_etcd-server._tcp.e.test").unwrap();
    assert_eq!(read(&other), None);
    let failed = |packet: &Packet<'_>| read(packet).unwrap().whole().unwrap().unwrap_err();
    assert_eq!(failed(&answer(7, RCODE::NameError, &[])), Failure::NoSuchName);
    assert_eq!(failed(&answer(7, RCODE::NoError, &[])), Failure::NoSuchName);
    assert_eq!(
        failed(&answer(7, RCODE::ServerFailure, &[])),
        Failure::Other("server misbehaving".to_owned())
    );
    assert!(matches!(failed(&answer(7, RCODE::NoError, &[(0, 1, "a/b?c")])), Failure::Other(_)));
    let many = vec![(0, 1, "a.d.test"); limits::SRV_RECORDS_MAX];
    assert!(read(&answer(7, RCODE::NoError, &many)).unwrap().whole().unwrap().is_ok());
    let many = vec![(0, 1, "a.d.test"); limits::SRV_RECORDS_MAX + 1];
    assert!(matches!(failed(&answer(7, RCODE::NoError, &many)), Failure::Other(_)));
}

/// Each byte of an answer changed to each other one, and each answer cut: none panics or never
/// ends.
#[test]
fn broken_answers_are_none_or_other_answers() {
    let mut packet = answer(7, RCODE::NoError, &[(1, 1, "a.d.test"), (1, 1, "b.d.test")]);
    let name = Name::new("a.d.test").unwrap();
    let records = [RData::A(A { address: 1 }), RData::TXT(TXT::new().with_string("text").unwrap())];
    let records = records.map(|data| ResourceRecord::new(name.clone(), CLASS::IN, 60, data));
    packet.additional_records.extend(records);
    for bytes in [bytes(&packet), packet.build_bytes_vec().unwrap()] {
        for at in 0..bytes.len() {
            let _ = query().read(&bytes[..at]);
            for value in 0..=u8::MAX {
                let mut broken = bytes.clone();
                broken[at] = value;
                let _ = query().read(&broken);
            }
        }
    }
    // A name that points at itself, and records that are not there.
    let mut looped = query().bytes;
    looped[2] |= 0x80;
    looped[6..8].copy_from_slice(&u16::MAX.to_be_bytes());
    let at = u8::try_from(looped.len()).unwrap();
    looped.extend([0xc0, at, 0, 33, 0, 1, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 1, 0xc0, at]);
    assert_eq!(query().read(&looped), None);
}

#[test]
fn what_is_no_answer_is_passed_over_and_one_that_is_cut_is_asked_for_again() {
    let whole = bytes(&answer(7, RCODE::NoError, &[(0, 1, "a.d.test")]));
    let other = bytes(&answer(7, RCODE::NoError, &[])).replace_name();
    let (address, serving) = serve(vec![b"noise".to_vec(), other, whole.clone()], None);
    assert_eq!(places(&servers(&[address]).targets(NAME).unwrap()), ["a.d.test:1"]);
    serving.join().unwrap();
    let mut cut = answer(7, RCODE::NoError, &[]);
    cut.set_flags(PacketFlag::TRUNCATION);
    let (address, serving) = serve(vec![bytes(&cut)], Some(whole));
    assert_eq!(places(&servers(&[address]).targets(NAME).unwrap()), ["a.d.test:1"]);
    serving.join().unwrap();
}

trait ReplaceName {
    fn replace_name(self) -> Self;
}

impl ReplaceName for Vec<u8> {
    /// The same about another name.
    fn replace_name(mut self) -> Self {
        self[13] = b'x';
        self
    }
}

#[test]
fn another_server_is_asked_where_one_does_not_help_and_another_name_where_there_is_none() {
    let whole = bytes(&answer(7, RCODE::NoError, &[(0, 1, "a.d.test")]));
    let broken = bytes(&answer(7, RCODE::ServerFailure, &[]));
    let (first, serving_first) = serve(vec![broken], None);
    let (second, serving_second) = serve(vec![whole], None);
    assert_eq!(places(&servers(&[first, second]).targets(NAME).unwrap()), ["a.d.test:1"]);
    serving_first.join().unwrap();
    serving_second.join().unwrap();
    let (address, serving) = serve(vec![bytes(&answer(7, RCODE::NameError, &[]))], None);
    let error = servers(&[address]).targets(NAME).unwrap_err();
    assert_eq!(error, format!("lookup {NAME} on {address}: no such host"));
    serving.join().unwrap();
}
