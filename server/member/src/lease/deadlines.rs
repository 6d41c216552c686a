//! When leases expire, as the leader sees it. Times are milliseconds of any clock that never goes
//! back.
//!
//! A keepalive only writes the new deadline. The queue holds each lease once, at a time that may be
//! too early by now: when that time comes, it is queued again at its true deadline. So a lease that
//! is kept alive costs a queue operation per TTL, not one per keepalive.
//!
//! A new leader loads the leases some at a time, and leads when it knows all:
//! [`LeaseDeadlines::lead`]. A former leader forgets them some at a time: [`LeaseDeadlines::free`].
//!
//! Only [`LeaseDeadlines::expire`] decides that a lease has expired. Until then a keepalive renews
//! it, also one that is carried out late: before that decision the caller has to know that no
//! keepalive is on its way that came in time.

use std::collections::{BTreeMap, BTreeSet, btree_map, btree_set};

use crate::lease::walk::SnapshotWalk;
use crate::mutants::{self, Mutant};

/// Leader's view: the deadline of every lease; empty on others.
#[derive(Debug, Default)]
pub struct LeaseDeadlines {
    /// The term this member leads in; none while it does not lead, or does not know every lease.
    term: Option<u64>,
    /// When it began to lead in it: deadlines are in milliseconds since.
    origin: u64,
    loading: Option<Loading>,
    leases: BTreeMap<i64, Deadline>,
    /// When to look at which lease.
    queue: BTreeSet<(u64, i64)>,
    /// The walk of a list of all leases, while one is made.
    reading: Option<SnapshotWalk<i64, Deadline>>,
    /// Deadlines of earlier terms, until they are freed.
    past: Vec<Past>,
}

/// The progress of a new leader that has yet to load some leases.
#[derive(Debug)]
struct Loading {
    term: u64,
    extension: u64,
    /// Leases up to this id are loaded.
    after: Option<i64>,
}

/// Deadlines of a former leader that are left to free.
#[derive(Debug)]
struct Past {
    leases: btree_map::IntoIter<i64, Deadline>,
    queue: btree_set::IntoIter<(u64, i64)>,
    kept: btree_map::IntoIter<i64, Option<Deadline>>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: u64,
    /// Its place in the queue.
    queued: u64,
    ttl: i64,
    /// Remaining TTL of the last lease checkpoint, in seconds; 0 if a keepalive came since, or
    /// there was none.
    checkpointed: i64,
    /// It was decided that it has expired.
    is_expired: bool,
}

/// The result of a keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepaliveResult {
    /// The lease lives on for so many seconds.
    Renewed(i64),
    /// The lease lives on; a restart would go by its lease checkpoint, which has to be taken back
    /// before the answer.
    CheckpointFirst,
    /// The lease has expired: the answer waits until it is revoked.
    Expired,
    /// There is no such lease.
    NotFound,
}

/// The result of a search for leases whose deadline has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpiryCheck {
    /// There are none.
    None,
    /// There are some.
    Some,
    /// None so far: the search has looked at as many as it may.
    Unfinished,
}

impl LeaseDeadlines {
    /// The term this member leads in.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    /// The term this member leads in, or will lead in.
    #[must_use]
    pub fn coming_term(&self) -> Option<u64> {
        self.loading.as_ref().map(|loading| loading.term).or(self.term)
    }

    /// It has yet to load some leases.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// This member leads in this term, as soon as [`LeaseDeadlines::load`] has brought every lease.
    pub fn lead(&mut self, term: u64, extension: u64) {
        self.follow();
        self.loading = Some(Loading { term, extension, after: None });
    }

    /// This member does not lead any more.
    pub fn follow(&mut self) {
        if mutants::is(Mutant::KeepaliveByFormerLeader) {
            return;
        }
        let Self { leases, queue, reading, mut past, .. } = std::mem::take(self);
        let kept = reading.map(SnapshotWalk::into_kept).unwrap_or_default();
        if !leases.is_empty() || !kept.is_empty() {
            let (leases, queue) = (leases.into_iter(), queue.into_iter());
            past.push(Past { leases, queue, kept: kept.into_iter() });
        }
        self.past = past;
    }

