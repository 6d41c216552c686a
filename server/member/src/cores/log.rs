//! The log core: what is proposed when, and what raft's word about it leads to.
//!
//! Group commit clocks itself: while one frame is being written and synced, commands gather; when
//! it is durable they all go into the next one. There is no timer and no batch size to tune.

use std::collections::VecDeque;

use crate::apply::command::{self, Command, CommandId, Origin};
use crate::apply::local::Submitted;
use crate::apply::outcome::Outcome;
use crate::apply::{DurableIndex, Work};
use crate::limits;
use crate::peer::{Peer, PeerMessage};
use crate::raft::node::{RaftEffects, RaftError, RaftNode};
use crate::raft::status::RaftStatus;
use crate::wal::FrameContent;

/// Events of the log core.
#[derive(Debug)]
pub enum LogEvent {
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
    /// There is a connection to this member.
    PeerConnected(u64),
    /// The connection to this member is gone, and what was on its way to it may be lost.
    PeerLost(u64),
    /// The answer to a local request of another member.
    Answer {
        /// That member.
        to: u64,
        /// Its caller.
        id: CommandId,
        /// The answer.
        outcome: Outcome,
    },
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
    /// The other members are these from now on.
    fn set_peers(&mut self, peers: Vec<Peer>);
}

/// Log core view: raft, and the commands that wait for the frame in flight.
pub struct LogCore {
    node: RaftNode,
    origin: Origin,
    queue: VecDeque<Command>,
    edges_open: usize,
    /// The term in which this member leads, as the state core was told.
    leads_in: Option<u64>,
}

impl LogCore {
    /// Goes on with a recovered raft, for so many edges; `origin` is stamped on every entry.
    #[must_use]
    pub fn new(node: RaftNode, origin: Origin, edges: usize) -> Self {
        Self { node, origin, queue: VecDeque::new(), edges_open: edges, leads_in: None }
    }

    /// Begins; a sole voter stands for election at once.
    ///
    /// # Errors
    /// When raft refuses; the member must stop.
    pub fn start(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        if self.node.status().is_sole_voter {
            self.node.campaign()?;
        }
        self.advance(effects)
    }

    /// Takes an event in; [`LogCore::advance`] follows the last one of a turn.
    pub fn receive(&mut self, event: LogEvent, effects: &mut impl LogEffects) {
        match event {
            LogEvent::Submitted { submitted: Submitted { commands, local, .. }, .. } => {
                local.into_iter().for_each(|request| effects.work(Work::Local(request)));
                self.queue.extend(commands);
            }
            LogEvent::Written => self.node.written(),
            LogEvent::Tick => self.node.tick(),
            LogEvent::Durable(index) => {
                self.node.release(index.get());
                effects.release(index.get());
            }
            LogEvent::EdgeClosed => self.edges_open -= 1,
            LogEvent::Applied(_)
            | LogEvent::Peer { .. }
            | LogEvent::PeerConnected(_)
            | LogEvent::PeerLost(_)
            | LogEvent::Answer { .. } => {}
        }
    }

    /// Proposes what has gathered, unless a write is in flight, and does what raft asks for.
    ///
    /// # Errors
    /// When raft refuses; the member must stop.
    pub fn advance(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        if !self.node.is_writing() && self.node.status().is_leader {
            let mut frame_bytes = 0;
            while frame_bytes < limits::FRAME_BYTES_MAX
                && let Some(data) = self.next_entry()
            {
                frame_bytes += data.len();
                self.node.propose(data)?;
            }
        }
        let RaftEffects { append, committed } = self.node.effects();
        if let Some(frame) = append {
            effects.append(frame);
        }
        let status = self.node.status();
        let leads_in = status.is_leader.then_some(status.term);
        if self.leads_in != leads_in {
            self.leads_in = leads_in;
            effects.work(Work::Leads(leads_in));
        }
        committed.into_iter().for_each(|entry| effects.work(Work::Entry(entry)));
        Ok(())
    }

    /// Where raft stands.
    #[must_use]
    pub fn status(&self) -> RaftStatus {
        self.node.status()
    }

    /// No caller waits for outcomes any more: a write that finds no room need not be tried again.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.edges_open == 0
    }

    /// Every edge is done, and everything they proposed is durable.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_stopping() && self.is_at_rest()
    }

    /// Nothing waits for a write.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        !self.node.is_writing() && self.queue.is_empty()
    }

    /// Encodes queued commands as one entry, bounded in bytes.
    fn next_entry(&mut self) -> Option<Vec<u8>> {
        let mut bytes = 0;
        let fits = |command: &&Command| {
            let first = bytes == 0;
            bytes += command.encoded_len();
            first || bytes <= limits::ENTRY_BYTES_MAX
        };
        let count = self.queue.iter().take_while(fits).count();
        if count == 0 {
            return None;
        }
        let commands: Vec<Command> = self.queue.drain(..count).collect();
        Some(command::encode(self.origin, &commands))
    }
}
