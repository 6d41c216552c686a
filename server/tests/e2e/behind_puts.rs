//! Keepalives behind megabytes of puts on their own connection: what lies in the socket in time
//! counts, however many turns it takes to read it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;
use revd_http2::PREFACE;
use revd_http2::hpack::literal;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, PutRequest,
};

use crate::harness::{Client, Server, from_env, wait_until, with_server};

const TTL: i64 = 3;
/// Packed, this many puts fit into the server's socket; unpacked, each is a turn's work. Without a
/// key they are refused when they are read: nothing but the reading takes time.
const PUTS: u32 = 75;
const VALUE_BYTES: usize = 1024 * 1024;
/// Connections that do the same, so that each waits for the turns of all: by the clock,
/// what lies far back is read late.
const OTHERS: usize = 15;
/// Longer than anything takes but a server that hangs.
const PATIENCE: Duration = Duration::from_secs(120);

#[expect(clippy::disallowed_methods, reason = "leases are about time")]
fn now() -> Instant {
    Instant::now()
}

/// Replies of the server on a connection.
#[derive(Debug, Default)]
struct Said {
    ended: u32,
    kept: Option<i64>,
}

/// A connection whose stream 1 keeps a lease alive.
struct Raw {
    socket: TcpStream,
    said: Arc<Mutex<Said>>,
    next: u32,
}

fn message(flag: u8, body: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), body].concat()
}

fn keepalive(id: i64) -> Vec<u8> {
    frame(0, 0, 1, &message(0, &LeaseKeepAliveRequest { id }.encode_to_vec()))
}

impl Raw {
    fn connect(server: &Server) -> Self {
        let mut socket = TcpStream::connect(server.address).unwrap();
        let window = frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
        let stream = frame(1, 4, 1, &call_block("/etcdserverpb.Lease/LeaseKeepAlive"));
        socket.write_all(&[PREFACE, &frame(4, 0, 0, &[]), &window, &stream].concat()).unwrap();
        let said = Arc::<Mutex<Said>>::default();
        let (reading, into) = (socket.try_clone().unwrap(), Arc::clone(&said));
        std::thread::spawn(move || listen(reading, &into));
        Self { socket, said, next: 3 }
    }

    /// Puts whose values are packed, each a stream.
    fn puts(&mut self) -> Vec<u8> {
        let mut head = call_block("/etcdserverpb.KV/Put");
        literal(&mut head, b"grpc-encoding", b"gzip", false);
        let put = PutRequest { value: vec![7; VALUE_BYTES].into(), ..PutRequest::default() };
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        packed.write_all(&put.encode_to_vec()).unwrap();
        let packed = message(1, &packed.finish().unwrap());
        let mut wire = Vec::new();
        for _ in 0..PUTS {
            wire.extend(frame(1, 4, self.next, &head));
            wire.extend(frame(0, 1, self.next, &packed));
            self.next += 2;
        }
        wire
    }

    fn ended(&self) -> u32 {
        self.said.lock().unwrap().ended
    }

    /// Seconds that the keepalive was answered with.
    fn kept(&self) -> Option<i64> {
        self.said.lock().unwrap().kept
    }

    fn wait_for_puts(&self) {
        let all = (self.next - 3) / 2;
        wait_until(PATIENCE, || self.ended() == all, || format!("{} of {all} puts answered", self.ended()));
    }

    /// Bytes that lie in the server's socket.
    fn unread(&self, server: SocketAddr) -> usize {
        let hex = |port: u16| format!(":{port:04X}");
        let (theirs, ours) = (hex(server.port()), hex(self.socket.local_addr().unwrap().port()));
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let line = table.lines().find(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&theirs))
                && fields.next().is_some_and(|remote| remote.ends_with(&ours))
        });
        let queues = line.expect("the server's end of it").split_whitespace().nth(4).unwrap();
        usize::from_str_radix(queues.split_once(':').unwrap().1, 16).unwrap()
    }
}

/// Counts what is answered, until the connection ends.
fn listen(mut socket: TcpStream, said: &Mutex<Said>) {
    let (mut received, mut buffer) = (Vec::new(), vec![0; 256 * 1024]);
    while let Ok(read) = socket.read(&mut buffer)
        && read > 0
    {
        received.extend_from_slice(&buffer[..read]);
        let mut rest = &received[..];
        let mut said = said.lock().unwrap();
        while let Some((head, behind)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some((payload, behind)) = behind.split_at_checked(length) else { break };
            let is_stream_1 = head[5..] == [0, 0, 0, 1];
            if head[3] == 0 && is_stream_1 {
                let reply = LeaseKeepAliveResponse::decode(Bytes::copy_from_slice(&payload[5..])).unwrap();
                said.kept = Some(reply.ttl);
            }
            said.ended += u32::from(head[3] == 1 && head[4] & 1 == 1 && !is_stream_1);
            rest = behind;
        }
        let used = received.len() - rest.len();
        received.drain(..used);
    }
}

async fn remaining(client: &Client, id: i64) -> i64 {
    let request = LeaseTimeToLiveRequest { id, keys: false };
    client.lease.clone().lease_time_to_live(request).await.unwrap().into_inner().ttl
}

/// Issue 14, number 6: a connection reads 32 KiB a turn, and less of what has to be unpacked; a
/// lease ended while its keepalive lay further back.
#[test]
fn a_keepalive_behind_megabytes_of_puts_came_in_time() {
    with_server(&["--cores=1"], async |server, client| {
        let ttl = Duration::from_secs(TTL.unsigned_abs());
        let rounds = from_env("REVD_LEASE_BEHIND", 3);
        let mut in_time = 0;
        for id in 1..=i64::try_from(5 * rounds).unwrap() {
            if in_time == rounds {
                break;
            }
            let mut raw = Raw::connect(server);
            let mut others: Vec<Raw> = (0..OTHERS).map(|_| Raw::connect(server)).collect();
            let granted = now();
            client.lease.clone().lease_grant(LeaseGrantRequest { ttl: TTL, id }).await.unwrap();
            server.signal("STOP");
            let wire = [raw.puts(), keepalive(id)].concat();
            raw.socket.write_all(&wire).unwrap();
            for other in &mut others {
                let wire = other.puts();
                other.socket.write_all(&wire).unwrap();
            }
            while raw.unread(server.address) < wire.len() && granted.elapsed() < ttl {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let is_in_time = granted.elapsed() < ttl;
            tokio::time::sleep_until((granted + ttl + Duration::from_secs(1)).into()).await;
            server.signal("CONT");
            let goes_on = now();
            raw.wait_for_puts();
            wait_until(PATIENCE, || raw.kept().is_some(), || "the keepalive is not answered".to_owned());
            let (bytes, took) = (wire.len(), goes_on.elapsed());
            println!("{bytes} bytes, in time: {is_in_time}, read in {took:?}, answer {:?}", raw.kept());
            if is_in_time {
                in_time += 1;
                assert_eq!(raw.kept(), Some(TTL));
                assert!(remaining(client, id).await > 0, "it lives on for its time");
            }
        }
        assert!(in_time > 0, "not once did all of it arrive in time");
    });
}
