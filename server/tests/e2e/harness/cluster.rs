//! Clusters of revd or of etcd: members on free ports, which are killed, started again, and cut off
//! from each other.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use revd_proto::etcdserverpb::{
    DefragmentRequest, Member, MemberAddRequest, MemberListRequest, MemberRemoveRequest, RangeRequest,
    StatusRequest,
};

use tonic::Code;

use super::clients::{Client, connect_lazily};
use super::network::{Network, Party};
use super::peers::peers;
use super::process::{Product, START_DEADLINE, Server, SmallDisk, free_address};

/// Longer than etcd needs to say that it cannot do something: 5 s and two election timeouts.
const PATIENCE: Duration = Duration::from_secs(15);

/// How members reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wiring {
    Direct,
    /// Through proxies, which can be cut.
    Proxied,
    /// Their clients too, and members of their own that join.
    AllProxied,
}

/// All members, and the network between them.
pub struct Cluster {
    pub product: Product,
    /// By number, also those that were removed.
    pub members: Vec<Server>,
    gone: BTreeSet<usize>,
    wiring: Wiring,
    network: Option<Network>,
    /// Of each member, where clients and strangers find its proxies.
    fronts: Vec<[SocketAddr; 2]>,
}

/// Flags of members that make no other leader on a busy machine.
pub const PATIENT: [&str; 2] = ["--heartbeat-interval=500", "--election-timeout=5000"];

/// The product that a test of clusters runs with: `REVD_CLUSTERS=etcd` tries the test itself.
pub fn products_of_clusters() -> Vec<Product> {
    match std::env::var("REVD_CLUSTERS").as_deref() {
        Ok("revd") | Err(_) => vec![Product::Revd],
        Ok("etcd") if std::env::var_os("REVD_ETCD_BINARY").is_some() => vec![Product::Etcd],
        Ok("etcd") => peers().map(|_| Product::Etcd).into_iter().collect(),
        Ok(other) => panic!("REVD_CLUSTERS={other:?} is neither revd nor etcd"),
    }
}

impl Cluster {
    /// Starts all members, and waits until each has a leader.
    pub async fn start(product: Product, wiring: Wiring, dir: &Path, members: usize, flags: &[&str]) -> Self {
        Self::start_on(product, wiring, dir, members, flags, None).await
    }

