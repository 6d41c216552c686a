//! The log core: what is proposed when, and what raft's word about it leads to.
//!
//! Group commit clocks itself: while one frame is being written and synced, commands gather; when
//! it is durable they all go into the next one. There is no timer and no batch size to tune.

use std::collections::VecDeque;

use crate::apply::command::{self, Command, Origin};
use crate::apply::local::Submitted;
use crate::apply::{DurableIndex, Work};
use crate::limits;
use crate::raft::node::{RaftEffects, RaftError, RaftNode};
use crate::raft::status::RaftStatus;
use crate::wal::FrameContent;

/// Events of the log core.
#[derive(Debug)]
pub enum LogEvent {
    /// The requests that an edge submits in one turn.
    Submitted(Submitted),
    /// The frame handed out last is durable.
    Written,
    /// A step of raft's clock.
    Tick,
    /// State up to here is durable elsewhere.
    Durable(DurableIndex),
    /// An edge will propose nothing more.
    EdgeClosed,
}

/// Effects of the log core, in this order.
pub trait LogEffects {
    /// Write this frame; [`LogEvent::Written`] follows.
    fn append(&mut self, frame: FrameContent);
    /// Segments that hold nothing above this index may be reused.
    fn release(&mut self, index: u64);
    /// Hand this to the state core, behind everything before it.
    fn work(&mut self, work: Work);
}

/// Log core view: raft, and the commands that wait for the frame in flight.
pub struct LogCore {
    node: RaftNode,
    origin: Origin,
    queue: VecDeque<Command>,
    edges_open: usize,
}

impl LogCore {
    /// Goes on with a recovered raft, for so many edges; `origin` is stamped on every entry.
    #[must_use]
    pub fn new(node: RaftNode, origin: Origin, edges: usize) -> Self {
        Self { node, origin, queue: VecDeque::new(), edges_open: edges }
    }

    /// Stands for election.
    ///
    /// # Errors
    /// When raft refuses; the member must stop.
    pub fn start(&mut self, effects: &mut impl LogEffects) -> Result<(), RaftError> {
        self.node.campaign()?;
        self.advance(effects)
    }

    /// Takes an event in; [`LogCore::advance`] follows the last one of a turn.
    pub fn receive(&mut self, event: LogEvent, effects: &mut impl LogEffects) {
        match event {
            LogEvent::Submitted(Submitted { commands, local }) => {
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
