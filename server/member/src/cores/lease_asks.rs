//! Requests about leases that come to a member which does not lead. The leader answers them, since
//! it alone knows how long leases live.
//!
//! They change nothing that may not happen twice. So they are asked again when the leader changes
//! or the way to it breaks, as etcd's members do: a client keeps its lease alive through an
//! election without hearing of it.

use std::collections::{BTreeMap, VecDeque};

use crate::apply::command::CommandId;
use crate::apply::local::LeaseRequest;
use crate::apply::outcome::Outcome;
use crate::error::Error;
use crate::limits;

/// Log core view: the requests that no leader has answered. The slots of edges bound them.
#[derive(Debug, Default)]
pub(super) struct LeaseAsks {
    open: BTreeMap<CommandId, Ask>,
    /// Those that wait for a leader.
    waiting: VecDeque<CommandId>,
    /// Those that the leader has refused; they wait until the next tick.
    refused: Vec<CommandId>,
    /// When each came, the oldest first; also those that are answered, until they come first.
    ages: VecDeque<(u64, CommandId)>,
}

#[derive(Debug, Clone, Copy)]
struct Ask {
    request: LeaseRequest,
    /// A leader has it.
    is_sent: bool,
    /// Ticks since it was sent.
    ticks: u64,
}

impl LeaseAsks {
    /// A caller of this member asks.
    pub(super) fn add(&mut self, id: CommandId, request: LeaseRequest, now: u64) {
        self.open.insert(id, Ask { request, is_sent: false, ticks: 0 });
        self.waiting.push_back(id);
        self.ages.push_back((now, id));
    }

    /// The next request for the leader.
    pub(super) fn send_next(&mut self) -> Option<(CommandId, LeaseRequest)> {
        loop {
            let id = self.waiting.pop_front()?;
            if let Some(ask) = self.open.get_mut(&id) {
                (ask.is_sent, ask.ticks) = (true, 0);
                return Some((id, ask.request));
            }
        }
    }

    /// The next request, for this member: it leads.
    pub(super) fn take_next(&mut self) -> Option<(CommandId, LeaseRequest)> {
        let next = self.send_next()?;
        self.open.remove(&next.0);
        Some(next)
    }

    /// A member has answered; whether that is the answer of the caller.
    pub(super) fn is_answered(&mut self, id: CommandId, outcome: &Outcome) -> bool {
        let Some(ask) = self.open.get_mut(&id).filter(|ask| ask.is_sent) else { return false };
        if matches!(outcome.result, Err(Error::NotLeader | Error::TooManyRequests)) {
            ask.is_sent = false;
            self.refused.push(id);
            return false;
        }
        self.open.remove(&id);
        self.prune();
        true
    }

    /// The leader is another one, or the way to it broke.
    pub(super) fn lose(&mut self) {
        for (id, ask) in self.open.iter_mut().filter(|(_, ask)| ask.is_sent) {
            ask.is_sent = false;
            self.waiting.push_back(*id);
        }
    }

    /// A step of the clock: requests that were refused are asked again, and those whose question
    /// or answer may have been lost; those that came at `oldest` or before are given up.
    pub(super) fn tick(&mut self, oldest: Option<u64>) -> Vec<CommandId> {
        self.waiting.extend(self.refused.drain(..));
        for (id, ask) in self.open.iter_mut().filter(|(_, ask)| ask.is_sent) {
            ask.ticks += 1;
            if ask.ticks == limits::ASK_AGAIN_TICKS {
                ask.is_sent = false;
                self.waiting.push_back(*id);
            }
        }
        let mut given_up = Vec::new();
        while let Some((_, id)) = self.ages.pop_front_if(|(since, _)| Some(*since) <= oldest) {
            if self.open.remove(&id).is_some() {
                given_up.push(id);
            }
        }
        self.prune();
        given_up
    }

