//! The truth about a run: leaders, entries and states, and the rules that they keep on all members.

use std::collections::BTreeMap;

use bytes::Bytes;
use revd_engine::mvcc::{HashKv, SmallTable, StateHash, View};
use revd_member::apply::{CommittedEntry, Machine};
use revd_member::cluster::conf_state::ConfState;
use revd_member::cluster::membership::Membership;
use revd_member::schema;
use revd_member::wal::reader::RecoveredLog;
use revd_member::wal::{FrameContent, HardState};

/// The hash of all keys of a state up to a revision, the newest if it is 0, as HashKV has it.
///
/// # Errors
/// When a page is damaged, or the revision is none of them.
pub fn hash_of(view: View, revision: i64) -> revd_engine::Result<u32> {
    let mut run = HashKv::new(view, revision)?;
    loop {
        if let Some(hashed) = run.step(usize::MAX)? {
            return Ok(hashed.hash);
        }
    }
}

/// The members and their votes behind an entry.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterAt {
    /// The members.
    pub membership: Membership,
    /// Their votes.
    pub votes: ConfState,
}

/// The rows of a state that name its members and their votes, as they are.
#[derive(Debug)]
struct ClusterRows(Vec<(Vec<u8>, Vec<u8>)>);

impl ClusterRows {
    fn all(machine: &Machine) -> impl Iterator<Item = (&[u8], &[u8])> {
        let tables = machine.store().tables();
        [SmallTable::Members, SmallTable::Cluster].into_iter().flat_map(|table| tables.rows(table))
    }

    fn of(machine: &Machine) -> Self {
        Self(Self::all(machine).map(|(key, row)| (key.to_vec(), row.to_vec())).collect())
    }

    fn are_of(&self, machine: &Machine) -> bool {
        self.0.iter().map(|(key, row)| (&key[..], &row[..])).eq(Self::all(machine))
    }
}

impl ClusterAt {
    /// As a state has it.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        let tables = machine.store().tables();
        Self { membership: schema::membership(tables), votes: schema::conf_state(tables) }
    }

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
        let is_back = self.membership.members().find(|member| self.membership.is_removed(member.id));
        assert_eq!(is_back, None, "a removed member is one again");
    }
}

/// The log of a member, as far as its frames have told the simulator that they are durable.
#[derive(Debug, Clone, Default)]
pub struct DurableLog {
    /// Terms by index; behind a state that was received, or what was released, some are missing.
    terms: BTreeMap<u64, u64>,
    /// Everything up to here is there, as entries or as a state.
    base: u64,
    state: HardState,
    open: Option<FrameContent>,
}

impl DurableLog {
    /// A frame is durable.
    pub fn write(&mut self, frame: &FrameContent) {
        if let Some(restart) = frame.restart {
            self.terms.clear();
            self.base = restart.index;
        }
        if let Some(state) = frame.hard_state {
            assert!(state.term >= self.state.term, "a term goes back: {:?}, {state:?}", self.state);
            self.state = state;
        }
        if let Some(first) = frame.entries.first() {
            self.terms.split_off(&first.index);
        }
        self.terms.extend(frame.entries.iter().map(|entry| (entry.index, entry.term)));
    }

    /// A member begins with this entry, which no frame has written.
    pub fn begin(&mut self, base: u64) {
        self.base = self.base.max(base);
    }

    fn has(&self, index: u64, term: u64) -> bool {
        index <= self.base || self.terms.get(&index) == Some(&term)
    }

    fn may_have_voted(&self, term: u64, candidate: u64) -> bool {
        self.state.term > term || self.state.term == term && self.state.vote == candidate
    }

    /// The last entry.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.terms.keys().next_back().copied().unwrap_or(self.base).max(self.base)
    }

    /// The process was killed while it wrote this frame: it may be there.
    pub fn leave_open(&mut self, frame: Option<FrameContent>) {
        self.open = frame;
    }

    /// A start has found this. The log goes on from there.
    ///
    /// # Errors
    /// When not everything is in it that was durable before.
    pub fn recovered(&mut self, found: &RecoveredLog, applied: u64) -> Result<(), String> {
        let mut checked = self.check(found, applied);
        if checked.is_err()
            && let Some(frame) = self.open.take()
        {
            let mut with_open = self.clone();
            with_open.write(&frame);
            checked = with_open.check(found, applied);
        }
        checked?;
        self.open = None;
        self.terms.split_off(&(found.last().max(applied) + 1));
        self.terms.extend(found.entries.iter().map(|entry| (entry.index, entry.term)));
        self.base = self.base.max(found.base.0);
        self.state = found.hard_state;
        Ok(())
    }

    fn check(&self, found: &RecoveredLog, applied: u64) -> Result<(), String> {
        let (own, state) = (self.state, found.hard_state);
        if state.term < own.term || state.term == own.term && own.vote != 0 && state.vote != own.vote {
            return Err(format!("promises {own:?}, found {state:?}"));
        }
        let last = found.last().max(applied);
        if last < self.last() {
            return Err(format!("entry {}, the log ends with {last}", self.last()));
        }
        for (index, term) in &self.terms {
            let at = found.entries.partition_point(|entry| entry.index < *index);
            let entry = found.entries.get(at).filter(|entry| entry.index == *index);
            if entry.is_some_and(|entry| entry.term != *term) {
                return Err(format!("entry {index} of term {term}, found {entry:?}"));
            }
        }
        Ok(())
    }
}

