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
use crate::schema;

/// Log core view.
#[derive(Debug, Default)]
pub(super) struct StateTransfers {
    /// Members that a state is being sent to.
    sending: BTreeSet<u64>,
    /// Members that have got one, and the tick until which the log keeps what follows it.
    sent: BTreeMap<u64, u64>,
    /// The log is to begin again behind it.
    received: Option<Box<ReceivedState>>,
    /// The log begins again behind this entry; the state is not the tree file yet.
    installing: Option<u64>,
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

    /// The log keeps all that it can.
    pub(super) fn keeps_log(&mut self, now: u64) -> bool {
        self.sent.retain(|_, until| *until > now);
        !self.sending.is_empty() || !self.sent.is_empty()
    }

    /// Another member has sent a state; it is given back if raft has no use for it, or another one
    /// is on its way into its place.
    pub(super) fn offer(
        &mut self,
        node: &mut RaftNode,
        from: u64,
        term: u64,
        state: Box<ReceivedState>,
    ) -> Option<Box<ReceivedState>> {
        let is_busy = self.received.is_some() || self.installing.is_some();
        let conf_state = schema::conf_state(state.tables());
        if is_busy || !node.offer(from, term, state.applied(), &conf_state) {
            return Some(state);
        }
        self.received = Some(state);
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

    /// State up to here is durable elsewhere; true if a received state is in its place by that.
    pub(super) fn durable(&mut self, index: u64) -> bool {
        self.installing.take_if(|installing| *installing <= index).is_some()
    }
}
