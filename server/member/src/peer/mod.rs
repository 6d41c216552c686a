//! Peers: the other members of the cluster, and what members say to each other.
//!
//! A connection begins with the dialer's hello and the listener's answer (`hello.rs`). Behind them
//! come frames (`frame.rs`), whose payloads are messages (`codec.rs`), from the dialer to the
//! listener alone: each member dials every other one, so that two members have two connections.
//! The server's `peer/` carries the bytes. A state comes on a connection of its own, one at a time
//! (`attempt.rs`).
//!
//! Nothing here trusts a byte: a connection ends at the first that no member would send.

pub mod attempt;
pub mod codec;
pub mod frame;
pub mod hello;

use bytes::Bytes;

use crate::apply::command::{CommandId, Origin};
use crate::apply::local::LeaseRequest;
use crate::apply::outcome::Outcome;
use crate::apply::state_hashes::HashPoint;
use crate::error::Error;
use crate::raft::message::RaftMessage;

/// Another member of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its member id.
    pub id: u64,
    /// Where it listens for its peers.
    pub urls: Vec<String>,
}

/// From one member to another.
#[derive(Debug, Clone, PartialEq)]
pub enum PeerMessage {
    /// For raft.
    Raft(RaftMessage),
    /// Propose this batch of commands, whose origin is the sender.
    Forward(Bytes),
    /// Commands of a [`PeerMessage::Forward`] that will not be proposed.
    Refused {
        /// Those commands.
        ids: Vec<CommandId>,
        /// The answer of their callers.
        why: Error,
    },
    /// Reads of the sender, which is in this term, wait for a read index of the term's leader.
    ReadAsk {
        /// That term.
        term: u64,
        /// The name of this attempt.
        context: ReadContext,
    },
    /// The answer to a [`PeerMessage::ReadAsk`].
    ReadAnswer {
        /// The name of the attempt.
        context: ReadContext,
        /// Its reads see everything that matters once the entry of this index is applied.
        index: u64,
    },
    /// Is the receiver still in this term, which the sender leads?
    Confirm {
        /// That term.
        term: u64,
        /// The sender's round.
        round: u64,
    },
    /// It is: the answer to a [`PeerMessage::Confirm`].
    Confirmed {
        /// That term.
        term: u64,
        /// The round of the member that asked.
        round: u64,
    },
    /// A request about leases, for the leader.
    LeaseAsk {
        /// The sender's caller.
        id: CommandId,
        /// The request.
        request: LeaseRequest,
    },
    /// A leader wants to know the state hash of this member behind this entry, once it is applied.
    HashAsk(u64),
    /// The answer to a [`PeerMessage::HashAsk`].
    Hash(HashPoint),
    /// The answer to a [`PeerMessage::LeaseAsk`].
    LeaseAnswer {
        /// The caller that asked.
        id: CommandId,
        /// Its answer.
        outcome: Outcome,
    },
}

impl PeerMessage {
    /// Its sender sends the like of it again by itself when no answer comes, or is asked again when
    /// its answer does not come. A loss need not be told then; a question that is asked the sooner
    /// for a loss would be asked for ever, and raft takes a loss for one of a healthy member.
    #[must_use]
    pub fn is_repeated(&self) -> bool {
        match self {
            Self::Raft(_)
            | Self::ReadAsk { .. }
            | Self::ReadAnswer { .. }
            | Self::Confirm { .. }
            | Self::Confirmed { .. }
            | Self::LeaseAsk { .. }
            | Self::LeaseAnswer { .. }
            | Self::HashAsk(_)
            | Self::Hash(_) => true,
            Self::Forward(_) | Self::Refused { .. } => false,
        }
    }
}

/// The name of one attempt to learn a read index. A late answer must not serve reads that came
/// after the attempt (etcd #20418), so that no attempt of any member, in any of its incarnations,
/// has the name of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadContext {
    /// The member that asks, in one incarnation.
    pub origin: Origin,
    /// Attempts of that incarnation, up to this one.
    pub attempt: u64,
}

/// The two ends of a connection of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The member that dialed, and sends.
    pub from: u64,
    /// The member that listens.
    pub to: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::outcome::Rest;

    /// A caller waits for its answer, or may wait, as long as nobody says that it is lost.
    #[test]
    fn what_a_caller_waits_for_is_sent_once() {
        let id = CommandId(1);
        let outcome = Outcome { revision: 1, result: Ok(Bytes::new()), rest: Rest::NONE };
        for message in [
            PeerMessage::Forward(Bytes::new()),
            PeerMessage::Refused { ids: vec![id], why: Error::LeaseNotFound },
        ] {
            assert!(!message.is_repeated(), "{message:?}");
        }
        // A loss that is told leads to these questions, or is one of their answers.
        for message in [
            PeerMessage::Confirm { term: 1, round: 1 },
            PeerMessage::LeaseAsk { id, request: LeaseRequest::Keys { lease: 1 } },
            PeerMessage::LeaseAnswer { id, outcome },
            PeerMessage::HashAsk(1),
        ] {
            assert!(message.is_repeated(), "{message:?}");
        }
    }
}
