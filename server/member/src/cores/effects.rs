//! Events and effects of the state core.

use std::time::Duration;

use revd_engine::mvcc::{Checkpoint, SavedState, View, WrittenCheckpoint};

use crate::apply::command::CommandId;
use crate::apply::lease_reports::LeaseCounts;
use crate::apply::outcome::Outcome;
use crate::apply::received::ReplacedState;
use crate::apply::state_hashes::HashPoint;
use crate::apply::{DurableIndex, Lost, Machine, Work};
use crate::auth::rules::TokenChange;
use crate::cores::long::{FinishedCommand, LongCommand, LongList};
use crate::error::Error;

/// Events of the state core.
#[derive(Debug)]
pub enum StateEvent {
    /// Committed entries, in log order, and requests to this member alone.
    Work(Vec<Work>),
    /// The time of [`StateEffects::remind`] is over.
    CheckpointDue,
    /// A checkpoint was written.
    Written {
        /// The result of [`Checkpoint::write`].
        written: Box<WrittenCheckpoint>,
        /// It found no room, but there may be some now.
        made_room: bool,
    },
    /// A long command is done.
    Finished(FinishedCommand),
    /// A list of all leases is encoded.
    Listed(Outcome),
    /// The file of a received state is the tree file.
    Installed,
    /// Memory that was held for older Views may not be needed any more: see
    /// [`Store::may_have_unneeded`](revd_engine::mvcc::Store::may_have_unneeded).
    ViewsMayHaveEnded,
    /// Nothing more will be committed.
    LogClosed,
}

/// The surroundings of a turn, besides its events.
#[derive(Debug, Clone, Copy)]
pub struct Standpoint {
    /// Clients may come.
    pub is_ready: bool,
}

/// Effects of the state core, in this order. Each call only begins what takes time.
pub trait StateEffects {
    /// Microseconds of a clock that never goes back.
    fn microseconds(&self) -> u64;
    /// Index of the last entry in the log, or a later one: entries up to it may have been answered
    /// by other members.
    fn last_index(&self) -> u64;
    /// Leases granted, renewed, revoked and expired since the start; in every turn.
    fn counted(&mut self, counts: LeaseCounts);
    /// This View is the newest one that edges may read. It holds everything up to this index, with
    /// so many leases, and perhaps a part of the next entry.
    fn publish(&mut self, view: View, applied: u64, leases: usize);
    /// Answer a command of one of our edges.
    fn answer(&mut self, id: CommandId, outcome: Outcome);
    /// Answer a local request of another member.
    fn answer_member(&mut self, member: u64, id: CommandId, outcome: Outcome);
    /// Linearizable reads of an edge up to this ticket may be served, from the View that was
    /// published last, or are refused.
    fn end_reads(&mut self, edge: u16, ticket: u64, result: Result<(), Error>);
    /// Commands that edges submitted up to these numbers and that have no answer by now will not
    /// get one.
    fn lost(&mut self, lost: Lost);
    /// Ask every edge to pass on the keepalives it has, and then to say so by this number.
    fn hear(&mut self, question: u64);
    /// Edges that follow Views and got no answer are to be told of the one published last.
    fn tell_of_view(&mut self);
    /// Call [`Checkpoint::write`] elsewhere; [`StateEvent::Written`] follows. `is_light`: it comes
    /// of little load.
    fn write(&mut self, checkpoint: Checkpoint, is_light: bool);
    /// [`StateEvent::CheckpointDue`] follows after this time.
    fn remind(&mut self, after: Duration);
    /// The log may let go of everything up to here. A report that is lost is made good by the next
    /// one.
    fn durable(&mut self, index: DurableIndex);
    /// Run this elsewhere; [`StateEvent::Finished`] follows.
    fn run(&mut self, command: LongCommand);
    /// Encode this elsewhere; [`StateEvent::Listed`] follows.
    fn encode(&mut self, list: LongList);
    /// Make the file of the state that was received the tree file, durably;
    /// [`StateEvent::Installed`] follows.
    fn install(&mut self);
    /// Drop this elsewhere: it takes long.
    fn discard(&mut self, state: ReplacedState);
    /// Send this state to that member, in the name of the leader of that term; none if nothing was
    /// ever saved.
    fn stream(&mut self, to: u64, term: u64, state: Option<SavedState>);
    /// A member wants to know this hash, or the log core of this one does; alarms say that these
    /// members are corrupt.
    fn hashed(&mut self, to: u64, point: HashPoint, corrupt: &[u64]);
    /// From now on this member answers nobody from its state, or does again: it is corrupt, or its
    /// alarm was cleared.
    fn corrupt(&mut self, is_corrupt: bool);
    /// Requests need rights from the next View on, or do not; before each View.
    fn rights_needed(&mut self, _are_needed: bool) {}
    /// A token counts from now on, or some do not any more; before the outcome that says so.
    fn tokens(&mut self, _change: TokenChange) {}
    /// An operator wants to know.
    fn note(&mut self, note: Note);
    /// An entry is applied, all of it; for simulators that look at the state after each.
    fn applied(&mut self, _machine: &mut Machine) {}
}

/// News for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// This member has begun or ceased to lead, and TTLs begin anew.
    LeasesReset {
        /// It has begun to lead.
        leads: bool,
        /// How many leases there are.
        leases: usize,
    },
    /// The last checkpoint found no room; the log has everything.
    StoppedUnsaved,
    /// A defragmentation is over, and the tree file is longer than it could be.
    FileStaysLong {
        /// Why, and what to do.
        why: &'static str,
        /// Its bytes.
        file: u64,
        /// Bytes of it that hold data.
        in_use: u64,
    },
}
