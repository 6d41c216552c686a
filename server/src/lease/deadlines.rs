//! When leases are due, as the leader sees it. Times are milliseconds of any clock that never goes back.
//!
//! A keepalive only writes the new deadline. The queue holds each lease once, at a time that may be too early by now: when
//! that time comes, it is queued again at its true deadline. So a lease that is kept alive costs a queue operation per
//! TTL, not one per keepalive.
//!
//! Nobody but [`Deadlines::end`] decides that a lease is over. Until then a keepalive renews it, also one that was looked at
//! late: who decides has to know that none is on its way that came in time.

use std::collections::{BTreeMap, BTreeSet};

/// Leader's view: the deadline of every lease; empty on others.
#[derive(Debug, Default)]
pub struct Deadlines {
    /// The term this member leads in; none while it does not lead.
    term: Option<u64>,
    leases: BTreeMap<i64, Deadline>,
    /// When to look at which lease.
    queue: BTreeSet<(u64, i64)>,
}

#[derive(Debug, Clone, Copy)]
struct Deadline {
    at: u64,
    /// Its place in the queue.
    queued: u64,
    ttl: i64,
    /// Seconds it had left when that was noted in the log; 0 if a keepalive came since, or it never was.
    noted: i64,
    /// It was decided that it is over.
    is_over: bool,
}

/// What becomes of a keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives on for so many seconds.
    Renewed(i64),
    /// It lives on; a restart would go by what was noted of it, which has to be taken back before that is said.
    NoteFirst,
    /// It is over: whoever asks has to wait until it is revoked.
    Over,
    /// There is no such lease.
    Gone,
}

/// What a look for leases whose time has passed found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// There are none.
    None,
    /// There are some.
    Some,
    /// So far none: it was looked at as many as asked for.
    Unfinished,
}

impl Deadlines {
    /// The term this member leads in.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.term
    }

    /// This member leads now: every lease, given as id, granted and noted remaining seconds, gets what it had left when that
    /// was noted, else its full time, and `extension` more for the time without a leader.
    pub fn lead(
        &mut self,
        term: u64,
        leases: impl Iterator<Item = (i64, i64, i64)>,
        now: u64,
        extension: u64,
    ) {
        *self = Self { term: Some(term), ..Self::default() };
        for (id, ttl, remaining) in leases {
            let left = if remaining > 0 { remaining } else { ttl };
            self.set(id, ttl, now + extension + milliseconds(left));
            self.noted(id, remaining);
        }
    }

    /// This member does not lead any more.
    pub fn follow(&mut self) {
        *self = Self::default();
    }

    /// A lease was granted.
    pub fn granted(&mut self, id: i64, ttl: i64, now: u64) {
        if self.term.is_some() {
            self.set(id, ttl, now + milliseconds(ttl));
        }
    }

    /// A lease was revoked.
    pub fn revoked(&mut self, id: i64) {
        if let Some(deadline) = self.leases.remove(&id) {
            self.queue.remove(&(deadline.queued, id));
        }
    }

    /// What a lease had left was noted in the log.
    pub fn noted(&mut self, id: i64, seconds: i64) {
        if let Some(deadline) = self.leases.get_mut(&id) {
            deadline.noted = seconds;
        }
    }

    /// Somebody says that a lease shall live on.
    pub fn renew(&mut self, id: i64, now: u64) -> Renewal {
        let Some(deadline) = self.leases.get_mut(&id) else { return Renewal::Gone };
        if deadline.is_over {
            return Renewal::Over;
        }
        deadline.at = now + milliseconds(deadline.ttl);
        if deadline.noted > 0 { Renewal::NoteFirst } else { Renewal::Renewed(deadline.ttl) }
    }

    /// Seconds a lease was granted for.
    #[must_use]
    pub fn granted_ttl(&self, id: i64) -> Option<i64> {
        self.leases.get(&id).map(|deadline| deadline.ttl)
    }

    /// Leases from an id on: their id, what they were granted for and what they had left when that was noted, in seconds.
    pub fn iter_from(&self, from: i64) -> impl Iterator<Item = (i64, i64, i64)> {
        self.leases.range(from..).map(|(id, deadline)| (*id, deadline.ttl, deadline.noted))
    }

    /// Whole seconds a lease has left, 0 when it is due.
    #[must_use]
    pub fn remaining(&self, id: i64, now: u64) -> Option<i64> {
        let left = self.leases.get(&id)?.at.saturating_sub(now);
        Some(i64::try_from(left / 1000).unwrap_or(i64::MAX))
    }

    /// Whether the time of any lease has passed; looks at so many.
    pub fn look(&mut self, now: u64, looks: usize) -> Look {
        for _ in 0..looks {
            let Some((queued, id)) = self.queue.first().copied() else { return Look::None };
            if queued > now {
                return Look::None;
            }
            if self.leases[&id].at <= now {
                return Look::Some;
            }
            self.queue_again(id);
        }
        Look::Unfinished
    }

    /// Decides that leases whose time had passed by `then` are over, earliest first, for as long as `takes` takes them. They
    /// stay so until they are revoked. Looks at so many.
    pub fn end(&mut self, then: u64, looks: usize, mut takes: impl FnMut(i64) -> bool) -> Vec<i64> {
        let looked_at: Vec<i64> =
            self.queue.range(..=(then, i64::MAX)).take(looks).map(|(_, id)| *id).collect();
        let mut over = Vec::new();
        for id in looked_at {
            let Some(deadline) = self.leases.get_mut(&id) else { continue };
            if deadline.at > then {
                self.queue_again(id);
                continue;
            }
            if !takes(id) {
                break;
            }
            deadline.is_over = true;
            over.push(id);
        }
        over
    }

    /// All leases with their deadlines, by id.
    #[must_use]
    pub fn all(&self) -> Vec<(u64, i64)> {
        self.leases.iter().map(|(id, deadline)| (deadline.at, *id)).collect()
    }

    fn set(&mut self, id: i64, ttl: i64, at: u64) {
        self.leases.insert(id, Deadline { at, queued: at, ttl, noted: 0, is_over: false });
        self.queue.insert((at, id));
    }

    fn queue_again(&mut self, id: i64) {
        let Some(deadline) = self.leases.get_mut(&id) else { return };
        self.queue.remove(&(deadline.queued, id));
        deadline.queued = deadline.at;
        self.queue.insert((deadline.queued, id));
    }
}