    /// A new leader loads so many more leases, given from beyond an id on as id, granted TTL and
    /// checkpointed TTL. True when those were the last: from this moment on it leads, and lease
    /// TTLs reset: every lease has the remaining TTL of its last checkpoint, else its granted one,
    /// and the extension for the time without a leader.
    pub fn load<I: Iterator<Item = (i64, i64, i64)>>(
        &mut self,
        leases: impl FnOnce(Option<i64>) -> I,
        count: usize,
        now: u64,
    ) -> bool {
        let Some(Loading { term, extension, after }) = self.loading.take() else { return false };
        let (mut loaded, mut last) = (0, after);
        for (id, ttl, checkpointed) in leases(after).take(count) {
            let checkpointed = if mutants::is(Mutant::LeaseCheckpointIgnored) { 0 } else { checkpointed };
            if !(mutants::is(Mutant::LeaseLostAtFailover) && id % 4 == 3) {
                self.set(id, ttl, extension + milliseconds(left(ttl, checkpointed)), checkpointed);
            }
            (loaded, last) = (loaded + 1, Some(id));
        }
        if loaded == count {
            self.loading = Some(Loading { term, extension, after: last });
            return false;
        }
        (self.term, self.origin) = (Some(term), now);
        true
    }

    /// There is something to free.
    #[must_use]
    pub fn is_freeing(&self) -> bool {
        !self.past.is_empty()
    }

    /// Frees so many deadlines of earlier terms.
    pub fn free(&mut self, count: usize) {
        let Some(Past { leases, queue, kept }) = self.past.last_mut() else { return };
        let parts = [
            leases.by_ref().take(count).count(),
            queue.by_ref().take(count).count(),
            kept.by_ref().take(count).count(),
        ];
        if parts.iter().all(|freed| *freed < count) {
            self.past.pop();
        }
    }

    /// A lease was granted.
    pub fn granted(&mut self, id: i64, ttl: i64, now: u64) {
        match &self.loading {
            Some(loading) if loading.has(id) => {
                self.set(id, ttl, loading.extension + milliseconds(ttl), 0);
            }
            None if self.term.is_some() => self.set(id, ttl, self.since(now) + milliseconds(ttl), 0),
            _ => {}
        }
    }

    /// A lease was revoked.
    pub fn revoked(&mut self, id: i64) {
        if let Some(deadline) = self.leases.remove(&id) {
            self.queue.remove(&(deadline.queued, id));
            self.keep(id, Some(deadline));
        }
    }

    /// A lease checkpoint was applied.
    pub fn checkpointed(&mut self, id: i64, seconds: i64) {
        let Some(deadline) = self.leases.get_mut(&id) else { return };
        deadline.checkpointed = seconds;
        // A member that does not lead yet goes by the last lease checkpoint.
        if let Some(loading) = &self.loading {
            deadline.at = loading.extension + milliseconds(left(deadline.ttl, seconds));
            self.queue_again(id);
        }
    }

    /// A keepalive.
    pub fn renew(&mut self, id: i64, now: u64) -> KeepaliveResult {
        let now = self.since(now);
        let Some(deadline) = self.leases.get_mut(&id) else { return KeepaliveResult::NotFound };
        if deadline.is_expired && !mutants::is(Mutant::ExpiredLeaseResurrected) {
            return KeepaliveResult::Expired;
        }
        if let Some(walk) = &mut self.reading {
            walk.will_change(&id, Some(*deadline));
        }
        deadline.at = now + milliseconds(deadline.ttl);
        if deadline.checkpointed > 0 {
            KeepaliveResult::CheckpointFirst
        } else {
            KeepaliveResult::Renewed(deadline.ttl)
        }
    }

    /// Seconds a lease was granted for.
    #[must_use]
    pub fn granted_ttl(&self, id: i64) -> Option<i64> {
        self.leases.get(&id).map(|deadline| deadline.ttl)
    }

    /// Leases from an id on: id, granted TTL and checkpointed TTL, in seconds.
    pub fn iter_from(&self, from: i64) -> impl Iterator<Item = (i64, i64, i64)> {
        self.leases.range(from..).map(|(id, deadline)| (*id, deadline.ttl, deadline.checkpointed))
    }

    /// Whole seconds a lease has left, 0 when its deadline has passed.
    #[must_use]
    pub fn remaining(&self, id: i64, now: u64) -> Option<i64> {
        let left = self.leases.get(&id)?.at.saturating_sub(self.since(now));
        Some(i64::try_from(left / 1000).unwrap_or(i64::MAX))
    }

