//! The network between the members of a cluster, and between them and their clients: proxies
//! before their ports, which carry the bytes of each connection as the faults of each direction
//! let them.
//!
//! A cut way is silent, as a lost network is: connections stay open, new ones are accepted, and
//! what was sent arrives when the way is mended. The member that has opened a connection is found
//! through the process that owns its other end: all dial the same proxy, from any port. One that is
//! not found is not let in: its way could not be cut.

mod dialler;
mod faults;
mod tests;
mod wire;

use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

pub use faults::{Fault, Party, Way};

use dialler::member_at;
use faults::Rules;
use wire::forward;

/// A port, and who dials it.
struct Gate {
    listener: TcpListener,
    member: SocketAddr,
    number: usize,
    /// None for the port of peers: each of them is another party.
    dialler: Option<Party>,
}

/// Proxies on a thread of their own: a test may block its own.
pub struct Network {
    rules: Rules,
    gates: Option<UnboundedSender<Gate>>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Proxies: at each first address one for the member that listens at the second. Members are
    /// called `m0`, `m1` and so on.
    pub fn start(members: Vec<(SocketAddr, SocketAddr)>) -> Self {
        let rules = Rules::new();
        let (gates, opened) = unbounded_channel();
        let own = rules.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(open(opened, own));
        });
        let network = Self { rules, gates: Some(gates), thread: Some(thread) };
        for (number, (proxy, member)) in members.into_iter().enumerate() {
            network.add(proxy, member, number, None);
        }
        network
    }

    /// One more proxy before a member: for its peers, or for this party.
    pub fn add(&self, proxy: SocketAddr, member: SocketAddr, number: usize, dialler: Option<Party>) {
        let listener = TcpListener::bind(proxy).unwrap();
        listener.set_nonblocking(true).unwrap();
        let gate = Gate { listener, member, number, dialler };
        assert!(self.gates.as_ref().unwrap().send(gate).is_ok(), "the proxies have ended");
    }

    /// A fault of a way begins; its number.
    pub fn strike(&self, way: Way, fault: Fault) -> u64 {
        self.rules.strike(way, fault)
    }

    /// It ends; how often it has met something that was sent.
    pub fn relieve(&self, number: u64) -> u64 {
        self.rules.mend(number);
        self.rules.met(number)
    }

    /// Neither of the two hears the other any more.
    pub fn cut(&self, a: usize, b: usize) {
        eprintln!("members {a} and {b} are cut off from each other");
        for way in [Way::between(a, b), Way::between(b, a)] {
            self.strike(way, Fault::Silence);
        }
    }

    /// Whether a fault between the two has met something since it began.
    pub fn holds_back(&self, a: usize, b: usize) -> bool {
        let mut strikes =
            [Way::between(a, b), Way::between(b, a)].map(|way| self.rules.strikes(way)).concat();
        strikes.retain(|strike| self.rules.met(strike.number) > 0);
        !strikes.is_empty()
    }

    /// Everybody hears everybody.
    pub fn mend(&self) {
        eprintln!("no member is cut off any more");
        self.rules.mend_all();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.gates.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves all gates until there will be no more.
async fn open(mut gates: UnboundedReceiver<Gate>, rules: Rules) {
    while let Some(gate) = gates.recv().await {
        tokio::spawn(accept(gate, rules.clone()));
    }
}

async fn accept(gate: Gate, rules: Rules) {
    let proxy = gate.listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(gate.listener).unwrap();
    for connection in 0.. {
        let Ok((dialled, from)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        // A member that has ended or given up meanwhile has nothing to say any more; any other
        // dials again.
        let Some(party) = gate.dialler.or_else(|| member_at(from, proxy).map(Party::Member)) else {
            eprintln!("the proxy before member {} does not know who dials it from {from}", gate.number);
            continue;
        };
        let way = Way { from: party, to: Party::Member(gate.number) };
        tokio::spawn(forward(dialled, gate.member, way, rules.clone(), connection));
    }
}
