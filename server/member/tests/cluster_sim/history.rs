//! The events of a run, and the rules that they keep.

use std::collections::{BTreeMap, BTreeSet};

use revd_engine::mvcc::StateHash;
use revd_member::apply::CommittedEntry;
use revd_member::apply::command::{self, Batch, Command, CommandId, Kind, Origin};
use revd_member::cluster::conf_state::ConfState;
use revd_member::cluster::membership::Membership;
use revd_member::error::Error;

use crate::told::Told;

/// The state of a member behind an entry, as far as members are compared while they run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ClusterAt {
    pub(crate) revision: i64,
    pub(crate) hash: StateHash,
    pub(crate) membership: Membership,
    pub(crate) votes: ConfState,
}

impl ClusterAt {
    /// Rows and votes say the same.
    fn check(&self) {
        let ids = |is_learner: bool| -> Vec<u64> {
            let members = self.membership.members().filter(|member| member.is_learner == is_learner);
            members.map(|member| member.id).collect()
        };
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        assert_eq!((ids(false), ids(true)), (sorted(&self.votes.voters), sorted(&self.votes.learners)));
        assert!(self.votes.voters_outgoing.is_empty() && self.votes.learners_next.is_empty());
        let is_back = self.membership.members().find(|member| self.membership.is_removed(member.id));
        assert_eq!(is_back, None, "a removed member is one again");
    }
}

/// A member that has begun to lead, and those that had a vote when it was elected.
#[derive(Debug)]
pub(crate) struct NewLeader {
    pub(crate) term: u64,
    pub(crate) member: u64,
    pub(crate) voters: Vec<u64>,
}

/// The truth about a run, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct History {
    leaders: BTreeMap<u64, u64>,
    /// By index: the entry, and revision and state hash behind it.
    applied: BTreeMap<u64, (CommittedEntry, i64, StateHash)>,
    /// By index: the cluster behind the entry, if it has changed there.
    clusters: BTreeMap<u64, ClusterAt>,
    /// Leaders and entries that are new since they were taken.
    pub(crate) new_leaders: Vec<NewLeader>,
    pub(crate) new_entries: Vec<u64>,
    /// All commands of entries that were applied.
    commands: BTreeSet<(u64, u64, CommandId)>,
    /// A member was named: puts are refused.
    is_alarm_raised: bool,
    /// The highest revision that a call has returned.
    returned: i64,
    /// State hashes need not be equal.
    pub(crate) ignores_hashes: bool,
    pub(crate) seen: Seen,
    pub(crate) told: Told,
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
    pub(crate) changes: Changes,
    /// Of everything, so that equal runs are known.
    pub(crate) digest: u64,
}

/// The same of changes of members.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) voters: u64,
    pub(crate) learners: u64,
    pub(crate) removed: u64,
    pub(crate) promoted: u64,
    pub(crate) updated: u64,
    /// Entries without effect.
    pub(crate) judged_bad: u64,
    /// Answers to callers.
    pub(crate) done: u64,
    pub(crate) refused: u64,
    pub(crate) not_ready: u64,
    pub(crate) unhealthy: u64,
    pub(crate) leaders_removed: u64,
    /// Members that ended because they were removed, by how they knew.
    pub(crate) left: u64,
    pub(crate) told: u64,
    pub(crate) found: u64,
    /// Connections to members that the dialer did not know.
    pub(crate) guests: u64,
}

impl Changes {
    fn counts(&mut self) -> [&mut u64; 15] {
        let Self { voters, learners, removed, promoted, updated, judged_bad, .. } = self;
        let Self { done, refused, not_ready, unhealthy, leaders_removed, left, told, found, guests, .. } =
            self;
        [
            voters,
            learners,
            removed,
            promoted,
            updated,
            judged_bad,
            done,
            refused,
            not_ready,
            unhealthy,
            leaders_removed,
            left,
            told,
            found,
            guests,
        ]
    }

    /// Few end before another member tells them.
    pub(crate) fn is_everything(&self) -> bool {
        let Self { left, found, .. } = *self;
        let mut all = Self { left: left.max(1), found: found.max(1), ..self.clone() };
        all.counts().iter().all(|count| **count > 0)
    }
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
        let mut other = other.changes.clone();
        for (own, other) in self.changes.counts().into_iter().zip(other.counts()) {
            *own += *other;
        }
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
    /// A member leads, by the votes of these.
    pub(crate) fn leads(&mut self, member: u64, term: u64, voters: &[u64]) {
        let leader = self.leaders.entry(term).or_insert_with(|| {
            self.seen.leaders += 1;
            self.new_leaders.push(NewLeader { term, member, voters: voters.to_vec() });
            member
        });
        assert_eq!(*leader, member, "two leaders of term {term}");
        self.seen.mix(term << 8 | member);
    }

