//! The network between the members of a cluster: a proxy before the peer port of each, which can
//! cut the way between any two of them.
//!
//! A cut way is silent, as a lost network is: connections stay open, new ones are accepted, and
//! what was sent arrives when the way is mended. The member that has opened a connection is found
//! through the process that owns its other end: all dial the same proxy, from any port. One that is
//! not found is not let in: its way could not be cut.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// Two members that do not hear each other, the smaller number first.
type Way = (usize, usize);

/// Ways that are cut, and whether something was held back there since.
type Cuts = BTreeMap<Way, bool>;

/// Proxies on a thread of their own: a test may block its own.
pub struct Network {
    cuts: watch::Sender<Cuts>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn way(a: usize, b: usize) -> Way {
    (a.min(b), a.max(b))
}

impl Network {
    /// Proxies: at each first address one for the member that listens at the second. Members are
    /// called `m0`, `m1` and so on.
    pub fn start(members: Vec<(SocketAddr, SocketAddr)>) -> Self {
        let cuts = watch::Sender::new(Cuts::new());
        let (end, ended) = oneshot::channel();
        let bound: Vec<_> = members
            .into_iter()
            .map(|(proxy, member)| {
                let listener = std::net::TcpListener::bind(proxy).unwrap();
                listener.set_nonblocking(true).unwrap();
                (listener, member)
            })
            .collect();
        let own = cuts.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for (number, (listener, member)) in bound.into_iter().enumerate() {
                    let listener = TcpListener::from_std(listener).unwrap();
                    tokio::spawn(accept(listener, member, number, own.clone()));
                }
                let _ = ended.await;
            });
        });
        Self { cuts, end: Some(end), thread: Some(thread) }
    }

    /// Neither of the two hears the other any more.
    pub fn cut(&self, a: usize, b: usize) {
        eprintln!("members {a} and {b} are cut off from each other");
        self.cuts.send_modify(|cuts| {
            cuts.insert(way(a, b), false);
        });
    }

    /// Whether the cut between the two has kept something from the other.
    pub fn holds_back(&self, a: usize, b: usize) -> bool {
        self.cuts.borrow().get(&way(a, b)).is_some_and(|held| *held)
    }

    /// Everybody hears everybody.
    pub fn mend(&self) {
        eprintln!("no member is cut off any more");
        self.cuts.send_modify(Cuts::clear);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, member: SocketAddr, number: usize, cuts: watch::Sender<Cuts>) {
    let proxy = listener.local_addr().unwrap();
    loop {
        let Ok((dialled, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // A member that has ended or given up meanwhile has nothing to say any more; any other
        // dials again.
        let Some(dialling) = member_at(from, proxy) else {
            eprintln!("the proxy before member {number} does not know who dials it from {from}");
            continue;
        };
        tokio::spawn(forward(dialled, member, way(dialling, number), cuts.clone()));
    }
}

async fn forward(dialled: TcpStream, member: SocketAddr, way: Way, cuts: watch::Sender<Cuts>) {
    open(way, &cuts).await;
    let Ok(reached) = TcpStream::connect(member).await else { return };
    for socket in [&dialled, &reached] {
        let _ = socket.set_nodelay(true);
    }
    let (from_dialled, to_dialled) = dialled.into_split();
    let (from_reached, to_reached) = reached.into_split();
    tokio::spawn(pass(from_dialled, to_reached, way, cuts.clone()));
    pass(from_reached, to_dialled, way, cuts).await;
}

/// Waits until the way is open.
async fn open(way: Way, cuts: &watch::Sender<Cuts>) {
    cuts.send_if_modified(|cuts| {
        cuts.entry(way).and_modify(|held| *held = true);
        false // for nobody to wake up
    });
    let _ = cuts.subscribe().wait_for(|cuts| !cuts.contains_key(&way)).await;
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Way,
    cuts: watch::Sender<Cuts>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        // Also the end of a connection is not heard of over a cut way.
        open(way, &cuts).await;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return; // dropping the half ends the connection for the other side
        }
    }
}

/// The number of the member whose process, a child of this one, has the dialling end of a
/// connection.
fn member_at(from: SocketAddr, proxy: SocketAddr) -> Option<usize> {
    let inode = inode_of(from, proxy)?;
    let target = format!("socket:[{inode}]");
    let own = format!("PPid:\t{}", std::process::id());
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let status = std::fs::read_to_string(process.path().join("status")).unwrap_or_default();
        if status.lines().any(|line| line == own) && has_file(&process.path(), &target) {
            let command = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
            let mut words = command.split('\0').skip_while(|word| *word != "--name");
            return words.nth(1)?.strip_prefix('m')?.parse().ok();
        }
    }
    None
}

fn has_file(process: &Path, target: &str) -> bool {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == target))
}

/// The inode of the dialling end of a connection, from the system's table of IPv4 connections
/// (proc_net(5)). Both addresses count: connections to different ones may begin at the same port.
fn inode_of(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let ends = [as_in_table(from)?, as_in_table(to)?];
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let is_it = |line: &&str| line.split_whitespace().skip(1).take(2).eq(ends.iter().map(String::as_str));
    let inode = table.lines().find(is_it)?.split_whitespace().nth(9)?.parse().ok()?;
    (inode != 0).then_some(inode) // else the process has closed it
}

/// An address as a number of the machine: a little-endian one, as all that revd runs on.
fn as_in_table(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port()))
}
