//! The events of a run, and the rules that they keep.

use std::collections::BTreeMap;

use revd_engine::mvcc::StateHash;
use revd_member::apply::CommittedEntry;

/// The truth about a run, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct History {
    leaders: BTreeMap<u64, u64>,
    /// By index: the entry, and revision and state hash behind it.
    applied: BTreeMap<u64, (CommittedEntry, i64, StateHash)>,
    /// The highest revision that a call has returned.
    returned: i64,
    pub(crate) seen: Seen,
}

/// Counts of what has happened, so that it is known that something did.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) leaders: u64,
    pub(crate) entries: u64,
    pub(crate) puts: u64,
    pub(crate) reads: u64,
    pub(crate) lost: u64,
    pub(crate) refused_reads: u64,
    pub(crate) crashes: u64,
    pub(crate) cuts: u64,
    pub(crate) forwards: u64,
    pub(crate) handed_over: u64,
    /// Members that went on from the state of another one.
    pub(crate) states: u64,
    /// States that came when the term in which they were sent was over.
    pub(crate) late_states: u64,
    /// Reads of entries that had left memory, and those that failed.
    pub(crate) fetches: u64,
    pub(crate) unread: u64,
    /// State hashes that members have told a leader.
    pub(crate) hashes: u64,
    /// Of everything, so that equal runs are known.
    pub(crate) digest: u64,
}

impl Seen {
    pub(crate) fn add(&mut self, other: &Self) {
        self.leaders += other.leaders;
        self.entries += other.entries;
        self.puts += other.puts;
        self.reads += other.reads;
        self.lost += other.lost;
        self.refused_reads += other.refused_reads;
        self.crashes += other.crashes;
        self.cuts += other.cuts;
        self.forwards += other.forwards;
        self.handed_over += other.handed_over;
        self.states += other.states;
        self.late_states += other.late_states;
        self.fetches += other.fetches;
        self.unread += other.unread;
        self.hashes += other.hashes;
    }

    pub(crate) fn is_everything(&self) -> bool {
        let Self { leaders, entries, puts, reads, lost, refused_reads, crashes, cuts, .. } = self;
        let counts = [leaders, entries, puts, reads, lost, refused_reads, crashes, cuts];
        let more =
            [&self.forwards, &self.handed_over, &self.states, &self.late_states, &self.fetches, &self.unread];
        counts.into_iter().chain(more).chain([&self.hashes]).all(|count| *count > 0)
    }

    pub(crate) fn mix(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }
}

impl History {
    pub(crate) fn leads(&mut self, member: u64, term: u64) {
        let leader = self.leaders.entry(term).or_insert_with(|| {
            self.seen.leaders += 1;
            member
        });
        assert_eq!(*leader, member, "two leaders of term {term}");
        self.seen.mix(term << 8 | member);
    }

    pub(crate) fn applied(&mut self, entry: &CommittedEntry, revision: i64, hash: StateHash) {
        let first = self.applied.entry(entry.index).or_insert_with(|| {
            self.seen.entries += 1;
            (entry.clone(), revision, hash)
        });
        assert_eq!(
            *first,
            (entry.clone(), revision, hash),
            "entry {} is not the same everywhere",
            entry.index
        );
        self.seen.mix(entry.index);
    }

    /// A call begins: it must return at least this revision.
    pub(crate) fn called(&self) -> i64 {
        self.returned
    }

    pub(crate) fn put(&mut self, floor: i64, revision: i64) {
        assert!(revision > floor, "a put of revision {revision} began when {floor} had been returned");
        self.returned = self.returned.max(revision);
        self.seen.puts += 1;
        self.seen.mix(revision.cast_unsigned());
    }

    pub(crate) fn read(&mut self, floor: i64, revision: i64) {
        assert!(revision >= floor, "a read at revision {revision} began when {floor} had been returned");
        self.returned = self.returned.max(revision);
        self.seen.reads += 1;
        self.seen.mix(revision.cast_unsigned());
    }
}
