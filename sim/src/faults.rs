//! The storm of a run: which faults there are in it, how often, and how long each lasts. Each seed
//! draws some kinds and leaves others out, so that runs differ.

use revd_engine::random::Random;

use crate::disk::DiskFaults;
use crate::outside::Part;
use crate::time::{MILLISECOND, Micros, SECOND};

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
}

/// A fault of the storm. Its seed says where it is and how long it lasts: it stays the same when
/// others are left out.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// When.
    pub at: Micros,
    /// Which.
    pub kind: FaultKind,
    pub(crate) seed: u64,
}

/// The end of a fault.
#[derive(Debug, Clone)]
pub(crate) enum Undo {
    Uncut(Vec<(usize, usize)>),
    FastLink(usize),
    Mend(usize),
    FastPart(usize, Part),
    NoFlips,
    Outbox,
    KillAgain(usize),
}

/// The faults of a seed, by time.
#[must_use]
pub fn storm(seed: u64) -> Vec<Fault> {
    let mut random = Random::new(seed ^ 0xFA17_5702);
    let mut weighted = Vec::new();
    for kind in FaultKind::ALL {
        let weight = if random.below(5) < 2 { 0 } else { 1 + random.below(8) };
        (0..weight).for_each(|_| weighted.push(*kind));
    }
    if weighted.is_empty() {
        weighted.push(FaultKind::Kill);
    }
    let count = 26 + random.below(30);
    let pause = [100 * MILLISECOND, 400 * MILLISECOND, SECOND];
    let pause = random.pick(&pause);
    let mut at = 2 * SECOND;
    let faults = (0..count).map(|_| {
        at += 1 + random.below(2 * pause);
        Fault { at, kind: random.pick(&weighted), seed: random.number() }
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
