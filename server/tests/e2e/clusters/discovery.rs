//! Three members that find each other by SRV records (`--discovery-srv`), of a name server that the
//! test runs.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use revd_proto::etcdserverpb::{MemberListRequest, PutRequest, RangeRequest};
use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, RCODE, ResourceRecord};

use crate::harness::{Server, TempDir, free_address, run, within};

/// Longer than members need to say their names.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers for the one service with these places, for others that there are none.
struct NameServer {
    address: SocketAddr,
    serving: Option<std::thread::JoinHandle<()>>,
}

impl NameServer {
    fn start(places: Vec<SocketAddr>) -> Self {
        let socket = UdpSocket::bind(free_address()).unwrap();
        let address = socket.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let mut request = [0; 512];
            loop {
                let (length, client) = socket.recv_from(&mut request).unwrap();
                if request[..length] == *b"over" {
                    return;
                }
                let answer = answer(Packet::parse(&request[..length]).unwrap(), &places);
                socket.send_to(&answer, client).unwrap();
            }
        });
        Self { address, serving: Some(serving) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        let stopped = UdpSocket::bind("127.0.0.1:0").and_then(|it| it.send_to(b"over", self.address));
        if stopped.is_ok() {
            let _ = self.serving.take().map(std::thread::JoinHandle::join);
        }
    }
}

fn answer(query: Packet<'_>, places: &[SocketAddr]) -> Vec<u8> {
    let name = query.questions[0].qname.clone();
    let is_service = name.to_string() == "_etcd-server-test._tcp.d.test";
    let mut packet = query.into_reply();
    // Each time in another order, as name servers do.
    let rotated = places.iter().cycle().skip(usize::from(packet.id()) % places.len());
    for place in rotated.take(if is_service { places.len() } else { 0 }) {
        let host = place.ip().to_string();
        let target = Name::new(&host).unwrap().into_owned();
        let srv = RData::SRV(SRV { priority: 0, weight: 0, port: place.port(), target });
        packet.answers.push(ResourceRecord::new(name.clone(), CLASS::IN, 60, srv));
    }
    if !is_service {
        *packet.rcode_mut() = RCODE::NameError;
    }
    packet.build_bytes_vec_compressed().unwrap()
}

fn member(dns: &NameServer, dir: &Path, number: usize, peer: SocketAddr) -> Server {
    let (name, peer) = (format!("m{number}"), format!("http://{peer}"));
    let flags = ["--name", &name, "--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer];
    let flags = [&flags[..], &["--discovery-srv", "d.test", "--discovery-srv-name", "test"]].concat();
    Server::spawn_asking(dns.address, free_address(), &dir.join(&name), &flags)
}

#[test]
fn three_members_find_each_other_by_srv_records() {
    run(three_members());
}

async fn three_members() {
    let dir = TempDir::new();
    let places: Vec<SocketAddr> = (0..3).map(|_| free_address()).collect();
    let dns = NameServer::start(places.clone());
    let member = |number, peer| member(&dns, dir.path(), number, peer);
    let mut members: Vec<Server> =
        places.iter().enumerate().map(|(number, peer)| member(number, *peer)).collect();
    members.iter_mut().for_each(Server::wait_until_ready);

    let mut client = members[0].client().await;
    let put = PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() };
    client.kv.put(put).await.unwrap();
    let wanted = BTreeSet::from(["m0", "m1", "m2"].map(str::to_owned));
    for server in &members {
        let mut client = server.client().await;
        let read = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        assert_eq!(client.kv.range(read).await.unwrap().into_inner().kvs.len(), 1);
        // Each says its name itself, when it serves.
        within(PATIENCE, "not all members have names", async || {
            let request = MemberListRequest { linearizable: true };
            let list = client.cluster.member_list(request).await.ok()?.into_inner().members;
            let names: BTreeSet<String> = list.into_iter().map(|member| member.name).collect();
            (names == wanted).then_some(())
        })
        .await;
    }

    let mut stranger = member(3, free_address());
    assert!(!stranger.wait().success());
    let log = stranger.log();
    assert!(log.contains("cannot find local etcd member \\\"m3\\\" in SRV records"), "{log}");

    // A member needs the records only for its first start.
    drop(dns);
    members[1].kill();
    members[1].start_again();
    assert!(!members[1].log().contains("SRV"), "{}", members[1].log());
}
