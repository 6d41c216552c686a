//! Events and effects of the log core.

use bytes::Bytes;

use crate::apply::command::CommandId;
use crate::apply::local::Submitted;
use crate::apply::outcome::Outcome;
use crate::apply::received::ReceivedState;
use crate::apply::state_hashes::HashPoint;
use crate::apply::{DurableIndex, Work};
use crate::cluster::version::ClusterVersion;
use crate::peer::{Peer, PeerMessage};
use crate::raft::feed::{LogFetch, Unread};
use crate::wal::{FrameContent, LogEntry};

/// Events of the log core.
#[derive(Debug)]
pub enum LogEvent {
    /// A turn begins, so many microseconds after any moment before the first one. The other events
    /// of the turn follow.
    Turn(u64),
    /// The requests that an edge submits in one turn.
    Submitted {
        /// That edge.
        edge: u16,
        /// Its requests.
        submitted: Submitted,
    },
    /// The frame handed out last is durable.
    Written,
    /// A step of raft's clock.
    Tick,
    /// State up to here is durable elsewhere.
    Durable(DurableIndex),
    /// Entries up to here are applied.
    Applied(u64),
    /// An edge will propose nothing more.
    EdgeClosed,
    /// Another member has sent this.
    Peer {
        /// That member.
        from: u64,
        /// Its message.
        message: PeerMessage,
    },
    /// A member has said which version it has.
    PeerVersion(u64, ClusterVersion),
    /// There is a connection to this member.
    PeerConnected(u64),
    /// The connection to this member is gone, and what was on its way to it may be lost.
    PeerLost(u64),
    /// A batch of this member's commands found no room on its way to the leader, and was dropped:
    /// the connection is there, and everything else gets through.
    Unsent(Bytes),
    /// Another member says that this one was removed.
    SentAway {
        /// That member.
        by: u64,
    },
    /// The answer to a local request of another member.
    Answer {
        /// That member.
        to: u64,
        /// Its caller.
        id: CommandId,
        /// The answer.
        outcome: Outcome,
    },
    /// The state hash that a member wants to know, or this one's own log core.
    Hash {
        /// That member.
        to: u64,
        /// The hash.
        point: HashPoint,
        /// Members whose alarm says that they are corrupt, by the newest entry.
        corrupt: Vec<u64>,
    },
    /// Another member has sent a state, which is durable in a file of its own.
    StateReceived {
        /// That member.
        from: u64,
        /// The term that it leads in.
        term: u64,
        /// The state.
        state: Box<ReceivedState>,
    },
    /// The state that a member was to get ([`Work::Stream`]) is there, or could not be sent.
    StateSent {
        /// That member.
        to: u64,
        /// It is there.
        is_there: bool,
    },
    /// The entries that were to be read, or why they are not there.
    Fetched(LogFetch, Result<Vec<LogEntry>, Unread>),
    /// The disk of the log has room for so many bytes beside it.
    DiskRoom(u64),
}

/// Effects of the log core, in this order.
pub trait LogEffects {
    /// Write this frame; [`LogEvent::Written`] follows.
    fn append(&mut self, frame: FrameContent);
    /// Segments that hold nothing above this index may be reused.
    fn release(&mut self, index: u64);
    /// Hand this to the state core, behind everything before it.
    fn work(&mut self, work: Work);
    /// Send this to another member, behind everything before it; it may be lost.
    fn send(&mut self, to: u64, message: PeerMessage);
    /// Read these entries from the segments; [`LogEvent::Fetched`] follows.
    fn fetch(&mut self, fetch: LogFetch);
    /// The other members are these from now on.
    fn set_peers(&mut self, peers: Vec<Peer>);
    /// Remove the file of this state; then another one may be received.
    fn discard(&mut self, state: Box<ReceivedState>);
    /// The state that was received last is in its place: another one may be received.
    fn installed(&mut self);
}
