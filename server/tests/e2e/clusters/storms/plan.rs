//! The faults of a storm, drawn from a seed: which, where, when, and for how long.
//!
//! Swarm style: each seed draws how often each kind comes, some of them never. Members stand in
//! seats: who is replaced leaves his to the next.

use std::time::Duration;

use crate::harness::{Fault, Product, Random};

/// Before the first fault, in which clients begin.
const CALM: Duration = Duration::from_secs(2);
/// A fault begins this often on average.
const INTERVAL_MILLIS: u64 = 1_300;
/// Faults last from so many milliseconds to so many.
const LENGTHS_MILLIS: (u64, u64) = (400, 6_000);

/// A fault of the storm.
#[derive(Clone, Debug, PartialEq)]
pub enum Blow {
    /// kill -9 of these seats at once, and a start afterwards.
    Kill(Vec<usize>),
    /// SIGSTOP, and SIGCONT afterwards.
    Pause(usize),
    /// SIGTERM, and a start afterwards with other flags, or another binary.
    Restart(usize),
    /// A seat and all others do not hear each other.
    Isolate(usize),
    /// One direction between two seats.
    Line {
        from: usize,
        to: usize,
        fault: Fault,
    },
    /// Both directions between a seat and its clients.
    Clients {
        seat: usize,
        fault: Fault,
    },
    /// Clients whose bytes are damaged, and who read.
    Strangers(usize),
    MoveLeader,
    /// The seat on a small disk has no room left.
    FullDisk,
    /// Something else writes and syncs on the same disk.
    BusyDisk,
    /// A member is killed, removed and wiped; another one joins in its seat.
    Replace(usize),
    Compact,
    Defragment(usize),
}

impl Blow {
    /// Its name in a ledger.
    pub fn name(&self) -> String {
        let name = match self {
            Self::Kill(seats) if seats.len() > 1 => "kill several",
            Self::Kill(_) => "kill",
            Self::Pause(_) => "pause",
            Self::Restart(_) => "restart otherwise",
            Self::Isolate(_) => "isolate",
            Self::Line { fault, .. } => return format!("peers: {}", name(*fault)),
            Self::Clients { fault, .. } => return format!("clients: {}", name(*fault)),
            Self::Strangers(_) => "strangers: flipped bits",
            Self::MoveLeader => "move leader",
            Self::FullDisk => "full disk",
            Self::BusyDisk => "busy disk",
            Self::Replace(_) => "replace",
            Self::Compact => "compact",
            Self::Defragment(_) => "defragment",
        };
        name.to_owned()
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Silence => "silence one way",
        Fault::BlackHole => "black hole",
        Fault::Reset => "reset",
        Fault::HalfOpen => "half-open",
        Fault::Delay { .. } => "delay",
        Fault::Throttle { .. } => "throttle",
        Fault::CutAt { .. } => "cut at a byte",
        Fault::Corrupt { .. } => "flipped bits",
    }
}

/// A fault with its times, since the storm began.
#[derive(Clone, Debug, PartialEq)]
pub struct Incident {
    pub begin: Duration,
    pub end: Duration,
    pub blow: Blow,
}

/// The kinds of faults that a seed draws its weights for.
const KINDS: usize = 12;

struct Draw {
    random: Random,
    product: Product,
    seats: usize,
}

impl Draw {
    fn seat(&mut self) -> usize {
        usize::try_from(self.random.below(self.seats as u64)).unwrap()
    }

    fn pair(&mut self) -> (usize, usize) {
        let from = self.seat();
        let step = 1 + usize::try_from(self.random.below(self.seats as u64 - 1)).unwrap();
        (from, (from + step) % self.seats)
    }

    fn fault(&mut self, may_corrupt: bool) -> Fault {
        let millis = |random: &mut Random, from, to| Duration::from_millis(from + random.below(to - from));
        match self.random.below(if may_corrupt { 8 } else { 7 }) {
            0 => Fault::Silence,
            1 => Fault::BlackHole,
            2 => Fault::Reset,
            3 => Fault::HalfOpen,
            4 => {
                let least = millis(&mut self.random, 1, 200);
                Fault::Delay { least, jitter: millis(&mut self.random, 1, 300) }
            }
            5 => Fault::Throttle { bytes_per_second: 2_000 + self.random.below(100_000) },
            6 => Fault::CutAt { bytes: 1 + self.random.below(20_000) },
            _ => Fault::Corrupt { every: 500 + self.random.below(20_000) },
        }
    }