    fn prune(&mut self) {
        while self.ages.pop_front_if(|(_, id)| !self.open.contains_key(id)).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::local::DeadlineRequest;
    use crate::apply::outcome::Rest;
    use bytes::Bytes;

    fn id(slot: usize) -> CommandId {
        CommandId::new(0, slot, 0)
    }

    fn keepalive(lease: i64) -> LeaseRequest {
        LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease })
    }

    fn outcome(result: Result<Bytes, Error>) -> Outcome {
        Outcome { revision: 1, result, rest: Rest::NONE }
    }

    fn sent(asks: &mut LeaseAsks) -> Vec<usize> {
        std::iter::from_fn(|| asks.send_next()).map(|(id, _)| id.slot()).collect()
    }

    #[test]
    fn what_a_lost_leader_has_not_answered_is_asked_again() {
        let mut asks = LeaseAsks::default();
        (1..=3).for_each(|slot| asks.add(id(slot), keepalive(7), 0));
        assert_eq!(sent(&mut asks), [1, 2, 3]);
        assert!(asks.is_answered(id(2), &outcome(Ok(Bytes::new()))));
        assert!(!asks.is_answered(id(2), &outcome(Ok(Bytes::new()))), "it has its answer");
        asks.lose();
        asks.add(id(4), keepalive(8), 1);
        assert!(!asks.is_answered(id(1), &outcome(Ok(Bytes::new()))), "a former leader's word");
        assert_eq!(sent(&mut asks), [1, 3, 4]);
        // This member leads: it answers what has not been sent, by itself.
        asks.lose();
        assert_eq!(asks.take_next(), Some((id(1), keepalive(7))));
        assert_eq!(std::iter::from_fn(|| asks.take_next()).count(), 2);
        assert!(asks.open.is_empty() && asks.tick(None).is_empty() && asks.ages.is_empty());
    }

    #[test]
    fn a_leader_that_refuses_is_asked_again_at_the_next_tick() {
        let mut asks = LeaseAsks::default();
        asks.add(id(1), keepalive(7), 0);
        assert_eq!(sent(&mut asks), [1]);
        for why in [Error::NotLeader, Error::TooManyRequests] {
            assert!(!asks.is_answered(id(1), &outcome(Err(why))));
            assert_eq!(sent(&mut asks), []);
            assert_eq!(asks.tick(None), []);
            assert_eq!(sent(&mut asks), [1]);
        }
        assert!(asks.is_answered(id(1), &outcome(Err(Error::Corrupt))));
    }

    /// The answer was dropped on its way, and the leader is the same.
    #[test]
    fn a_request_without_an_answer_is_asked_again() {
        let mut asks = LeaseAsks::default();
        asks.add(id(1), keepalive(7), 0);
        for _ in 0..3 {
            assert_eq!(sent(&mut asks), [1]);
            for _ in 1..limits::ASK_AGAIN_TICKS {
                assert_eq!(asks.tick(None), []);
                assert_eq!(sent(&mut asks), []);
            }
            assert_eq!(asks.tick(None), []);
        }
        assert_eq!(sent(&mut asks), [1]);
        assert!(asks.is_answered(id(1), &outcome(Ok(Bytes::new()))));
    }

    #[test]
    fn requests_without_an_answer_are_given_up_in_time() {
        let mut asks = LeaseAsks::default();
        (1..=4).for_each(|slot| asks.add(id(slot), keepalive(7), slot as u64));
        assert_eq!(sent(&mut asks), [1, 2, 3, 4]);
        assert!(asks.is_answered(id(3), &outcome(Ok(Bytes::new()))));
        assert_eq!(asks.tick(Some(1)), [id(1)]);
        assert_eq!(asks.tick(Some(3)), [id(2)]);
        assert!(!asks.is_answered(id(2), &outcome(Ok(Bytes::new()))));
        asks.lose();
        assert_eq!(sent(&mut asks), [4]);
        assert_eq!(asks.tick(Some(9)), [id(4)]);
        assert!(asks.open.is_empty() && asks.ages.is_empty() && asks.waiting.is_empty());
    }
}
