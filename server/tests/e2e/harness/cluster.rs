//! Clusters of revd or of etcd: members on free ports, which are killed, started again, and cut off
//! from each other.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use revd_proto::etcdserverpb::{RangeRequest, StatusRequest};

use super::clients::{Client, connect_lazily};
use super::network::Network;
use super::peers::peers;
use super::process::{Product, START_DEADLINE, Server, free_address};

/// Longer than etcd needs to say that it cannot do something: 5 s and two election timeouts.
const PATIENCE: Duration = Duration::from_secs(15);

/// How members reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    Direct,
    /// Through proxies, which can be cut.
    Proxied,
}

/// All members, and the network between them.
pub struct Cluster {
    pub product: Product,
    pub members: Vec<Server>,
    network: Option<Network>,
}

/// The products that a test of clusters runs with: `REVD_CLUSTERS=etcd` tries the test itself.
pub fn products_of_clusters() -> Vec<Product> {
    match std::env::var("REVD_CLUSTERS").as_deref() {
        Ok("revd") => vec![Product::Revd],
        Ok("etcd") | Err(_) => peers().map(|_| Product::Etcd).into_iter().collect(),
        Ok(other) => panic!("REVD_CLUSTERS={other:?} is neither revd nor etcd"),
    }
}

impl Cluster {
    /// Starts all members, and waits until each has a leader.
    pub async fn start(product: Product, wiring: Wiring, dir: &Path, members: usize, flags: &[&str]) -> Self {
        let listen: Vec<SocketAddr> = (0..members).map(|_| free_address()).collect();
        let mut advertised = listen.clone();
        let network = (wiring == Wiring::Proxied).then(|| {
            advertised = (0..members).map(|_| free_address()).collect();
            Network::start(advertised.iter().copied().zip(listen.iter().copied()).collect())
        });
        let initial: Vec<_> =
            advertised.iter().enumerate().map(|(at, url)| format!("m{at}=http://{url}")).collect();
        let initial = initial.join(",");
        let members = listen.iter().zip(&advertised).enumerate().map(|(at, (listen, advertised))| {
            let mut all = vec!["--name".to_owned(), format!("m{at}")];
            all.extend(["--listen-peer-urls".to_owned(), format!("http://{listen}")]);
            all.extend(["--initial-advertise-peer-urls".to_owned(), format!("http://{advertised}")]);
            all.extend(["--initial-cluster".to_owned(), initial.clone()]);
            if product == Product::Etcd {
                all.extend(["--log-level", "error"].map(str::to_owned));
            }
            all.extend(flags.iter().map(|flag| (*flag).to_owned()));
            Server::spawn_member(product, free_address(), &dir.join(format!("m{at}")), &all)
        });
        let mut cluster = Self { product, members: members.collect(), network };
        cluster.members.iter_mut().for_each(Server::wait_until_ready);
        cluster.wait_until_all_answer().await;
        cluster
    }

    /// Members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// A client of one member, which connects when it has something to send.
    pub fn client(&self, member: usize) -> Client {
        connect_lazily(&self.members[member].endpoint(), PATIENCE)
    }

    /// A client of each.
    pub fn clients(&self) -> Vec<Client> {
        (0..self.len()).map(|member| self.client(member)).collect()
    }

    /// The member that leads; waits until one does.
    pub async fn leader(&self) -> usize {
        within(START_DEADLINE, "no member leads", async || {
            for member in 0..self.len() {
                let status = self.client(member).maintenance.status(StatusRequest {}).await;
                let Ok(status) = status.map(tonic::Response::into_inner) else { continue };
                if status.leader != 0 && status.leader == status.header.unwrap().member_id {
                    return Some(member);
                }
            }
            None
        })
        .await
    }

    /// Waits until this member answers a linearizable read.
    pub async fn wait_until_answers(&self, member: usize) {
        let client = self.client(member);
        let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
        let why = format!("member {member} does not answer");
        within(START_DEADLINE, &why, async || client.kv.clone().range(request.clone()).await.ok()).await;
    }

    /// Waits until all do.
    pub async fn wait_until_all_answer(&self) {
        for member in 0..self.len() {
            self.wait_until_answers(member).await;
        }
    }

    /// The member and the others do not hear each other any more; needs [`Wiring::Proxied`].
    pub fn isolate(&self, member: usize) {
        (0..self.len()).filter(|other| *other != member).for_each(|other| self.network().cut(member, other));
    }

    /// All members hear each other.
    pub fn mend(&self) {
        self.network().mend();
    }

    /// The network, which can be cut.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("members that are wired through proxies")
    }
}

/// Asks until there is an answer; fails with `why` when there is none in time.
pub async fn within<T>(deadline: Duration, why: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(deadline, asking).await.unwrap_or_else(|_| panic!("{why}"))
}
