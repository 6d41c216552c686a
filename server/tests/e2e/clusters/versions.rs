//! The version of a cluster, as its leader decides it, and downgrades, beside three members of
//! etcd.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use revd_member::cluster::Identity;
use revd_member::peer::hello::{Answer, Hello, PROTOCOL, missing};
use revd_proto::etcdserverpb::downgrade_request::DowngradeAction;
use revd_proto::etcdserverpb::{DowngradeRequest, StatusRequest};

use crate::harness::{
    Cluster, Product, Server, TempDir, free_address, run, wait_until, with_clusters_beside, within,
};
use crate::probes::ask;

/// etcd looks at its members every four seconds.
const MOMENTS: Duration = Duration::from_secs(30);

fn versions_of(cluster: &str, storage: &str) -> String {
    format!(r#"{{"etcdserver":"3.7.1","etcdcluster":"{cluster}","storage":"{storage}"}}"#)
}

async fn wait_until_it_has(address: SocketAddr, versions: &str) {
    within(MOMENTS, &format!("{address} never has {versions}"), async || {
        ask(address, "GET /version").ends_with(versions).then_some(())
    })
    .await;
}

/// A cluster, and what it said.
struct Transcript<'c> {
    cluster: &'c mut Cluster,
    said: Vec<String>,
}

impl Transcript<'_> {
    async fn ask(&mut self, member: usize, action: DowngradeAction, version: &str) {
        let request = DowngradeRequest { action: action as i32, version: version.to_owned() };
        let reply = self.cluster.client(member).maintenance.downgrade(request).await;
        let text = match reply {
            Ok(reply) => format!("version {}", reply.into_inner().version),
            Err(status) => format!("{:?}: {}", status.code(), status.message()),
        };
        self.said.push(format!("{action:?} {version}: {text}"));
    }

    async fn look(&mut self) {
        for member in 0..3 {
            let status = self.cluster.client(member).maintenance.status(StatusRequest {}).await;
            let status = status.unwrap().into_inner();
            let quota = status.db_size_quota;
            self.said.push(format!("{:?}, {}, {quota}", status.downgrade_info, status.storage_version));
            self.said.push(ask(self.cluster.members[member].address, "GET /version"));
        }
    }

    async fn wait(&mut self, version: &str) {
        for member in 0..3 {
            let address = self.cluster.members[member].address;
            wait_until_it_has(address, &versions_of(version, version)).await;
        }
        self.look().await;
    }
}

async fn downgrade(cluster: &mut Cluster) -> Vec<String> {
    use DowngradeAction::{Cancel, Enable, Validate};
    let mut steps = Transcript { cluster, said: Vec::new() };
    steps.wait("3.7.0").await;
    for version in ["3.6", "3.6.0", "3.6.7", "3.5", "3.7.0", "3.8", "4.6", "2.6", "", "3", "x", "3.6.0.0"] {
        steps.ask(0, Validate, version).await;
    }
    for version in ["3.5", "3.7", "x", ""] {
        steps.ask(1, Enable, version).await;
    }
    steps.ask(2, Cancel, "").await;
    steps.ask(0, Enable, "3.6.4").await;
    for version in ["3.6", "3.5", "x"] {
        steps.ask(0, Enable, version).await;
        steps.ask(1, Validate, version).await;
    }
    steps.wait("3.6.0").await;
    for version in ["3.6", "3.5", "3.7"] {
        steps.ask(2, Enable, version).await;
        steps.ask(2, Validate, version).await;
    }
    // It outlives its members.
    for member in 0..3 {
        steps.cluster.members[member].kill();
    }
    for member in 0..3 {
        steps.cluster.members[member].spawn_again();
    }
    steps.cluster.members.iter_mut().for_each(Server::wait_until_ready);
    steps.cluster.wait_until_all_answer().await;
    steps.wait("3.6.0").await;
    steps.ask(1, Enable, "3.5").await;
    steps.ask(1, Cancel, "ignored").await;
    steps.wait("3.7.0").await;
    steps.ask(1, Cancel, "").await;
    steps.ask(0, Validate, "3.6").await;
    steps.said
}

