//! Faults of the ways between members, and between clients and members: which are in force, and how
//! often each has met something that was sent.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

/// One end of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    Member(usize),
    /// Clients whose calls a test records.
    Clients,
    /// Clients whose bytes may be damaged: HTTP/2 without TLS has no checksum, so that they must
    /// not write, and nothing that they read counts.
    Strangers,
}

/// One direction between two parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    pub from: Party,
    pub to: Party,
}

impl Way {
    pub fn back(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    pub fn between(from: usize, to: usize) -> Self {
        Self { from: Party::Member(from), to: Party::Member(to) }
    }
}

/// A fault of one way; several may be in force at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing arrives, and no party is told. The bytes arrive when the way is mended, as after
    /// packets that TCP sends again.
    Silence,
    /// Nothing arrives, and what was sent is lost with its connection when the way is mended.
    BlackHole,
    /// Connections are reset, also new ones.
    Reset,
    /// The receiver's end of each connection is reset, the sender goes on sending to nobody.
    HalfOpen,
    /// Everything arrives late, and in order.
    Delay { least: Duration, jitter: Duration },
    /// A slow line.
    Throttle { bytes_per_second: u64 },
    /// Each connection is reset behind so many bytes: in the midst of a frame.
    CutAt { bytes: u64 },
    /// A bit is flipped now and then, so many bytes apart on average.
    Corrupt { every: u64 },
}

/// A fault in force.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    pub number: u64,
    pub fault: Fault,
}

/// All faults in force, and what the ended ones have met.
#[derive(Debug, Default)]
pub struct Faults {
    of: BTreeMap<Way, Vec<Strike>>,
    last: u64,
    /// How often a fault has met something, by its number.
    met: BTreeMap<u64, u64>,
}

/// The faults of a network, for its proxies and for the test.
#[derive(Clone, Debug)]
pub struct Rules(watch::Sender<Faults>);

impl Rules {
    pub fn new() -> Self {
        Self(watch::Sender::new(Faults::default()))
    }

    /// A fault begins; its number.
    pub fn strike(&self, way: Way, fault: Fault) -> u64 {
        let mut number = 0;
        self.0.send_modify(|faults| {
            faults.last += 1;
            number = faults.last;
            faults.of.entry(way).or_default().push(Strike { number, fault });
        });
        number
    }

    /// A fault ends.
    pub fn mend(&self, number: u64) {
        self.0.send_modify(|faults| {
            faults.of.values_mut().for_each(|strikes| strikes.retain(|strike| strike.number != number));
        });
    }

    /// All end.
    pub fn mend_all(&self) {
        self.0.send_modify(|faults| faults.of.clear());
    }

    /// The faults of a way.
    pub fn strikes(&self, way: Way) -> Vec<Strike> {
        self.0.borrow().of.get(&way).cloned().unwrap_or_default()
    }

    /// A fault has met something that was sent.
    pub fn meet(&self, strike: Strike) {
        self.0.send_if_modified(|faults| {
            *faults.met.entry(strike.number).or_insert(0) += 1;
            false // for nobody to wake up
        });
    }

    /// How often the fault has met something.
    pub fn met(&self, number: u64) -> u64 {
        self.0.borrow().met.get(&number).copied().unwrap_or(0)
    }

    /// Waits until a fault of the way is one that is asked for.
    pub async fn wait_for(&self, way: Way, is_it: impl Fn(Fault) -> bool) -> Strike {
        let mut found = None;
        let look = |faults: &Faults| {
            found = faults.of.get(&way).into_iter().flatten().find(|strike| is_it(strike.fault)).copied();
            found.is_some()
        };
        let _ = self.0.subscribe().wait_for(look).await;
        found.expect("the rules outlive their proxies")
    }

    /// Waits until none of the way's faults is one of these.
    pub async fn wait_without(&self, way: Way, is_it: impl Fn(Fault) -> bool) {
        let look = |faults: &Faults| {
            let mut strikes = faults.of.get(&way).into_iter().flatten();
            !strikes.any(|strike| is_it(strike.fault))
        };
        let _ = self.0.subscribe().wait_for(look).await;
    }
}
