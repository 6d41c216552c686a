//! When leases are due, as the leader sees it. Times are milliseconds of any clock that never goes back.
//!
//! A keepalive only writes the new deadline. The queue holds each lease once, at a time that may be too early by now: when
//! that time comes, it is queued again at its true deadline. So a lease that is kept alive costs a queue operation per
//! TTL, not one per keepalive.

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
}

/// What becomes of a keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives on for so many seconds.
    Renewed(i64),
    /// It is due: whoever asks has to wait until it is revoked.
    Due,
    /// There is no such lease.
    Gone,
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

    /// Somebody says that a lease shall live on.
    pub fn renew(&mut self, id: i64, now: u64) -> Renewal {
        let Some(deadline) = self.leases.get_mut(&id) else { return Renewal::Gone };
        if deadline.at <= now {
            return Renewal::Due;
        }
        deadline.at = now + milliseconds(deadline.ttl);
        Renewal::Renewed(deadline.ttl)
    }

    /// Whole seconds a lease has left, 0 when it is due.
    #[must_use]
    pub fn remaining(&self, id: i64, now: u64) -> Option<i64> {
        let left = self.leases.get(&id)?.at.saturating_sub(now);
        Some(i64::try_from(left / 1000).unwrap_or(i64::MAX))
    }

    /// Leases that are due, earliest first, at most so many. They stay due until they are revoked.
    pub fn due(&mut self, now: u64, most: usize) -> Vec<i64> {
        let mut due = Vec::new();
        let mut later = Vec::new();
        for (_, id) in self.queue.range(..=(now, i64::MAX)) {
            if self.leases[id].at > now {
                later.push(*id);
            } else if due.len() < most {
                due.push(*id);
            } else {
                break;
            }
        }
        for id in later {
            self.queue_again(id);
        }
        due
    }

    /// All leases, earliest deadline first.
    #[must_use]
    pub fn by_deadline(&self) -> Vec<i64> {
        let mut leases: Vec<(u64, i64)> =
            self.leases.iter().map(|(id, deadline)| (deadline.at, *id)).collect();
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| id).collect()
    }

    fn set(&mut self, id: i64, ttl: i64, at: u64) {
        self.leases.insert(id, Deadline { at, queued: at, ttl });
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
                        Some((_, at)) if *at <= now => Renewal::Due,
                        Some((ttl, at)) => {
                            *at = now + milliseconds(*ttl);
                            Renewal::Renewed(*ttl)
                        }
                    };
                    assert_eq!(deadlines.renew(id, now), expected);
                }
                _ => {
                    let mut due = deadlines.due(now, 100);
                    due.sort_unstable();
                    let expected: Vec<i64> =
                        model.iter().filter(|(_, (_, at))| *at <= now).map(|(id, _)| *id).collect();
                    assert_eq!(due, expected);
                    for id in due {
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
        assert!(deadlines.due(6_499, 9).is_empty());
        assert_eq!(deadlines.due(6_500, 9), [1]);
        assert_eq!(deadlines.due(60_000, 1), [1], "until it is revoked, and at most so many");
        assert_eq!(deadlines.by_deadline(), [1, 2]);
    }
}
