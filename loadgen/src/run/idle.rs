//! Callers of one thread that have nothing to do.

use std::collections::VecDeque;

/// Idle callers by connection. Connections have turns, so that all have as many calls, in whatever
/// order replies come: one queue of all callers would have those of a connection behind each other
/// for good once a stall has had its replies come together, and calls of a moment would go to one
/// connection, and to the core of the server that has it.
///
/// Invariant: `turns` has each connection with idle callers once, and no other.
#[derive(Debug, Default)]
pub(super) struct IdleCallers {
    /// By connection: the caller that has rested for longest first.
    by_client: Vec<VecDeque<u32>>,
    turns: VecDeque<usize>,
}

impl IdleCallers {
    /// A caller of a connection has nothing to do any more.
    pub(super) fn rest(&mut self, caller: u32, client: usize) {
        if self.by_client.len() <= client {
            self.by_client.resize_with(client + 1, VecDeque::new);
        }
        if self.by_client[client].is_empty() {
            self.turns.push_back(client);
        }
        self.by_client[client].push_back(caller);
    }

    /// The caller that has rested for longest on the connection whose turn it is. Connections that
    /// cannot be called lose their turn to one that can, and are looked at again when those that
    /// wait now have had theirs; while none can be called, all are looked at each time.
    pub(super) fn take(&mut self, can_call: impl Fn(usize) -> bool) -> Option<u32> {
        let skipped = self.turns.iter().position(|client| can_call(*client))?;
        self.turns.rotate_left(skipped);
        let client = self.turns.pop_front()?;
        let caller = self.by_client[client].pop_front();
        if !self.by_client[client].is_empty() {
            self.turns.push_back(client);
        }
        caller
    }

    /// Callers of connections that can be called, one of each connection in turn: all, or so many.
    pub(super) fn take_all(&mut self, most: usize, can_call: impl Fn(usize) -> bool) -> Vec<u32> {
        std::iter::from_fn(|| self.take(&can_call)).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many callers on each of so many connections; caller 7 of 4 connections is on the last.
    fn idle(clients: u32, callers: u32) -> IdleCallers {
        let mut idle = IdleCallers::default();
        (0..clients * callers).for_each(|caller| idle.rest(caller, (caller % clients) as usize));
        idle
    }

    #[test]
    fn callers_of_a_connection_take_turns_whoever_was_answered_last() {
        let mut idle = idle(1, 3);
        let mut called = Vec::new();
        for _ in 0..6 {
            let caller = idle.take(|_| true).expect("an idle caller");
            called.push(caller);
            idle.rest(caller, 0); // answered at once
        }
        assert_eq!(called, [0, 1, 2, 0, 1, 2]);
    }

    /// A stall has all replies of a connection come together, and then those of the next one.
    #[test]
    fn connections_take_turns_although_replies_come_in_blocks_of_them() {
        let mut idle = idle(4, 100);
        let mut calls = idle.take_all(usize::MAX, |_| true);
        assert_eq!(calls.len(), 400);
        for _ in 0..3 {
            calls.sort_by_key(|caller| caller % 4);
            calls.iter().for_each(|caller| idle.rest(*caller, (caller % 4) as usize));
            calls = std::iter::from_fn(|| idle.take(|_| true)).collect();
            for moment in calls.chunks(4) {
                let mut clients: Vec<_> = moment.iter().map(|caller| caller % 4).collect();
                clients.sort_unstable();
                assert_eq!(clients, [0, 1, 2, 3], "{calls:?}");
            }
        }
    }

    #[test]
    fn callers_of_a_lost_connection_wait_until_it_is_back() {
        let mut idle = idle(3, 2);
        let without = |lost: usize| move |client: usize| client != lost;
        assert_eq!([(); 4].map(|()| idle.take(without(1))), [Some(0), Some(2), Some(3), Some(5)]);
        assert_eq!(idle.take(without(1)), None, "1 and 4 cannot call");
        idle.rest(2, 2);
        assert_eq!(idle.take_all(usize::MAX, without(1)), [2]);
        idle.rest(0, 0);
        assert_eq!(idle.take_all(2, |_| true), [1, 0], "both in turn, when it is back");
        assert_eq!(idle.take_all(2, |_| true), [4]);
    }

    /// In a round of all connections, half of which are lost.
    #[test]
    fn lost_connections_are_passed_over_once_in_a_round() {
        let mut idle = idle(200, 50);
        let looked = std::cell::Cell::new(0);
        let is_odd = |client: usize| {
            looked.set(looked.get() + 1);
            client % 2 == 1
        };
        for _ in 0..1_000 {
            let caller = idle.take(is_odd).expect("an idle caller");
            idle.rest(caller, (caller % 200) as usize);
        }
        assert!(looked.get() <= 2_000 + 200, "{} looks for 1,000 calls", looked.get());
    }

    /// Calls that wait for a stream keep their callers, so that none of these is idle.
    #[test]
    fn a_connection_whose_callers_all_wait_has_no_turn() {
        let mut idle = idle(2, 2);
        assert_eq!([(); 3].map(|()| idle.take(|client| client == 0)), [Some(0), Some(2), None]);
        let only_other = |client: usize| {
            assert_eq!(client, 1, "it has no idle callers");
            true
        };
        assert_eq!(idle.take(only_other), Some(1));
        idle.rest(1, 1);
        idle.rest(2, 0); // it has a stream again, and its answer
        assert_eq!(idle.take_all(usize::MAX, |_| true), [3, 2, 1], "each connection once before any has two");
    }

    #[test]
    fn callers_with_connections_of_their_own_take_turns() {
        let mut idle = idle(500, 1);
        for round in 0..3 {
            let calls: Vec<_> = (0..500).map(|_| idle.take(|_| true).expect("an idle caller")).collect();
            assert!(calls.iter().copied().eq(0..500), "round {round}: {calls:?}");
            calls.iter().for_each(|caller| idle.rest(*caller, *caller as usize));
        }
    }
}
