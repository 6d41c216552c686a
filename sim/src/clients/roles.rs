//! Kinds of clients: the next request of each, and its use of the answer.

use revd_checker::{Call, History};
use revd_engine::random::Random;

use super::gatherer::Gatherer;
use super::holder::Holder;
use super::lister::Lister;
use super::locker::Locker;
use super::next::Next;
use super::reader::Reader;
use super::shared::Shared;
use super::writer::Writer;
use crate::time::Micros;

/// A kind of client, and the knowledge of one of it.
#[derive(Debug)]
pub(super) enum Role {
    Writer(Writer),
    Reader(Reader),
    Lister(Lister),
    Holder(Holder),
    Locker(Locker),
    Gatherer(Gatherer),
}

/// Those that have something which ends by itself wait a quarter of the time of others.
pub(super) fn hasty(patience: u64) -> u64 {
    patience.div_ceil(4)
}

impl Role {
    pub(super) const KINDS: u64 = 6;

    /// How many clients of a kind a run has: the first kind writes in every run, the others are
    /// there or not. Those that gather many keys make a run long.
    pub(super) fn count(kind: u64, random: &mut Random) -> u64 {
        match kind {
            5 => u64::from(random.one_in(4)),
            1.. if random.one_in(2) => 0,
            _ => 1 + random.below(3),
        }
    }

    /// How many times as long a client waits between its calls, where others wait so many: a lease
    /// that lasts for seconds is to be used meanwhile.
    pub(super) fn patience(&self, of_others: u64) -> u64 {
        if matches!(self, Self::Holder(_) | Self::Locker(_)) { hasty(of_others) } else { of_others }
    }

    pub(super) fn new(kind: u64) -> Self {
        match kind {
            0 => Self::Writer(Writer::default()),
            1 => Self::Reader(Reader::default()),
            2 => Self::Lister(Lister::default()),
            3 => Self::Holder(Holder::default()),
            4 => Self::Locker(Locker::default()),
            _ => Self::Gatherer(Gatherer::default()),
        }
    }

    /// The next thing that the client does; it may end when it has been served.
    pub(super) fn next(
        &mut self,
        may_end: bool,
        now: Micros,
        shared: &mut Shared,
        random: &mut Random,
    ) -> Next {
        match self {
            Self::Writer(_) | Self::Reader(_) | Self::Lister(_) if may_end => Next::Done,
            Self::Writer(role) => role.next(shared, random),
            Self::Reader(role) => role.next(shared, random),
            Self::Lister(role) => role.next(shared, random),
            Self::Holder(role) => role.next(may_end, now, shared, random),
            Self::Locker(role) => role.next(may_end, now, shared, random),
            Self::Gatherer(role) => role.next(may_end, shared, random),
        }
    }

    /// A call has ended.
    pub(super) fn learns(&mut self, call: &Call, shared: &mut Shared, history: &mut History) {
        match self {
            Self::Writer(_) | Self::Reader(_) => {}
            Self::Lister(role) => role.learns(call, shared),
            Self::Holder(role) => role.learns(call),
            Self::Locker(role) => role.learns(call, history),
            Self::Gatherer(role) => role.learns(call),
        }
    }

    /// The call has no answer: what it was about is left alone.
    pub(super) fn fails(&mut self) {
        match self {
            Self::Writer(_) | Self::Reader(_) => {}
            Self::Lister(role) => *role = Lister::default(),
            Self::Holder(role) => role.fails(),
            Self::Locker(role) => role.fails(),
            Self::Gatherer(role) => role.fails(),
        }
    }
}
