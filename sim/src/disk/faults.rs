//! Faults and troubles of a disk, and names for what takes time.

use revd_engine::random::Random;

use crate::time::Micros;

/// The fault kinds of a member's disk in one run, drawn by the swarm: chances out of 1,000 each.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// A crash is the end of the process alone: the next one sees all that was written, synced or
    /// not, but for calls that were under way; one of these may land later.
    pub only_process: u32,
    /// At a crash of the machine: a sector of an unsynced write is lost; else it landed.
    pub lost_sector: u32,
    /// At a crash of the machine: an unsynced write is lost whole.
    pub lost_write: u32,
    /// At a crash of the machine: a file that was renamed, made or removed and whose folder was not
    /// synced has its former name again.
    pub undone_name: u32,
    /// At a crash: some bit of what is durable has changed; to be noticed when it is read.
    pub rot: u32,
}

impl DiskFaults {
    /// All that was written is there after a crash of the machine.
    pub const KEEPS_ALL: Self =
        Self { only_process: 0, lost_sector: 0, lost_write: 0, undone_name: 0, rot: 0 };
    /// Nothing that was not synced is.
    pub const KEEPS_SYNCED: Self = Self { lost_write: 1_000, undone_name: 1_000, ..Self::KEEPS_ALL };
    /// Any sectors of it are.
    pub const KEEPS_SOME: Self = Self { lost_sector: 500, undone_name: 500, ..Self::KEEPS_ALL };
    /// Only the process ends.
    pub const PROCESS: Self = Self { only_process: 1_000, ..Self::KEEPS_ALL };

    /// Those of one run: each kind is there or not.
    #[must_use]
    pub fn draw(random: &mut Random) -> Self {
        let mut kind = |chances: &[u32]| random.pick(chances);
        Self {
            only_process: kind(&[0, 300, 900]),
            lost_sector: kind(&[0, 100, 500]),
            lost_write: kind(&[0, 200, 700]),
            undone_name: kind(&[0, 200, 700]),
            rot: 0,
        }
    }

    /// Those of one crash: one in four loses nothing, one in four all that was not synced.
    pub(super) fn of_crash(&self, random: &mut Random) -> Self {
        let (only_process, rot) = (self.only_process, self.rot);
        match random.below(4) {
            0 => Self { only_process, rot, ..Self::KEEPS_ALL },
            1 if self.lost_write > 0 => Self { only_process, rot, ..Self::KEEPS_SYNCED },
            _ => *self,
        }
    }
}

/// A trouble of the disk, for as long as the world says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Nothing grows: no space, but that of the reserve once it is given up, and of files that are
    /// removed.
    pub is_full: bool,
    /// Each call takes so much longer.
    pub slow: Micros,
    /// Nothing ends until the trouble is over: the world does not call `Directory::end`.
    pub is_stuck: bool,
    /// The call after so many fails with an error of the system, and so does every later one of the
    /// same process, until the trouble is over. After a sync that fails the cache takes what it
    /// holds for clean, as kernels do: later processes see it, and no sync is for it any more.
    pub fails_after: Option<u32>,
    /// A sync says that it is done and is not: a later one without this trouble is for all of it.
    pub lies: bool,
}

/// A call or job that was begun, named for `Directory::end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Something that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Its name.
    pub ticket: Ticket,
    /// How long it takes.
    pub cost: Micros,
    /// How long it would take on a disk without trouble: when that is mended, no more is left.
    pub usual: Micros,
}

/// A crash, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    /// The machine and its caches went on.
    pub is_process_alone: bool,
    /// Changes that were not durable.
    pub unsynced: usize,
    /// The file in which a bit has changed, and where.
    pub rotten: Option<(String, u64)>,
}