    /// The same, with one member on a disk of its own, which is mounted there.
    pub async fn start_on(
        product: Product,
        wiring: Wiring,
        dir: &Path,
        members: usize,
        flags: &[&str],
        disk: Option<(usize, &SmallDisk, &Path)>,
    ) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let listen: Vec<SocketAddr> = (0..members).map(|_| free_address()).collect();
        let mut advertised = listen.clone();
        let network = (wiring != Wiring::Direct).then(|| {
            advertised = (0..members).map(|_| free_address()).collect();
            Network::start(advertised.iter().copied().zip(listen.iter().copied()).collect())
        });
        let initial: Vec<_> =
            advertised.iter().enumerate().map(|(at, url)| format!("m{at}=http://{url}")).collect();
        let initial = initial.join(",");
        let members = listen.iter().zip(&advertised).enumerate().map(|(at, (listen, advertised))| {
            let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
            let own = disk.filter(|(member, ..)| *member == at);
            let (disk, dir) = own.map_or((None, dir), |(_, disk, dir)| (Some(disk), dir));
            spawn((product, disk), dir, at, (*listen, *advertised), &initial, flags)
        });
        let members = members.collect();
        let mut cluster =
            Self { product, members, gone: BTreeSet::new(), wiring, network, fronts: Vec::new() };
        (0..cluster.members.len()).for_each(|member| cluster.front(member));
        cluster.members.iter_mut().for_each(Server::wait_until_ready);
        cluster.wait_until_all_answer().await;
        cluster
    }

    /// Members by number, without those that were removed.
    pub fn present(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|member| !self.gone.contains(member))
    }

    /// Starts one more member, and returns its number; it may not serve yet.
    pub async fn add(&mut self, dir: &Path) -> usize {
        self.add_with(dir, false, &[]).await
    }

    /// The same, of a learner or with flags of its own.
    pub async fn add_with(&mut self, dir: &Path, is_learner: bool, flags: &[&str]) -> usize {
        let place = self.place();
        let url = format!("http://{}", place.1);
        let client = self.client(self.present().next().unwrap());
        let members = within(START_DEADLINE, "no member can be added", async || {
            let request = MemberAddRequest { peer_ur_ls: vec![url.clone()], is_learner };
            match client.cluster.clone().member_add(request).await {
                Ok(reply) => Some(reply.into_inner().members),
                // All have to be connected for five seconds.
                Err(status) if status.message() == "etcdserver: unhealthy cluster" => None,
                // The call may have been carried out.
                Err(status) if is_unknown(&status) => self.list(&client, &url).await,
                Err(status) => panic!("{status}"),
            }
        })
        .await;
        self.join(dir, place, &members, flags)
    }

    /// Where the next member listens for others, and where they find it.
    pub fn place(&self) -> (SocketAddr, SocketAddr) {
        let listen = free_address();
        if self.wiring != Wiring::AllProxied {
            return (listen, listen);
        }
        let proxy = free_address();
        self.network().add(proxy, listen, self.members.len(), None);
        (listen, proxy)
    }

    /// Starts a member that was added at a place, and returns its number; it may not serve yet.
    pub fn join(
        &mut self,
        dir: &Path,
        place: (SocketAddr, SocketAddr),
        members: &[Member],
        flags: &[&str],
    ) -> usize {
        let number = self.members.len();
        let named = members.iter().map(|member| {
            let own = format!("m{number}");
            let name = if member.name.is_empty() { &own } else { &member.name };
            format!("{name}={}", member.peer_ur_ls[0])
        });
        let initial = named.collect::<Vec<_>>().join(",");
        let flags = ["--initial-cluster-state=existing"].iter().chain(flags);
        let flags = flags.map(|flag| (*flag).to_owned()).collect();
        self.members.push(spawn((self.product, None), dir, number, place, &initial, flags));
        self.front(number);
        number
    }

    /// Proxies before the clients' port of a member.
    fn front(&mut self, member: usize) {
        if self.wiring != Wiring::AllProxied {
            return;
        }
        let server = self.members[member].address;
        let front = [Party::Clients, Party::Strangers].map(|party| {
            let proxy = free_address();
            self.network().add(proxy, server, member, Some(party));
            proxy
        });
        self.fronts.push(front);
    }

    /// A client of one member behind a proxy: the first one of clients, the second of strangers.
    /// A call that is not answered in this time fails.
    pub fn clients_behind_proxies(&self, member: usize, patience: Duration) -> [Client; 2] {
        self.fronts[member].map(|front| connect_lazily(&format!("http://{front}"), patience))
    }

    /// All members, if one has this URL.
    async fn list(&self, client: &Client, url: &str) -> Option<Vec<Member>> {
        let request = MemberListRequest { linearizable: true };
        let members = client.cluster.clone().member_list(request).await.ok()?.into_inner().members;
        let is_there = members.iter().any(|member| member.peer_ur_ls.iter().any(|known| known == url));
        is_there.then_some(members)
    }

    /// Removes a member; returns when its process has ended by itself, as it should.
    pub async fn remove(&mut self, member: usize) {
        let status = self.client(member).maintenance.status(StatusRequest {}).await.unwrap();
        let id = status.into_inner().header.unwrap().member_id;
        self.gone.insert(member);
        let client = self.client(self.present().last().unwrap());
        within(START_DEADLINE, "the member cannot be removed", async || {
            match client.cluster.clone().member_remove(MemberRemoveRequest { id }).await {
                Ok(_) => Some(()),
                Err(status) if status.message() == "etcdserver: member not found" => Some(()),
                Err(status) if is_unknown(&status) => None,
                Err(status) => panic!("{status}"),
            }
        })
        .await;
        self.wait_until_ends(member).await;
    }

    /// A member that was removed while it was down does not count any more.
    pub fn forget(&mut self, member: usize) {
        self.gone.insert(member);
    }

    /// Waits until a removed member has ended by itself, as one that has nothing left to do.
    pub async fn wait_until_ends(&mut self, member: usize) {
        let server = &mut self.members[member];
        let why = format!("member {member} is removed and does not end");
        within(START_DEADLINE, &why, async || (!server.is_running()).then_some(())).await;
        let (status, log) = (server.wait(), server.log());
        assert!(status.success(), "member {member} is removed and ends with {status}: {log}");
        assert!(!log.contains("a bug in revd"), "member {member} is removed and ends badly: {log}");
    }

    /// A client of one member, which connects when it has something to send.
    pub fn client(&self, member: usize) -> Client {
        connect_lazily(&self.members[member].endpoint(), PATIENCE)
    }

    /// A client of each.
    pub fn clients(&self) -> Vec<Client> {
        self.present().map(|member| self.client(member)).collect()
    }

    /// The member that leads; waits until one does.
    pub async fn leader(&self) -> usize {
        within(START_DEADLINE, "no member leads", async || {
            for member in self.present() {
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
        for member in self.present() {
            self.wait_until_answers(member).await;
        }
    }

    /// The other members have a checkpoint of all that they have applied, so that the log of a revd
    /// may let go of it. It begins one up to half a second behind a change; a defragmentation ends
    /// with one.
    pub async fn save_without(&self, away: usize) {
        for member in self.present().filter(|member| *member != away) {
            self.client(member).maintenance.defragment(DefragmentRequest {}).await.unwrap();
        }
    }

    /// The member and the others do not hear each other any more; needs proxies.
    pub fn isolate(&self, member: usize) {
        self.present().filter(|other| *other != member).for_each(|other| self.network().cut(member, other));
    }

    /// All members hear each other.
    pub fn mend(&self) {
        self.network().mend();
    }

    /// The network, which has faults when a test wants them.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("members that are wired through proxies")
    }
}

/// A call that was given up: the server may have carried it out. etcd waits without an end for a
/// change of members that raft has left out because another was under way.
fn is_unknown(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded)
}

/// A member on its addresses: the one that it listens on for others, and the one they are told.
fn spawn(
    (product, disk): (Product, Option<&SmallDisk>),
    dir: &Path,
    number: usize,
    (listen, advertised): (SocketAddr, SocketAddr),
    initial: &str,
    flags: Vec<String>,
) -> Server {
    let mut all = vec!["--name".to_owned(), format!("m{number}")];
    all.extend(["--listen-peer-urls".to_owned(), format!("http://{listen}")]);
    all.extend(["--initial-advertise-peer-urls".to_owned(), format!("http://{advertised}")]);
    all.extend(["--initial-cluster".to_owned(), initial.to_owned()]);
    if product == Product::Etcd {
        all.extend(["--log-level", "error"].map(str::to_owned));
    }
    all.extend(flags);
    Server::spawn_member_on(disk, product, free_address(), &dir.join(format!("m{number}")), &all)
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