/// An entry that was committed.
#[derive(Debug)]
struct Known {
    term: u64,
    data: Bytes,
    is_change: bool,
    /// The revision and the state hash behind it, once a member has applied it.
    behind: Option<(i64, StateHash)>,
}

/// The truth about a run, as far as it is known.
#[derive(Debug, Default)]
pub struct Truth {
    leaders: BTreeMap<u64, u64>,
    entries: BTreeMap<u64, Known>,
    /// By index: the cluster behind the entry, if it has changed there.
    clusters: BTreeMap<u64, ClusterAt>,
    /// The rows that say so: most entries leave them as they are, and decoding them takes time.
    rows: BTreeMap<u64, ClusterRows>,
    newest_applied: u64,
    /// By member id: the entry that its state is behind.
    applied: BTreeMap<u64, u64>,
    /// By member id.
    logs: BTreeMap<u64, DurableLog>,
    /// Of everything, so that equal runs are known.
    pub digest: u64,
}

impl Truth {
    /// Members begin with this cluster behind this entry.
    pub fn begin(&mut self, index: u64, cluster: impl FnOnce() -> ClusterAt) {
        if self.clusters.is_empty() {
            self.clusters.insert(index, cluster());
        }
    }

    /// Makes the digest that of this number too.
    pub fn mix(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }

    /// The durable log of a member.
    pub fn log(&mut self, member: u64) -> &mut DurableLog {
        self.logs.entry(member).or_default()
    }

    /// A member leads a term; whether that is news.
    pub fn leads(&mut self, member: u64, term: u64) -> bool {
        let is_new = !self.leaders.contains_key(&term);
        let leader = *self.leaders.entry(term).or_insert(member);
        assert_eq!(leader, member, "two leaders of term {term}");
        if is_new {
            self.mix(term << 8 ^ member);
            let has_voted = |id: &&u64| {
                let log = self.logs.get(*id);
                **id == member || log.is_some_and(|log| log.may_have_voted(term, member))
            };
            let about = self.voters_about(u64::MAX);
            let is_quorum = |voters: &Vec<u64>| voters.iter().filter(has_voted).count() * 2 > voters.len();
            assert!(
                self.has_open_change() || about.iter().any(is_quorum),
                "term {term}: no quorum of {about:x?} has voted for {member:x}"
            );
        }
        is_new
    }

    /// Members have changed by an entry that no member has applied yet.
    #[must_use]
    pub fn has_open_change(&self) -> bool {
        self.entries.range(self.newest_applied + 1..).any(|(_, known)| known.is_change)
    }