#[test]
fn a_downgrade_is_enabled_outlives_its_members_and_is_cancelled() {
    with_clusters_beside(&[], async |ours, theirs| {
        let (ours, theirs) = (downgrade(ours).await, downgrade(theirs).await);
        assert_eq!(ours, theirs);
        assert!(ours.iter().any(|line| line.contains("enabled: true")), "{ours:#?}");
    });
}

/// Two members of three, of which the third is started by hand.
fn members(
    product: Product,
    dir: &std::path::Path,
    addresses: &[SocketAddr],
    which: &[usize],
) -> Vec<Server> {
    let initial: Vec<_> =
        addresses.iter().enumerate().map(|(at, address)| format!("m{at}=http://{address}")).collect();
    let member = |at: &usize| {
        let url = format!("http://{}", addresses[*at]);
        let flags =
            ["--name", &format!("m{at}"), "--listen-peer-urls", &url, "--initial-advertise-peer-urls"];
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let more = [url.clone(), "--initial-cluster".to_owned(), initial.join(",")];
        let data = dir.join(format!("{product:?}-{at}"));
        Server::spawn_member(product, free_address(), &data, &[&flags[..], &more].concat())
    };
    which.iter().map(member).collect()
}

/// A member of another version, as far as its peers can see: it agrees on connections, and does
/// nothing else.
struct OtherVersion {
    is_over: Arc<AtomicBool>,
    listening: Option<std::thread::JoinHandle<()>>,
}

impl OtherVersion {
    fn listen(address: SocketAddr, version: &'static str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let listening = std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(false).unwrap();
                    open.extend(agreed(stream, version));
                }
                // It drops everything that it is sent; a byte now and then says that it lives.
                open.retain_mut(|stream| stream.write_all(&[0]).is_ok());
                #[expect(clippy::disallowed_methods, reason = "a test that plays another process")]
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self { is_over, listening: Some(listening) }
    }
}

impl Drop for OtherVersion {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.listening.take().map(std::thread::JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

/// A connection on which the dialer's words were heard and answered.
fn agreed(mut stream: TcpStream, version: &str) -> Option<TcpStream> {
    let mut words = Vec::new();
    while missing(&words).ok()? > 0 {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        words.extend(byte);
    }
    let hello = Hello::decode(&words).ok()?;
    let from = Identity { cluster: hello.from.cluster, member: hello.to };
    let answer = Answer { refusal: None, protocol: PROTOCOL, from, boot: 1, version: version.to_owned() };
    stream.write_all(&answer.encode()).ok()?;
    Some(stream)
}

/// As with etcd, a cluster forms at the lowest version while a member is unknown, and goes up when
/// it is known.
#[test]
fn a_cluster_has_the_version_of_its_oldest_member() {
    run(async {
        let (dir, addresses) = (TempDir::new(), [free_address(), free_address(), free_address()]);
        let mut started = members(Product::Revd, dir.path(), &addresses, &[0, 1]);
        started.iter_mut().for_each(Server::wait_until_ready);
        for member in &started {
            wait_until_it_has(member.address, &versions_of("3.0.0", "3.5.0")).await;
        }
        let other = OtherVersion::listen(addresses[2], "3.6.9+another");
        for member in &started {
            wait_until_it_has(member.address, &versions_of("3.6.0", "3.6.0")).await;
        }
        drop(other);
        started.extend(members(Product::Revd, dir.path(), &addresses, &[2]));
        started.iter_mut().for_each(Server::wait_until_ready);
        for member in &started {
            wait_until_it_has(member.address, &versions_of("3.7.0", "3.7.0")).await;
            wait_until_it_has(addresses[0], &versions_of("3.7.0", "3.7.0")).await;
        }
        let says = |member: &Server| member.log().contains("updating cluster version");
        wait_until(MOMENTS, || started.iter().any(says), || "no member says so".to_owned());
    });
}