    pub(crate) fn applied(&mut self, entry: &CommittedEntry, mut cluster: ClusterAt) {
        if self.ignores_hashes {
            cluster.hash = StateHash::default();
        }
        cluster.check();
        let (index, revision) = (entry.index, cluster.revision);
        let is_new = !self.applied.contains_key(&index);
        if is_new {
            self.seen.entries += 1;
            self.new_entries.push(index);
            self.carried_out(entry, revision);
            self.applied.insert(index, (entry.clone(), revision, cluster.hash));
            let is_same = self
                .cluster_at(index)
                .is_some_and(|at| (&at.membership, &at.votes) == (&cluster.membership, &cluster.votes));
            if !is_same {
                self.clusters.insert(index, cluster);
            }
        } else {
            assert_eq!(
                self.applied[&index],
                (entry.clone(), revision, cluster.hash),
                "entry {index} is not one everywhere"
            );
            self.is_as_known(index, &cluster);
        }
        self.seen.mix(index);
    }

    /// A command is in the log once, by whichever way it came, and each put makes a revision.
    fn carried_out(&mut self, entry: &CommittedEntry, revision: i64) {
        if entry.data.is_empty() {
            return;
        }
        let Batch { origin, commands } = command::decode(entry.data.clone()).unwrap();
        let Origin { member, boot } = origin;
        for Command { id, .. } in &commands {
            let is_new = origin == Origin::unattended(member) || self.commands.insert((member, boot, *id));
            assert!(is_new, "entry {} has command {id:?} of {origin:?} again", entry.index);
        }
        self.is_alarm_raised |= commands.iter().any(|command| command.kind == Kind::Corrupt);
        let puts = commands.iter().filter(|command| command.kind == Kind::Put).count();
        let before = self.applied.get(&(entry.index - 1)).map(|(_, before, _)| *before);
        if let Some(before) = before.filter(|_| !self.is_alarm_raised) {
            assert_eq!(revision, before + i64::try_from(puts).unwrap(), "behind entry {}", entry.index);
        }
    }

    /// A member goes on from the state behind this entry.
    pub(crate) fn installed(&self, index: u64, cluster: &ClusterAt) {
        let (_, revision, hash) = &self.applied[&index];
        assert_eq!((*revision, *hash), (cluster.revision, cluster.hash), "a state behind entry {index}");
        self.is_as_known(index, cluster);
    }

    fn is_as_known(&self, index: u64, cluster: &ClusterAt) {
        let known = self.cluster_at(index).expect("another member was there");
        assert_eq!(known.membership, cluster.membership, "members behind entry {index}");
        assert_eq!(known.votes, cluster.votes, "votes behind entry {index}");
    }

    /// All members begin with this cluster.
    pub(crate) fn begin(&mut self, index: u64, cluster: ClusterAt) {
        self.clusters.insert(index, cluster);
    }

    /// The cluster behind this entry.
    pub(crate) fn cluster_at(&self, index: u64) -> Option<&ClusterAt> {
        self.clusters.range(..=index).next_back().map(|(_, cluster)| cluster)
    }

    /// The cluster behind all entries that are known.
    pub(crate) fn cluster(&self) -> Option<&ClusterAt> {
        self.clusters.values().next_back()
    }

    /// The entry, if it is known.
    pub(crate) fn entry(&self, index: u64) -> Option<&CommittedEntry> {
        self.applied.get(&index).map(|(entry, ..)| entry)
    }

    /// The voters behind this entry, and those before the last change of them: entries behind a
    /// change may be committed together with it.
    pub(crate) fn voters_about(&self, index: u64) -> Vec<Vec<u64>> {
        let mut about: Vec<Vec<u64>> = Vec::new();
        for (_, cluster) in self.clusters.range(..=index).rev() {
            if about.last() != Some(&cluster.votes.voters) {
                about.push(cluster.votes.voters.clone());
            }
            if about.len() == 2 {
                break;
            }
        }
        about
    }

    pub(crate) fn leader_of(&self, term: u64) -> Option<u64> {
        self.leaders.get(&term).copied()
    }

    /// A caller is told about its change of members.
    pub(crate) fn changed(&mut self, refusal: Option<&Error>) {
        let changes = &mut self.seen.changes;
        match refusal {
            None => changes.done += 1,
            Some(Error::LearnerNotReady) => changes.not_ready += 1,
            Some(Error::Unhealthy) => changes.unhealthy += 1,
            Some(_) => changes.refused += 1,
        }
    }

    /// Callers were told the truth about changes of members.
    pub(crate) fn check_told(&self) {
        self.told.check(self.applied.values().map(|(entry, ..)| entry));
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
