//! States on their way from this member to those that lag behind the log, and from another one to
//! this.
//!
//! One is received at a time: from the offer until it is the tree file. While one is sent, and for
//! a while after, the log keeps what follows it, as far as there is memory; else its receiver would
//! lag behind the log again.

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::received::ReceivedState;
use crate::limits;
use crate::raft::node::RaftNode;
use crate::raft::states::Offered;
use crate::schema;

/// Log core view.
#[derive(Debug, Default)]
pub(super) struct StateTransfers {
    /// Members that a state is being sent to.
    sending: BTreeSet<u64>,
    /// Members that have got one, and the tick until which the log keeps what follows it.
    sent: BTreeMap<u64, u64>,
    /// It waits for raft's word.
    offered: Option<OfferedState>,
    /// The log is to begin again behind it.
    received: Option<Box<ReceivedState>>,
    /// The log begins again behind this entry; the state is not the tree file yet.
    installing: Option<u64>,
}

/// A state that has come whole.
#[derive(Debug)]
struct OfferedState {
    from: u64,
    term: u64,
    state: Box<ReceivedState>,
}

/// The answer to a member's need of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Begins,
    UnderWay,
    /// Others are sent theirs.
    Later,
}

impl StateTransfers {
    /// A member needs a state.
    pub(super) fn send(&mut self, to: u64) -> Sending {
        if self.sending.contains(&to) {
            return Sending::UnderWay;
        }
        if self.sending.len() >= limits::STATES_SENT_MAX {
            return Sending::Later;
        }
        self.sending.insert(to);
        Sending::Begins
    }

    /// A state is with its receiver, or could not be sent.
    pub(super) fn sent(&mut self, to: u64, is_there: bool, now: u64) {
        self.sending.remove(&to);
        if is_there {
            self.sent.insert(to, now + limits::STATE_SENT_TICKS);
        }
    }

    /// The log keeps all that it can: for a state on its way, and for its receiver while it is fed
    /// what follows.
    pub(super) fn keeps_log(&mut self, now: u64, is_fed: impl Fn(u64) -> bool) -> bool {
        self.sent.retain(|member, until| *until > now || is_fed(*member));
        !self.sending.is_empty() || !self.sent.is_empty()
    }

    /// Another member has sent a state in the name of the leader of a term; it is given back if
    /// another one is on its way into its place.
    pub(super) fn receive(
        &mut self,
        from: u64,
        term: u64,
        state: Box<ReceivedState>,
    ) -> Option<Box<ReceivedState>> {
        if self.offered.is_some() || self.received.is_some() || self.installing.is_some() {
            return Some(state);
        }
        self.offered = Some(OfferedState { from, term, state });
        None
    }

    /// Offers raft the state that has come, until it has decided; a state that it has no use for is
    /// given back.
    pub(super) fn offer(&mut self, node: &mut RaftNode) -> Option<Box<ReceivedState>> {
        let OfferedState { from, term, state } = self.offered.take()?;
        let conf_state = schema::conf_state(state.tables());
        match node.offer(from, term, state.applied(), &conf_state) {
            Offered::Taken => self.received = Some(state),
            Offered::Early => self.offered = Some(OfferedState { from, term, state }),
            Offered::Unwanted => return Some(state),
        }
        None
    }

    /// The log begins again, durably.
    ///
    /// # Panics
    /// If nothing was received.
    pub(super) fn install(&mut self) -> Box<ReceivedState> {
        let state = self.received.take().expect("the log begins again behind a received state");
        self.installing = Some(state.applied().index);
        state
    }

    /// A received state is on its way into its place.
    pub(super) fn is_installing(&self) -> bool {
        self.received.is_some() || self.installing.is_some()
    }

    /// State up to here is durable elsewhere; true if a received state is in its place by that.
    pub(super) fn durable(&mut self, index: u64) -> bool {
        self.installing.take_if(|installing| *installing <= index).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_states_are_sent_at_a_time_and_the_log_stays_for_a_while() {
        let no_feed = |_| false;
        let mut transfers = StateTransfers::default();
        assert!(!transfers.keeps_log(1, no_feed));
        let members = 2..2 + limits::STATES_SENT_MAX as u64;
        assert!(members.clone().all(|to| transfers.send(to) == Sending::Begins));
        assert_eq!((transfers.send(2), transfers.send(99)), (Sending::UnderWay, Sending::Later));
        members.for_each(|to| transfers.sent(to, to == 2, 10));
        let until = 10 + limits::STATE_SENT_TICKS;
        assert!(transfers.keeps_log(until - 1, no_feed), "what follows the state of member 2");
        assert!(transfers.keeps_log(until, |member| member == 2), "it is fed that");
        assert!(!transfers.keeps_log(until, |member| member == 3));
        assert_eq!(transfers.send(99), Sending::Begins);
        assert!(transfers.keeps_log(until, no_feed));
    }
}
