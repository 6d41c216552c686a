//! The network between the members of a cluster: a proxy before the peer port of each, which can
//! cut the way between any two of them.
//!
//! A cut way is silent, as a lost network is: connections stay open, new ones are accepted, and
//! what was sent arrives when the way is mended. The member that has opened a connection is found
//! through the process that owns its other end: all dial the same proxy, from any port.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// Two members that do not hear each other, the smaller number first.
type Way = (usize, usize);

/// Proxies on a thread of their own: a test may block its own.
pub struct Network {
    cuts: watch::Sender<BTreeSet<Way>>,
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
        let (cuts, seen) = watch::channel(BTreeSet::new());
        let (end, ended) = oneshot::channel();
        let bound: Vec<_> = members
            .into_iter()
            .map(|(proxy, member)| {
                let listener = std::net::TcpListener::bind(proxy).unwrap();
                listener.set_nonblocking(true).unwrap();
                (listener, member)
            })
            .collect();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for (number, (listener, member)) in bound.into_iter().enumerate() {
                    let listener = TcpListener::from_std(listener).unwrap();
                    tokio::spawn(accept(listener, member, number, seen.clone()));
                }
                let _ = ended.await;
            });
        });
        Self { cuts, end: Some(end), thread: Some(thread) }
    }

    /// Neither of the two hears the other any more.
    pub fn cut(&self, a: usize, b: usize) {
        self.cuts.send_modify(|cuts| {
            cuts.insert(way(a, b));
        });
    }

    /// Everybody hears everybody.
    pub fn mend(&self) {
        self.cuts.send_modify(BTreeSet::clear);
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

async fn accept(
    listener: TcpListener,
    member: SocketAddr,
    number: usize,
    cuts: watch::Receiver<BTreeSet<Way>>,
) {
    loop {
        let Ok((dialled, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // A tool of the test is no member: no cut holds for it.
        let way = member_at(from).map(|dialling| way(dialling, number));
        tokio::spawn(forward(dialled, member, way, cuts.clone()));
    }
}

async fn forward(
    dialled: TcpStream,
    member: SocketAddr,
    way: Option<Way>,
    mut cuts: watch::Receiver<BTreeSet<Way>>,
) {
    open(way, &mut cuts).await;
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
async fn open(way: Option<Way>, cuts: &mut watch::Receiver<BTreeSet<Way>>) {
    if let Some(way) = way {
        let _ = cuts.wait_for(|cuts| !cuts.contains(&way)).await;
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Option<Way>,
    mut cuts: watch::Receiver<BTreeSet<Way>>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        // Also the end of a connection is not heard of over a cut way.
        open(way, &mut cuts).await;
        if read == 0 || to.write_all(&buffer[..read]).await.is_err() {
            return; // dropping the half ends the connection for the other side
        }
    }
}

/// The number of the member whose process has this end of a connection: a child of this process.
fn member_at(address: SocketAddr) -> Option<usize> {
    let inode = inode_of(address)?;
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

/// The inode of a socket, from the system's table of IPv4 connections (proc_net(5)), which has
/// addresses as numbers of the machine: a little-endian one, as all that revd runs on.
fn inode_of(address: SocketAddr) -> Option<u64> {
    let SocketAddr::V4(address) = address else { return None };
    let local = format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(local.as_str()))?;
    line.split_whitespace().nth(9)?.parse().ok()
}
