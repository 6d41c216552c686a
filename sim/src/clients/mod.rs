//! The place of the cluster's clients. There are none yet: the load of a run is `probe`, which puts
//! and reads; histories that are held against `revd_checker` are recorded by storms of processes.

use revd_engine::random::Random;

use crate::calls::{CallId, Door, Reply, StreamId, WatchMessage};

/// All clients of a run.
#[derive(Debug)]
pub struct Clients {}

impl Clients {
    /// The seed draws how many there are and what they do.
    #[must_use]
    pub fn new(_random: Random) -> Self {
        Self {}
    }

    /// Called once at the start.
    pub fn start(&mut self, _door: &mut impl Door) {}

    /// The time of [`Door::wake_after`] is over.
    pub fn wake(&mut self, _number: u64, _door: &mut impl Door) {}

    /// A call is answered.
    pub fn answered(&mut self, _call: CallId, _reply: Reply, _door: &mut impl Door) {}

    /// A stream has a message.
    pub fn watched(&mut self, _stream: StreamId, _message: WatchMessage, _door: &mut impl Door) {}

    /// A stream has ended, for the member's process has.
    pub fn stream_ended(&mut self, _stream: StreamId, _door: &mut impl Door) {}

    /// The storm is over: all go on calmly, stalled ones read again, and each goes on until it has
    /// been answered at least once more.
    pub fn calm(&mut self, _door: &mut impl Door) {}

    /// Since [`Clients::calm`] every client has had a success of each kind that it asks for, and
    /// nothing is open: the run may end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        true
    }

    /// Judges the whole history.
    ///
    /// # Panics
    /// When a check fails; the message says which, and shows the part of the history.
    pub fn judge(self) {}
}