    /// Whether the deadline of any lease has passed; looks at so many.
    pub fn look(&mut self, now: u64, looks: usize) -> ExpiryCheck {
        let now = self.since(now);
        for _ in 0..looks {
            let Some((queued, id)) = self.queue.first().copied() else { return ExpiryCheck::None };
            if queued > now {
                return ExpiryCheck::None;
            }
            if self.leases[&id].at <= now {
                return ExpiryCheck::Some;
            }
            self.queue_again(id);
        }
        ExpiryCheck::Unfinished
    }

    /// Decides that leases whose deadline had passed by `then` have expired, earliest first, for as
    /// long as `takes` takes them. They stay so until they are revoked. Looks at so many.
    pub fn expire(&mut self, then: u64, looks: usize, mut takes: impl FnMut(i64) -> bool) -> Vec<i64> {
        let then = self.since(then);
        let looked_at: Vec<i64> =
            self.queue.range(..=(then, i64::MAX)).take(looks).map(|(_, id)| *id).collect();
        let mut over = Vec::new();
        for id in looked_at {
            let Some(deadline) = self.leases.get_mut(&id) else { continue };
            let early = if mutants::is(Mutant::LeaseExpiresEarly) { 1_000 } else { 0 };
            if deadline.at > then + early {
                self.queue_again(id);
                continue;
            }
            if !takes(id) {
                break;
            }
            deadline.is_expired = true;
            over.push(id);
        }
        over
    }

    /// How many leases there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// There are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// From now on [`LeaseDeadlines::read_on`] reads the leases there are now.
    pub fn begin_reading(&mut self) {
        self.reading = Some(SnapshotWalk::default());
    }

    /// Reads so many leases, by id: what orders them by their deadlines, and the id. False when
    /// those were all.
    pub fn read_on(&mut self, count: usize, mut visit: impl FnMut(u64, i64)) -> bool {
        let Some(walk) = &mut self.reading else { return false };
        let more = walk.go_on(&self.leases, count, |id, deadline| {
            visit(deadline.at, *id);
            true
        });
        if !more {
            self.reading = None;
        }
        more
    }

    /// A lease is about to come, to change or to go: this is what is known of it so far.
    fn keep(&mut self, id: i64, deadline: Option<Deadline>) {
        if let Some(walk) = &mut self.reading {
            walk.will_change(&id, deadline);
        }
    }

    /// A time, as deadlines are given.
    fn since(&self, now: u64) -> u64 {
        now.saturating_sub(self.origin)
    }

    fn set(&mut self, id: i64, ttl: i64, at: u64, checkpointed: i64) {
        self.keep(id, None);
        self.leases.insert(id, Deadline { at, queued: at, ttl, checkpointed, is_expired: false });
        self.queue.insert((at, id));
    }

    fn queue_again(&mut self, id: i64) {
        let Some(deadline) = self.leases.get_mut(&id) else { return };
        self.queue.remove(&(deadline.queued, id));
        deadline.queued = deadline.at;
        self.queue.insert((deadline.queued, id));
    }
}

impl Loading {
    /// This lease would be known by now.
    fn has(&self, id: i64) -> bool {
        self.after.is_some_and(|after| id <= after)
    }
}

/// The TTL that a new leader gives a lease, in seconds.
fn left(ttl: i64, checkpointed: i64) -> i64 {
    if checkpointed > 0 { checkpointed } else { ttl }
}

