//! Faults: promises that a check has found broken.

use std::fmt;

/// A check. Each stands for one promise of etcd's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Writes, replayed in the order of their revisions, give every reply.
    Replay,
    /// Reads show what the replay has at their revision.
    Reads,
    /// A write has a higher revision than all that was shown before it began.
    Order,
    /// A linearizable call shows all that was shown before it began.
    StaleRead,
    /// A member never shows an older revision than before.
    GoesBack,
    /// Each key is linearizable by its values alone.
    Registers,
    /// No circle of transactions that append to lists and read them.
    Lists,
    /// Watchers are told of everything once, in order, in whole revisions.
    Watches,
    /// Leases live as long as their holders were promised, and not for ever.
    Leases,
    /// A lock has one holder.
    Locks,
    /// Members are equal behind the same entry.
    Members,
    /// `HashKV` is the hash of what the replay has.
    HashKv,
    /// Clients meet no other errors than a cluster under faults may give.
    Errors,
}

/// A promise that was not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The check that found it.
    pub check: Check,
    /// The fault in words.
    pub text: String,
}

impl Fault {
    /// A fault in these words.
    pub fn new(check: Check, text: impl Into<String>) -> Self {
        Self { check, text: text.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {:.2000}", self.check, self.text)
    }
}
