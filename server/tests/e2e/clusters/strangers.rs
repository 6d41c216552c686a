//! Programs that are no members of the cluster, at the port of one that is: they are refused, a
//! line a second says so, and nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use revd_member::cluster::Identity;
use revd_member::peer::frame;
use revd_member::peer::hello::{Hello, Purpose};
use revd_proto::etcdserverpb::{MemberListRequest, PutRequest, StatusRequest};

use crate::harness::{Cluster, PATIENT, Product, TempDir, Wiring, run};

/// Puts while strangers come and go.
const PUTS: usize = 3_000;

/// The ids that a stranger learns from requests that anybody may send.
#[derive(Clone, Copy)]
struct Target {
    address: SocketAddr,
    cluster: u64,
    member: u64,
}

impl Target {
    fn connect(self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// Says this and waits until the connection is closed, or `is_over`.
    fn says(self, bytes: &[u8]) {
        let mut stream = self.connect();
        let _ = stream.write_all(bytes);
        let _ = stream.read_to_end(&mut Vec::new());
    }

    fn hello(self, purpose: Purpose) -> Hello {
        let from = Identity { cluster: self.cluster, member: 0xbad };
        Hello { purpose, from, to: self.member, boot: 1, urls: vec![], version: "9.9.9".to_owned() }
    }

    /// A hello that is damaged at this byte, with the right checksum.
    fn forged(self, at: usize) -> Vec<u8> {
        let mut words = self.hello(Purpose::Messages).encode();
        words[at] ^= 0x55;
        let crc = crc32fast::hash(&words[12..]);
        words[8..12].copy_from_slice(&crc.to_le_bytes());
        words
    }

    /// A frame with this payload, whose header claims so many bytes.
    fn frame(payload: &[u8], claims: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let start = frame::begin(&mut bytes);
        bytes.extend_from_slice(payload);
        frame::finish(&mut bytes, start);
        if usize::try_from(claims).unwrap() != payload.len() {
            bytes[..frame::FRAME_HEADER].copy_from_slice(&frame::header_of(claims));
        }
        bytes
    }

    /// One of everything that ends by itself.
    fn knock(self) {
        self.says(&[0; 3_000]);
        self.says(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        self.says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        for at in [13, 14, 15, 31, 47, 60] {
            self.says(&self.forged(at.min(self.hello(Purpose::Messages).encode().len() - 1)));
        }
        self.says(&self.hello(Purpose::Messages).encode()[..20]);
        let states = self.hello(Purpose::Snapshot).encode();
        for purpose in [self.hello(Purpose::Messages).encode(), states] {
            for frame in [
                Self::frame(b"no message", 10),
                Self::frame(b"", u32::MAX),
                Self::frame(&[1, 3, 0, 0, 0, 9, 9, 9], 8),
                vec![7; 100],
            ] {
                self.says(&[&purpose[..], &frame].concat());
            }
        }
    }
}

/// Strangers at work.
struct Strangers {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Strangers {
    fn come(target: Target) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let work = |work: fn(Target, &AtomicBool)| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || work(target, &is_over))
        };
        let knock: fn(Target, &AtomicBool) = |target, is_over| {
            while !is_over.load(Ordering::Relaxed) {
                target.knock();
            }
        };
        let tasks = vec![work(knock), work(knock), work(linger)];
        Self { is_over, tasks }
    }

    fn go(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.drain(..).for_each(|task| task.join().unwrap());
    }
}

/// Half-open connections, more than there are places, that say a little now and then.
fn linger(target: Target, is_over: &AtomicBool) {
    let mut silent: Vec<TcpStream> = (0..300).map(|_| target.connect()).collect();
    let hello = target.hello(Purpose::Messages).encode();
    for byte in hello.iter().cycle() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        silent.iter_mut().for_each(|stream| drop(stream.write_all(&[*byte])));
        silent.drain(..10);
        silent.resize_with(300, || target.connect());
    }
}

/// The target behind a peer URL, by the tools' requests.
fn target(address: SocketAddr, member: u64) -> Target {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /members HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let id = reply.lines().find_map(|line| line.strip_prefix("x-etcd-cluster-id: ")).unwrap();
    Target { address, cluster: u64::from_str_radix(id.trim(), 16).unwrap(), member }
}

#[test]
fn strangers_at_the_peer_port_are_refused_and_others_untouched() {
    run(async {
        let dir = TempDir::new();
        // An election would be the strangers' fault, and not that of a busy machine.
        let cluster = Cluster::start(Product::Revd, Wiring::Direct, dir.path(), 3, &PATIENT).await;
        let victim = (cluster.leader().await + 1) % 3;
        let status = cluster.client(victim).maintenance.status(StatusRequest {}).await.unwrap().into_inner();
        let id = status.header.as_ref().unwrap().member_id;
        let request = MemberListRequest { linearizable: false };
        let members = cluster.client(victim).cluster.member_list(request).await.unwrap().into_inner().members;
        let member = members.iter().find(|member| member.id == id).unwrap();
        let address = member.peer_ur_ls[0].strip_prefix("http://").unwrap().parse().unwrap();
        let strangers = Strangers::come(target(address, id));
        let mut client = cluster.client(victim);
        for number in 0..PUTS {
            let (key, value) = (format!("k{number}").into(), "v".into());
            client.kv.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
        }
        strangers.go();
        let after = cluster.client(victim).maintenance.status(StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(after.raft_term, status.raft_term, "another leader was elected");
        for member in 0..3 {
            let log = cluster.members[member].log();
            assert!(!log.contains("lost the connection to a peer"), "member {member}: {log}");
        }
        let refused = "refused a connection";
        cluster.members[victim].wait_until_says(refused, "strangers were refused without a word");
        let log = cluster.members[victim].log();
        let lines: Vec<&str> = log.lines().filter(|line| line.contains(refused)).collect();
        let took = written(lines[lines.len() - 1]).duration_since(written(lines[0])).unwrap();
        // The last second may have just begun, and a line is written a moment behind its time.
        let lines_max = took.as_secs() + 2;
        assert!(lines.len() as u64 <= lines_max, "more than a line a second in {took:?}: {lines:?}");
    });
}

/// When a line was written.
fn written(line: &str) -> SystemTime {
    let (_, at) = line.split_once("\"ts\":\"").expect("a line has a time");
    humantime::parse_rfc3339(at.split('"').next().unwrap()).unwrap()
}