    /// A voter has yet to apply the last change of voters, or to begin: votes may be counted
    /// by those of before and those of after it.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        let rows = self.clusters.iter().zip(self.clusters.iter().skip(1));
        let mut changes = rows.filter(|((_, before), (_, after))| before.votes.voters != after.votes.voters);
        let newest = changes.next_back().map(|(_, change)| change);
        let is_behind = |index: u64, voter: &u64| self.applied.get(voter).is_none_or(|at| *at < index);
        let lags = |(index, cluster): (&u64, &ClusterAt)| {
            cluster.votes.voters.iter().any(|voter| is_behind(*index, voter))
        };
        self.has_open_change() || newest.is_some_and(lags)
    }

    /// A member hands this entry out as committed; whether that is news.
    pub fn committed(&mut self, entry: &CommittedEntry) -> bool {
        let CommittedEntry { index, term, data, change } = entry;
        if let Some(known) = self.entries.get(index) {
            let is_same = known.term == *term && known.data == *data;
            assert!(is_same, "entry {index} is not one everywhere: terms {} and {term}", known.term);
            return false;
        }
        self.mix(index ^ (data.len() as u64) << 32);
        let has_it = |id: &&u64| self.logs.get(*id).is_some_and(|log| log.has(*index, *term));
        let about = self.voters_about(*index);
        let is_quorum = |voters: &Vec<u64>| voters.iter().filter(has_it).count() * 2 > voters.len();
        assert!(
            self.has_open_change() || about.is_empty() || about.iter().any(is_quorum),
            "entry {index} of term {term} is not with a quorum of {about:x?}"
        );
        let is_change = change.is_some();
        self.entries.insert(*index, Known { term: *term, data: data.clone(), is_change, behind: None });
        true
    }

    /// The voters behind this entry, and those before the last changes of them: entries behind a
    /// change may be committed together with it.
    fn voters_about(&self, index: u64) -> Vec<Vec<u64>> {
        let mut about: Vec<Vec<u64>> = Vec::new();
        for (_, cluster) in self.clusters.range(..=index).rev() {
            if about.last() != Some(&cluster.votes.voters) {
                about.push(cluster.votes.voters.clone());
            }
            if about.len() == 3 {
                break;
            }
        }
        about
    }

    /// A member says that its state is not that of the others, or is again.
    pub fn corrupt(&mut self, member: u64, is_corrupt: bool) {
        assert!(!is_corrupt, "member {member:x} is named as corrupt");
    }

    /// The state of a member is behind this entry: it has just started.
    pub fn starts_behind(&mut self, member: u64, applied: u64) {
        self.applied.insert(member, applied);
    }

    /// A member has applied everything up to some entry, which its state names.
    pub fn applied(&mut self, member: u64, machine: &Machine) {
        let (store, at) = (machine.store(), machine.store().applied());
        self.applied.insert(member, at.index);
        let now = (store.revision(), store.state_hash());
        if let Some(known) = self.entries.get_mut(&at.index) {
            assert_eq!(known.term, at.term, "the term of entry {}", at.index);
            let behind = *known.behind.get_or_insert(now);
            assert_eq!(behind, now, "the states of members differ behind entry {}", at.index);
        }
        self.mix(at.index ^ now.0.cast_unsigned() << 40);
        let newest = self.clusters.range(..=at.index).next_back();
        let rows = newest.and_then(|(index, _)| self.rows.get(index));
        if rows.is_some_and(|rows| rows.are_of(machine)) {
            self.newest_applied = self.newest_applied.max(at.index);
            return;
        }
        let (cluster, rows) = (ClusterAt::of(machine), ClusterRows::of(machine));
        match newest {
            Some((index, known)) if *known == cluster => _ = self.rows.insert(*index, rows),
            // Another member has applied this entry before: it found no change here.
            Some((_, known)) if self.newest_applied >= at.index => {
                assert_eq!(*known, cluster, "the members behind entry {}", at.index);
            }
            _ => {
                cluster.check();
                self.clusters.insert(at.index, cluster);
                self.rows.insert(at.index, rows);
            }
        }
        self.newest_applied = self.newest_applied.max(at.index);
    }

    /// The cluster behind all entries that are known.
    #[must_use]
    pub fn cluster(&self) -> Option<&ClusterAt> {
        self.clusters.values().next_back()
    }

    /// The last entry that is committed, as far as a member has said so.
    #[must_use]
    pub fn committed_index(&self) -> u64 {
        self.entries.keys().next_back().copied().unwrap_or(0)
    }

    /// The latest leader that was elected, and its term.
    #[must_use]
    pub fn latest_leader(&self) -> Option<(u64, u64)> {
        self.leaders.iter().next_back().map(|(term, member)| (*term, *member))
    }

    /// The leader of a term.
    #[must_use]
    pub fn leader_of(&self, term: u64) -> Option<u64> {
        self.leaders.get(&term).copied()
    }

    /// How many leaders there were.
    #[must_use]
    pub fn elections(&self) -> u64 {
        self.leaders.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_changing_until_every_voter_knows_the_others() {
        let mut truth = Truth::default();
        let cluster =
            |voters| ClusterAt { membership: Membership::default(), votes: ConfState::of_voters(voters) };
        truth.begin(1, || cluster(vec![1]));
        assert!(!truth.is_changing(), "they begin");
        truth.starts_behind(1, 4);
        truth.clusters.insert(5, cluster(vec![1, 2]));
        truth.starts_behind(2, 5);
        assert!(truth.is_changing(), "member 1 knows itself alone");
        truth.starts_behind(1, 5);
        assert!(!truth.is_changing());
        let mut named = cluster(vec![1, 2]);
        named.votes.learners = vec![9];
        truth.clusters.insert(6, named);
        assert!(!truth.is_changing(), "the voters are the same");
        truth.clusters.insert(7, cluster(vec![1, 2, 3]));
        [1, 2].into_iter().for_each(|member| truth.starts_behind(member, 7));
        assert!(truth.is_changing(), "member 3 has not begun");
    }
}