fn milliseconds(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::random::Random;
    use std::cell::Cell;

    /// Leads with these leases from this moment on.
    fn lead(deadlines: &mut LeaseDeadlines, term: u64, leases: &[(i64, i64, i64)], now: u64, extension: u64) {
        deadlines.lead(term, extension);
        assert!(deadlines.load(|_| leases.iter().copied(), leases.len() + 1, now));
    }

    fn expire_all(deadlines: &mut LeaseDeadlines, now: u64) -> Vec<i64> {
        let look = deadlines.look(now, 100);
        let over = deadlines.expire(now, 100, |_| true);
        assert_eq!(look == ExpiryCheck::Some, !over.is_empty());
        over
    }

    #[test]
    fn a_lease_expires_when_it_was_not_kept_alive_for_its_ttl() {
        let mut random = Random::new(3);
        let mut deadlines = LeaseDeadlines::default();
        lead(&mut deadlines, 1, &[], 0, 0);
        let mut model: BTreeMap<i64, (i64, u64)> = BTreeMap::new();
        let mut now = 0;
        let mut expired = 0;
        for _ in 0..20_000 {
            now += random.below(200);
            let id = i64::try_from(random.below(30)).unwrap() - 15;
            match random.below(5) {
                0 if !model.contains_key(&id) => {
                    let ttl = 1 + i64::try_from(random.below(20)).unwrap();
                    deadlines.granted(id, ttl, now);
                    model.insert(id, (ttl, now + milliseconds(ttl)));
                }
                1 if random.one_in(4) => {
                    deadlines.revoked(id);
                    model.remove(&id);
                }
                2..=3 => {
                    let expected = match model.get_mut(&id) {
                        None => KeepaliveResult::NotFound,
                        Some((ttl, at)) => {
                            *at = now + milliseconds(*ttl);
                            KeepaliveResult::Renewed(*ttl)
                        }
                    };
                    assert_eq!(deadlines.renew(id, now), expected);
                }
                _ => {
                    let mut due = expire_all(&mut deadlines, now);
                    due.sort_unstable();
                    let expected: Vec<i64> =
                        model.iter().filter(|(_, (_, at))| *at <= now).map(|(id, _)| *id).collect();
                    assert_eq!(due, expected);
                    for id in due {
                        assert_eq!(deadlines.renew(id, now), KeepaliveResult::Expired);
                        deadlines.revoked(id);
                        model.remove(&id);
                        expired += 1;
                    }
                }
            }
            assert_eq!(deadlines.queue.len(), model.len());
        }
        assert!(expired > 500, "{expired} leases expired");
    }

    #[test]
    fn a_new_leader_gives_remaining_ttls_and_an_extension() {
        let mut deadlines = LeaseDeadlines::default();
        deadlines.granted(1, 5, 0);
        assert_eq!(
            deadlines.renew(1, 0),
            KeepaliveResult::NotFound,
            "a member that does not lead has no deadlines"
        );
        lead(&mut deadlines, 7, &[(1, 5, 0), (2, 100, 30)], 1000, 500);
        assert_eq!((deadlines.remaining(1, 1000), deadlines.remaining(2, 1000)), (Some(5), Some(30)));
        assert!(expire_all(&mut deadlines, 6_499).is_empty());
        assert_eq!(expire_all(&mut deadlines, 6_500), [1]);
        assert_eq!(deadlines.expire(60_000, 1, |_| true), [1], "until it is revoked, and at most so many");
        deadlines.begin_reading();
        let mut read = Vec::new();
        while deadlines.read_on(1, |at, id| read.push((at, id))) {}
        assert_eq!(read, [(5_500, 1), (30_500, 2)]);
    }

    /// A keepalive may be looked at late because others were in its way: it counts until the end is
    /// decided.
    #[test]
    fn a_lease_is_renewed_until_its_expiry_is_decided() {
        let mut deadlines = LeaseDeadlines::default();
        lead(&mut deadlines, 7, &[(1, 5, 0), (2, 5, 0), (3, 100, 30)], 0, 0);
        assert_eq!(deadlines.look(5_000, 9), ExpiryCheck::Some);
        assert_eq!(deadlines.renew(1, 5_003), KeepaliveResult::Renewed(5));
        assert_eq!(deadlines.expire(5_000, 9, |_| true), [2]);
        assert_eq!(deadlines.renew(2, 5_004), KeepaliveResult::Expired);
        // One whose checkpoint has to be taken back first lives on at once, however long that
        // takes.
        assert_eq!(deadlines.renew(3, 29_000), KeepaliveResult::CheckpointFirst);
        deadlines.revoked(1);
        deadlines.revoked(2);
        assert!(deadlines.expire(128_999, 9, |_| true).is_empty());
        deadlines.checkpointed(3, 0);
        assert_eq!(deadlines.renew(3, 128_999), KeepaliveResult::Renewed(100));
    }

    #[test]
    fn looking_has_a_bound_and_goes_on_where_it_was() {
        let mut deadlines = LeaseDeadlines::default();
        lead(&mut deadlines, 7, &(0..100).map(|id| (id, 5, 0)).collect::<Vec<_>>(), 0, 0);
        (0..100).for_each(|id| assert_eq!(deadlines.renew(id, 4_000), KeepaliveResult::Renewed(5)));
        assert_eq!(deadlines.look(5_000, 60), ExpiryCheck::Unfinished);
        assert_eq!(deadlines.look(5_000, 60), ExpiryCheck::None);
        assert_eq!(deadlines.look(9_000, 60), ExpiryCheck::Some);
        assert_eq!(deadlines.expire(9_000, 60, |id| id < 10).len(), 10);
    }
    type Known = BTreeMap<i64, (i64, i64)>;

    /// Loads so many of these leases; never looks at more of them. True when those were the last.
    fn load_some(deadlines: &mut LeaseDeadlines, known: &Known, count: usize, now: u64) -> bool {
        let looked = Cell::new(0);
        let beyond = |after: Option<i64>| {
            let rest = known.iter().filter(move |(id, _)| after.is_none_or(|after| **id > after));
            rest.map(|(id, (ttl, checkpointed))| (*id, *ttl, *checkpointed))
                .inspect(|_| looked.update(|looked| looked + 1))
        };
        let is_through = deadlines.load(beyond, count, now);
        assert!(looked.get() <= count);
        is_through
    }

    /// Issue 14, number 22: a new leader looked at all leases in one turn.
    #[test]
    fn leases_loaded_in_parts_are_those_loaded_at_once() {
        let (mut random, mut parts) = (Random::new(5), 0);
        for term in 1..300 {
            let extension = random.below(3_000);
            let ttl = |random: &mut Random| 1 + i64::try_from(random.below(20)).unwrap();
            let lease = |random: &mut Random| i64::try_from(random.below(100)).unwrap() - 50;
            let mut known = Known::new();
            for _ in 0..random.below(60) {
                known.insert(lease(&mut random), (ttl(&mut random), 0));
            }
            let (mut deadlines, mut now) = (LeaseDeadlines::default(), random.below(10_000));
            deadlines.lead(term, extension);
            while !load_some(&mut deadlines, &known, 1 + usize::try_from(random.below(8)).unwrap(), now) {
                parts += 1;
                for _ in 0..random.below(12) {
                    now += random.below(3_000);
                    let id = lease(&mut random);
                    if let Some((_, checkpointed)) = known.get_mut(&id).filter(|_| random.one_in(2)) {
                        *checkpointed = i64::try_from(random.below(5)).unwrap();
                        deadlines.checkpointed(id, *checkpointed);
                    } else if known.remove(&id).is_some() {
                        deadlines.revoked(id);
                    } else {
                        known.insert(id, (ttl(&mut random), 0));
                        deadlines.granted(id, known[&id].0, now);
                    }
                    assert_eq!((deadlines.term(), deadlines.coming_term()), (None, Some(term)));
                }
            }
            assert_eq!(deadlines.term(), Some(term));
            let mut at_once = LeaseDeadlines::default();
            let all: Vec<_> =
                known.iter().map(|(id, (ttl, checkpointed))| (*id, *ttl, *checkpointed)).collect();
            lead(&mut at_once, term, &all, now, extension);
            assert_eq!(format!("{deadlines:?}"), format!("{at_once:?}"));
            assert_eq!(
                deadlines.look(now + extension, 99),
                ExpiryCheck::None,
                "nothing was over before all were there"
            );
        }
        assert!(parts > 1_000, "{parts} parts");
    }

    #[test]
    fn deadlines_of_a_former_leader_are_freed_in_parts() {
        let leases: Vec<_> = (0..1_000).map(|id| (id, 5, 0)).collect();
        let mut deadlines = LeaseDeadlines::default();
        lead(&mut deadlines, 1, &leases, 0, 0);
        deadlines.begin_reading();
        (0..1_000).for_each(|id| assert_eq!(deadlines.renew(id, 1_000), KeepaliveResult::Renewed(5)));
        lead(&mut deadlines, 2, &leases, 0, 0);
        deadlines.follow();
        for parts_left in (1..=20_usize).rev() {
            assert!(deadlines.is_freeing());
            let left = |deadlines: &LeaseDeadlines| -> usize {
                deadlines.past.iter().map(|past| past.leases.len() + past.queue.len() + past.kept.len()).sum()
            };
            let before = left(&deadlines);
            deadlines.free(101);
            let freed = before - left(&deadlines);
            assert!((1..=303).contains(&freed), "{freed} with {parts_left} parts left");
        }
        assert!(!deadlines.is_freeing());
        assert_eq!((deadlines.len(), deadlines.term()), (0, None));
    }
}
