//! The data directory of one member: what is in its files, what a crash leaves of them, and the
//! troubles of its disk.
//!
//! A directory outlives the processes of its member. Its calls change what a process sees at once;
//! what they cost in virtual time, and when they are durable, is said by [`Begun`]: the world calls
//! [`Directory::end`] when that time is over. A call that has not ended by a crash may have
//! happened in part or not at all.

use std::sync::Arc;

use revd_engine::disk::Disk;
use revd_engine::random::Random;
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;

use crate::time::Micros;

/// The fault kinds of a member's disk in one run, drawn by the swarm: chances out of 1,000 each.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// At a crash: a sector of an unsynced write is lost; else it landed.
    pub lost_sector: u32,
    /// At a crash: an unsynced write is lost whole.
    pub lost_write: u32,
    /// At a crash: a file that was renamed, made or removed and whose directory was not synced has
    /// its former name again.
    pub undone_name: u32,
    /// At a crash: some bit of what is durable has changed; to be noticed at the next start.
    pub rot: u32,
    /// A sync says that it is done and is not: a mode, to be noticed.
    pub lying_sync: u32,
}

/// A trouble of the disk, for as long as the world says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Nothing grows: no space.
    pub is_full: bool,
    /// Everything takes so much longer.
    pub slow: Micros,
    /// Nothing ends until the trouble is over.
    pub is_stuck: bool,
    /// The call after so many fails with an error of the system.
    pub fails_after: Option<u32>,
}

/// A call that was begun, named for [`Directory::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A call that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// Its name.
    pub ticket: Ticket,
    /// How long it takes. While the disk is stuck the world calls `end` only afterwards.
    pub cost: Micros,
}

/// A member's directory. Clones share it.
#[derive(Clone)]
pub struct Directory {}

impl Directory {
    /// An empty one.
    #[must_use]
    pub fn new(_random: Random) -> Self {
        unimplemented!("by the owner of this folder")
    }

    /// A process is killed: calls that have not ended happen in part, unsynced writes are lost,
    /// torn or land. Handles of the process are dead: what they write from now on goes nowhere.
    pub fn crash(&self, _random: &mut Random, _faults: &DiskFaults) {
        unimplemented!("by the owner of this folder")
    }

    /// From now on the disk has this trouble, or none.
    pub fn set_trouble(&self, _trouble: Trouble) {
        unimplemented!("by the owner of this folder")
    }

    /// Runs a helper's job (a checkpoint that is written, a part of a state, a rename) at once; its
    /// calls are not durable, and none is sure to have happened, before it ends. The world hands
    /// its result on only then.
    pub fn job<T>(&self, _job: impl FnOnce() -> T) -> (T, Begun) {
        unimplemented!("by the owner of this folder")
    }

    /// The calls of the log's handles that were begun since the last time.
    pub fn take_begun(&self) -> Vec<Begun> {
        unimplemented!("by the owner of this folder")
    }

    /// The time of a call or job is over: it has happened. The log's futures are polled next.
    pub fn end(&self, _ticket: Ticket) {
        unimplemented!("by the owner of this folder")
    }

    /// The log's files, for a `WalWriter`: its futures are ready when the world has ended what they
    /// have begun (`revd_member::wal::disk::LogDisk`).
    #[must_use]
    pub fn log(&self) -> LogFiles {
        unimplemented!("by the owner of this folder")
    }

    /// Effects of a start (`revd_member::boot::recovery::RecoveryEffects`, with `Error = String`);
    /// `ask_others` answers for the other members. It costs no virtual time. The tree file, the log
    /// and received states are opened and checked as the server does.
    pub fn recovery<'d>(
        &'d self,
        _ask_others: &'d mut dyn FnMut(&InitialCluster) -> Option<RemoteCluster>,
    ) -> Recovering<'d> {
        unimplemented!("by the owner of this folder")
    }

    /// `receiving.tmp`, made new.
    ///
    /// # Errors
    /// When the disk has no room for so many bytes.
    pub fn begin_receiving(&self, _bytes: u64) -> Result<Arc<dyn Disk>, String> {
        unimplemented!("by the owner of this folder")
    }

    /// `receiving.tmp` becomes `received.revd`.
    pub fn keep_received(&self) {
        unimplemented!("by the owner of this folder")
    }

    /// `received.revd`, to open it.
    #[must_use]
    pub fn received(&self) -> Arc<dyn Disk> {
        unimplemented!("by the owner of this folder")
    }

    /// `received.revd` becomes the tree file.
    pub fn install_received(&self) {
        unimplemented!("by the owner of this folder")
    }

    /// Both files of received states are removed.
    pub fn forget_received(&self) {
        unimplemented!("by the owner of this folder")
    }
}

/// The log's files (`LogDisk`).
pub struct LogFiles {}

/// Effects of a start (`RecoveryEffects`).
pub struct Recovering<'d> {
    _directory: &'d Directory,
}