    /// A fault of a kind; none where it makes no sense.
    fn blow(&mut self, kind: usize) -> Option<Blow> {
        let has_peers = self.seats > 1;
        Some(match kind {
            0 if self.random.one_in(5) => {
                let mut seats: Vec<_> = (0..self.seats).filter(|_| !self.random.one_in(3)).collect();
                seats.truncate(self.seats);
                if seats.is_empty() { Blow::Kill(vec![self.seat()]) } else { Blow::Kill(seats) }
            }
            0 => Blow::Kill(vec![self.seat()]),
            1 => Blow::Pause(self.seat()),
            2 if has_peers => Blow::Isolate(self.seat()),
            3 if has_peers => {
                let (from, to) = self.pair();
                // The connections of etcd's peers have no checksums without TLS.
                Blow::Line { from, to, fault: self.fault(self.product == Product::Revd) }
            }
            4 => Blow::Clients { seat: self.seat(), fault: self.fault(false) },
            5 => Blow::Strangers(self.seat()),
            6 if has_peers => Blow::MoveLeader,
            7 => Blow::BusyDisk,
            8 if has_peers => Blow::Replace(self.seat()),
            9 => Blow::Compact,
            10 => Blow::Defragment(self.seat()),
            11 => Blow::Restart(self.seat()),
            _ => return None,
        })
    }
}

/// Draws the faults of a storm of some seconds over so many members, by their beginnings. A test
/// may want some of them only.
pub fn draw(
    seed: u64,
    length: Duration,
    seats: usize,
    product: Product,
    is_wanted: Option<&dyn Fn(&Blow) -> bool>,
) -> Vec<Incident> {
    let mut draw = Draw { random: Random::new(seed), product, seats };
    // Lines come in many kinds.
    let most = |kind| if matches!(kind, 3 | 4) { 12 } else { 4 };
    let mut bag = Vec::new();
    for kind in 0..KINDS {
        let weight = draw.random.below(most(kind)).max(u64::from(is_wanted.is_some()));
        bag.extend(vec![kind; usize::try_from(weight).unwrap()]);
    }
    let mut incidents = Vec::new();
    let mut at = CALM;
    while at < length {
        let kind = draw.random.pick(&bag);
        let Some(blow) = draw.blow(kind).filter(|blow| is_wanted.is_none_or(|is_wanted| is_wanted(blow)))
        else {
            continue;
        };
        let (least, most) = LENGTHS_MILLIS;
        let lasts = Duration::from_millis(least + draw.random.below(most - least));
        incidents.push(Incident { begin: at, end: at + lasts, blow });
        at += Duration::from_millis(1 + draw.random.below(2 * INTERVAL_MILLIS));
    }
    // Each storm has a disk without room once, restarts all members one after the other, and
    // compacts.
    let (full, rolling) = (length / 3, length * 3 / 5);
    incidents.push(Incident { begin: full, end: full + Duration::from_secs(4), blow: Blow::FullDisk });
    for seat in 0..seats {
        let begin = rolling + Duration::from_secs(2) * u32::try_from(seat).unwrap();
        incidents.push(Incident { begin, end: begin + Duration::from_secs(1), blow: Blow::Restart(seat) });
    }
    for at in (8..length.as_secs()).step_by(8).map(Duration::from_secs) {
        incidents.push(Incident { begin: at, end: at, blow: Blow::Compact });
    }
    incidents.retain(|incident| is_wanted.is_none_or(|is_wanted| is_wanted(&incident.blow)));
    incidents.sort_by_key(|incident| incident.begin);
    incidents
}

/// How many of these faults, by beginning and end, overlap another, and how many there are at a
/// time at most.
pub fn overlaps(faults: &[(Duration, Duration)]) -> (usize, usize) {
    let at_once = |at: Duration| faults.iter().filter(|(begin, end)| *begin <= at && at < *end).count();
    let meets = |at: usize, other: usize| {
        at != other && faults[at].0 < faults[other].1 && faults[other].0 < faults[at].1
    };
    let all = 0..faults.len();
    let overlapping = all.clone().filter(|at| all.clone().any(|other| meets(*at, other))).count();
    (overlapping, faults.iter().map(|(begin, _)| at_once(*begin)).max().unwrap_or(0))
}
