//! The storm of a run: which faults there are in it, how often, and how long each lasts. Each seed
//! draws some kinds and leaves others out, so that runs differ.

use revd_engine::random::Random;

use crate::clients::Waits;
use crate::disk::DiskFaults;
use crate::outside::Part;
use crate::time::{MILLISECOND, Micros, SECOND};

/// How much happens in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pace {
    /// Fault upon fault, and clients that ask all the time: half a minute.
    #[default]
    Dense,
    /// As many faults in an hour, with calm times between them.
    Sparse,
}

impl Pace {
    /// How long clients, watchers and the probe wait in a cluster in which an election takes so
    /// long. With a pause of 2 ms, one sparse client made half of all entries of its run.
    #[must_use]
    pub(crate) fn waits(self, election: Micros) -> Waits {
        match self {
            Self::Dense => Waits { patience: 1, pause_min: 0, election, recovery: 0 }, // it is in the slack
            Self::Sparse => {
                Waits { patience: 160, pause_min: 40 * MILLISECOND, election, recovery: 2 * election }
            }
        }
    }

    /// A step of raft's clock. Eleven of twelve sparse clusters have the heartbeats of long ways,
    /// and elect a leader after five seconds or more: a quick clock costs four times the events.
    pub(crate) fn tick(self, random: &mut Random) -> Micros {
        match self {
            Self::Sparse if !random.one_in(12) => 500 * MILLISECOND,
            Self::Dense | Self::Sparse => 100 * MILLISECOND,
        }
    }

    /// The mean time between two faults is one of these.
    fn pauses(self) -> [Micros; 3] {
        match self {
            Self::Dense => [100 * MILLISECOND, 400 * MILLISECOND, SECOND],
            Self::Sparse => [30 * SECOND, 90 * SECOND, 150 * SECOND],
        }
    }

    /// A fault lasts no longer than one of these.
    #[must_use]
    pub(crate) fn lengths(self) -> [Micros; 3] {
        match self {
            Self::Dense => [200 * MILLISECOND, 2 * SECOND, 8 * SECOND],
            Self::Sparse => [200 * MILLISECOND, 8 * SECOND, 60 * SECOND],
        }
    }
}

/// Makes a seed that of its storm.
const STORM: u64 = 0xFA17_5702;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FaultKind {
            $($(#[doc = $doc])* $name,)*
        }

        impl FaultKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

kinds! {
    /// A process is killed, or its machine loses power.
    Kill,
    /// The leader is.
    KillLeader,
    /// A process is killed, and again soon after its next start.
    KillTwice,
    /// All machines lose power at once.
    KillAll,
    /// A member is asked to stop, and started again.
    Stop,
    /// A core stands still while the others go on.
    PausePart,
    /// Each turn of a core takes long.
    SlowPart,
    /// A whole process stands still.
    PauseProcess,
    /// A clock jumps forward.
    ClockJump,
    /// Nothing gets through from one member to another.
    CutOneWay,
    /// Nothing gets from or to a member.
    Isolate,
    /// The leader is cut off.
    IsolateLeader,
    /// Two groups of members do not hear each other.
    Split,
    /// Two groups, but for one member that hears both.
    Bridge,
    /// A connection breaks, at any byte.
    Break,
    /// Everything from or to a member is slow.
    SlowLink,
    /// Bits flip on links.
    Flips,
    /// Outboxes find no room now and then.
    FullOutbox,
    /// A disk is full.
    DiskFull,
    /// A disk is slow.
    DiskSlow,
    /// A disk does nothing.
    DiskStuck,
    /// A disk fails.
    DiskFails,
    /// Space is given back.
    Defragment,
    /// Another member is to lead.
    MoveLeader,
    /// Old revisions are compacted.
    Compact,
    /// The members change.
    Change,
    /// A member loses its disk for good, and is replaced.
    LoseDisk,
    /// A machine loses power, and a bit of its files has flipped when it starts again.
    Rot,
}

/// A fault of the storm. Its seed says where it is and how long it lasts: it stays the same when
/// others are left out. Where it meets nothing, another one comes instead, as its seed says.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// When.
    pub at: Micros,
    /// Which.
    pub kind: FaultKind,
    pub(crate) seed: u64,
    /// So often it was put off, or came instead of one that met nothing.
    misses: u32,
}

/// A fault that has missed so often does not come any more.
const MISSES_MAX: u32 = 200;

impl Fault {
    /// The one that comes instead of this one, which has met nothing.
    pub(crate) fn instead(self, kinds: &[FaultKind]) -> Option<Self> {
        let mut random = Random::new(self.seed ^ 0x0DD5);
        let (kind, seed) = (random.pick(kinds), random.number());
        Self { kind, seed, ..self }.put_off()
    }

    /// The same, a little later.
    pub(crate) fn put_off(self) -> Option<Self> {
        let at = self.at + 1 + self.seed % (400 * MILLISECOND);
        let misses = self.misses + 1;
        (misses <= MISSES_MAX).then_some(Self { at, misses, ..self })
    }
}

/// The end of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undo {
    Uncut(Vec<(usize, usize)>),
    FastLink(usize),
    Mend(usize),
    FastPart(usize, Part),
    NoFlips,
    Outbox,
    /// Of the process of this start of a member.
    KillAgain(usize, u64),
}

/// A member that is lost for good and replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replacing {
    pub(crate) lost: u64,
    /// The id and the place of the one that comes instead.
    pub(crate) instead: Option<(u64, usize)>,
}

/// The kinds that a storm draws from, each as often as it is likely.
fn draw_kinds(random: &mut Random) -> Vec<FaultKind> {
    let mut weighted = Vec::new();
    for kind in FaultKind::ALL {
        let weight = if random.below(5) < 2 { 0 } else { 1 + random.below(8) };
        (0..weight).for_each(|_| weighted.push(*kind));
    }
    // Nothing but the replacement of a lost member may change members: of three voters one is gone,
    // and no other may be.
    let replaces = |kind: &FaultKind| matches!(kind, FaultKind::LoseDisk | FaultKind::Rot);
    if weighted.contains(&FaultKind::Change) && weighted.iter().any(replaces) {
        let is_kept = random.one_in(2);
        weighted.retain(|kind| if is_kept { !replaces(kind) } else { *kind != FaultKind::Change });
    }
    if weighted.is_empty() {
        weighted.push(FaultKind::Kill);
    }
    weighted
}

/// The kinds that the storm of a seed draws from.
pub(crate) fn kinds(seed: u64) -> Vec<FaultKind> {
    draw_kinds(&mut Random::new(seed ^ STORM))
}

/// The faults of a seed, by time.
#[must_use]
pub fn storm(seed: u64, pace: Pace) -> Vec<Fault> {
    let mut random = Random::new(seed ^ STORM);
    let weighted = draw_kinds(&mut random);
    let count = 26 + random.below(30);
    let pause = random.pick(&pace.pauses());
    let mut at = 2 * SECOND;
    let faults = (0..count).map(|_| {
        at += 1 + random.below(2 * pause);
        Fault { at, kind: random.pick(&weighted), seed: random.number(), misses: 0 }
    });
    faults.collect()
}

/// The faults that the disks of a seed have at crashes.
#[must_use]
pub(crate) fn disk_faults(random: &mut Random) -> DiskFaults {
    let mut chance = || [0, 100, 500, 1_000][usize::try_from(random.below(4)).expect("one of four")];
    let (only_process, lost_sector, lost_write, undone_name) = (chance(), chance(), chance(), chance());
    DiskFaults { only_process, lost_sector, lost_write, undone_name, rot: 0 }
}