fn milliseconds(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::random::Random;

    fn due(deadlines: &mut Deadlines, now: u64) -> Vec<i64> {
        let look = deadlines.look(now, 100);
        let over = deadlines.end(now, 100, |_| true);
        assert_eq!(look == Look::Some, !over.is_empty());
        over
    }

    #[test]
    fn a_lease_is_due_when_nobody_has_kept_it_alive_for_its_time() {
        let mut random = Random::new(3);
        let mut deadlines = Deadlines::default();
        deadlines.lead(1, std::iter::empty(), 0, 0);
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
                        None => Renewal::Gone,
                        Some((ttl, at)) => {
                            *at = now + milliseconds(*ttl);
                            Renewal::Renewed(*ttl)
                        }
                    };
                    assert_eq!(deadlines.renew(id, now), expected);
                }
                _ => {
                    let mut due = due(&mut deadlines, now);
                    due.sort_unstable();
                    let expected: Vec<i64> =
                        model.iter().filter(|(_, (_, at))| *at <= now).map(|(id, _)| *id).collect();
                    assert_eq!(due, expected);
                    for id in due {
                        assert_eq!(deadlines.renew(id, now), Renewal::Over);
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
    fn a_new_leader_gives_what_was_left_and_some_more() {
        let mut deadlines = Deadlines::default();
        deadlines.granted(1, 5, 0);
        assert_eq!(deadlines.renew(1, 0), Renewal::Gone, "others have no deadlines");
        deadlines.lead(7, [(1, 5, 0), (2, 100, 30)].into_iter(), 1000, 500);
        assert_eq!((deadlines.remaining(1, 1000), deadlines.remaining(2, 1000)), (Some(5), Some(30)));
        assert!(due(&mut deadlines, 6_499).is_empty());
        assert_eq!(due(&mut deadlines, 6_500), [1]);
        assert_eq!(deadlines.end(60_000, 1, |_| true), [1], "until it is revoked, and at most so many");
        assert_eq!(deadlines.all(), [(6_500, 1), (31_500, 2)]);
    }

    /// A keepalive may be looked at late because others were in its way: it counts until the end is decided.
    #[test]
    fn a_lease_is_renewed_until_its_end_is_decided() {
        let mut deadlines = Deadlines::default();
        deadlines.lead(7, [(1, 5, 0), (2, 5, 0), (3, 100, 30)].into_iter(), 0, 0);
        assert_eq!(deadlines.look(5_000, 9), Look::Some);
        assert_eq!(deadlines.renew(1, 5_003), Renewal::Renewed(5));
        assert_eq!(deadlines.end(5_000, 9, |_| true), [2]);
        assert_eq!(deadlines.renew(2, 5_004), Renewal::Over);
        // One that needs a note first lives on at once, however long the note takes.
        assert_eq!(deadlines.renew(3, 29_000), Renewal::NoteFirst);
        deadlines.revoked(1);
        deadlines.revoked(2);
        assert!(deadlines.end(128_999, 9, |_| true).is_empty());
        deadlines.noted(3, 0);
        assert_eq!(deadlines.renew(3, 128_999), Renewal::Renewed(100));
    }

    #[test]
    fn looking_has_a_bound_and_goes_on_where_it_was() {
        let mut deadlines = Deadlines::default();
        deadlines.lead(7, (0..100).map(|id| (id, 5, 0)), 0, 0);
        (0..100).for_each(|id| assert_eq!(deadlines.renew(id, 4_000), Renewal::Renewed(5)));
        assert_eq!(deadlines.look(5_000, 60), Look::Unfinished);
        assert_eq!(deadlines.look(5_000, 60), Look::None);
        assert_eq!(deadlines.look(9_000, 60), Look::Some);
        assert_eq!(deadlines.end(9_000, 60, |id| id < 10).len(), 10);
    }
}
