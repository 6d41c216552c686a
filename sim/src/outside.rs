//! The surroundings of every process: time, the network, the truth about the run, marks.

use revd_engine::random::Random;

use crate::calls::{CallId, Reply, StreamId, WatchMessage};
use crate::disk::Ticket;
use crate::marks::Marks;
use crate::network::{Arrival, ConnectionId, Network, Side};
use crate::time::{Agenda, Micros};
use crate::truth::Truth;

/// A part of a process that takes turns of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The log core.
    Log,
    /// The state core.
    State,
    /// The edge.
    Edge,
}

/// A time of a process that is over, by its own clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// A step of raft's clock.
    Tick,
    /// Connections show that they live, and those that are silent end.
    Pulse,
    /// Calls that have waited too long are answered.
    Sweep,
    /// Expired leases are looked for.
    Leases,
    /// A step of the clock of progress notifications.
    Progress,
    /// Another member is dialed; the number of the attempt.
    Dial(u64, u64),
    /// The first words of a connection are late.
    Late(ConnectionId),
    /// The checkpoint that the state core wants to be reminded of.
    Remind,
    /// A frame that found no room is tried again.
    Room,
    /// Clients are let in without a cluster.
    Overdue,
    /// The member's name is published once more.
    Publish,
    /// The time of an edge's hearing.
    Waited(u64),
    /// A member that could not be sent a state may be tried again.
    Resend(u64),
}

/// The events of a run.
#[derive(Debug)]
pub enum Event {
    /// A part of a process, by member and start, takes a turn.
    Turn(usize, u64, Part),
    /// A time of a process is over.
    Timer(usize, u64, Timer),
    /// A call of a process on its disk is over.
    Disk(usize, u64, Ticket),
    /// A helper of a process is done with its job.
    Job(usize, u64, Ticket),
    /// Something arrives at an end of a connection.
    Arrival(Arrival),
    /// Clients wanted to be woken.
    Wake(u64),
    /// A call is answered.
    Answered(CallId, Reply),
    /// A watch stream has a message.
    Watched(StreamId, WatchMessage),
    /// A watch stream has ended.
    StreamEnded(StreamId),
    /// A member starts, if it is down.
    Start(usize),
    /// A process that stands still goes on.
    GoOn(usize, u64),
    /// The next fault of the storm.
    Fault,
    /// A fault is over, by its number.
    Over(u64),
    /// The operator looks after the member that is to be replaced.
    Replace,
}

impl From<Arrival> for Event {
    fn from(arrival: Arrival) -> Self {
        Self::Arrival(arrival)
    }
}

/// The surroundings of every process.
pub struct Outside {
    /// The events to come.
    pub agenda: Agenda<Event>,
    /// The links between members.
    pub network: Network,
    /// The seed's numbers.
    pub random: Random,
    /// The entries and states that members have agreed on.
    pub truth: Truth,
    /// Interesting places.
    pub marks: Marks,
    /// One of so many batches of messages finds no room in its outbox; 0: none.
    pub full_outbox_one_in: u64,
}

impl Outside {
    /// The time.
    #[must_use]
    pub fn now(&self) -> Micros {
        self.agenda.now()
    }

    /// Sends bytes on a connection.
    pub fn send(&mut self, connection: ConnectionId, from: Side, bytes: Vec<u8>) {
        self.network.send(connection, from, bytes, &mut self.random, &mut self.agenda);
    }

    /// Ends a connection.
    pub fn close(&mut self, connection: ConnectionId, from: Side) {
        self.network.close(connection, from, &mut self.random, &mut self.agenda);
    }

    /// Something reaches the clients later.
    pub fn reply(&mut self, after: Micros, event: Event) {
        self.agenda.plan(after, event);
    }

    /// An outbox has no room now.
    pub fn drops_messages(&mut self) -> bool {
        self.full_outbox_one_in > 0 && self.random.one_in(self.full_outbox_one_in)
    }
}
