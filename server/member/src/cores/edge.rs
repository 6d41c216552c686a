//! The edge core: when clients come in, what goes before what in its turns, and how it ends.
//!
//! ```text
//! Replaying --ready--> Serving --drained--> Closing --state core done--> over
//! ```
//!
//! Probes are answered from the start, at addresses of their own: that clients are not let in yet
//! is what they ask about. The first edge has the duties of the whole member. It also publishes the
//! member's attributes through the log: when they are applied, everything that was in the log
//! before is applied too, and all edges let clients in. A cluster without a quorum cannot do that:
//! its members let clients in after a while all the same, as etcd's do, so that they can be asked
//! how it stands.

use std::time::Duration;

use crate::apply::command::CommandId;
use crate::apply::local::Heard;
use crate::apply::outcome::Outcome;
use crate::error::Error;
use crate::limits;

/// From the state core to an edge, in this order.
#[derive(Debug)]
pub enum Notification {
    /// The outcome of one of that edge's commands.
    Outcome(CommandId, Outcome),
    /// There is a new View, and this edge follows them.
    View,
    /// Before leases expire: pass on the keepalives that have come so far, then say so by this
    /// number.
    Hearing(u64),
    /// Linearizable reads up to this ticket may be served, from the newest View.
    Read(u64),
    /// Linearizable reads up to this ticket are refused.
    ReadFailed(u64, Error),
    /// Requests submitted up to this number that are not answered will not be.
    Lost(u64, Error),
}

/// Events of an edge.
#[derive(Debug)]
pub enum EdgeEvent {
    /// The next message of the state core.
    Notifications(Vec<Notification>),
    /// This member's attributes are applied.
    Published,
    /// The time of [`EdgeEffects::wait_for_cluster`] is over.
    Overdue,
    /// Clients may come, to every edge.
    Ready,
    /// The time of [`EdgeEffects::wait`] is over, for the hearing of this number.
    Waited(u64),
    /// The member stops, and every call has ended or had its time.
    Drained,
    /// The state core has applied everything; nothing more comes from it.
    StateClosed,
}

/// Effects of an edge, in this order. Each call only begins what takes time.
pub trait EdgeEffects {
    /// Answer those who ask for health and metrics, at addresses that are for nothing else.
    fn open_metrics(&mut self);
    /// Propose this member's attributes; [`EdgeEvent::Published`] follows.
    fn publish(&mut self);
    /// [`EdgeEvent::Overdue`] follows after `CLUSTER_READY_TIMEOUT`.
    fn wait_for_cluster(&mut self);
    /// Whether this member has the only vote, and needs nobody.
    fn is_sole_voter(&self) -> bool;
    /// Let every edge know that clients may come; [`EdgeEvent::Ready`] follows on each.
    fn set_ready(&mut self);
    /// Begin the duties of an edge, and with them those of the member.
    fn begin_duties(&mut self, of_member: bool);
    /// Accept clients until the member is asked to stop; [`EdgeEvent::Drained`] follows.
    fn serve(&mut self);
    /// End the duties.
    fn end_duties(&mut self);
    /// Refuse proposals, answer callers that still wait, and close the mailbox to the log core
    /// behind the last batch.
    fn close_proposals(&mut self);
    /// Hand an outcome to its caller.
    fn answer(&mut self, id: CommandId, outcome: Outcome);
    /// Linearizable reads up to this ticket may be served from the newest View, or are refused.
    fn end_reads(&mut self, ticket: u64, result: Result<(), Error>);
    /// Commands submitted up to this number that have no outcome will not get one: tell their
    /// callers why.
    fn lost(&mut self, number: u64, why: Error);
    /// Take a step of the watch hub towards the newest View.
    fn step_watches(&mut self);
    /// [`EdgeEvent::Waited`] follows after this time.
    fn wait(&mut self, hearing: u64, time: Duration);
    /// Mark what clients have sent so far.
    fn mark_arrivals(&mut self) -> u64;
    /// Whether everything is read that had come at this mark.
    fn is_read_up_to(&self, mark: u64) -> bool;
    /// Whether a keepalive that was read may not have been submitted.
    fn holds_keepalives_back(&self) -> bool;
    /// A lease may expire while something that had come is not read.
    fn gave_up_reading(&mut self);
    /// Say to the state core that keepalives were passed on.
    fn heard(&mut self, heard: Heard);
}

/// How far an edge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EdgePhase {
    /// The log is being applied.
    Replaying,
    Serving,
    /// The log core and the state core finish what was proposed.
    Closing,
    Over,
}

/// One question of the state core whether keepalives were passed on.
#[derive(Debug)]
struct EdgeHearing {
    question: u64,
    /// Waits that are over.
    waits: usize,
    /// Set once the sockets were asked what has come.
    mark: Option<u64>,
}

/// Edge view.
#[derive(Debug)]
pub struct EdgeCore {
    is_first: bool,
    phase: EdgePhase,
    hearings: Vec<EdgeHearing>,
}

impl EdgeCore {
    /// An edge of a member that was recovered; the first one has the member's duties.
    #[must_use]
    pub fn new(is_first: bool) -> Self {
        Self { is_first, phase: EdgePhase::Replaying, hearings: Vec::new() }
    }

    /// Begins.
    pub fn start(&mut self, effects: &mut impl EdgeEffects) {
        effects.open_metrics();
        if self.is_first {
            effects.publish();
            effects.wait_for_cluster();
        }
    }

    /// Everything is answered, applied and saved.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == EdgePhase::Over
    }

    /// Takes an event in.
    ///
    /// # Panics
    /// When an event comes that is not possible now.
    pub fn receive(&mut self, event: EdgeEvent, effects: &mut impl EdgeEffects) {
        match event {
            EdgeEvent::Notifications(notifications) => self.notified(notifications, effects),
            EdgeEvent::Published | EdgeEvent::Overdue if self.phase != EdgePhase::Replaying => {}
            EdgeEvent::Overdue if effects.is_sole_voter() => {}
            EdgeEvent::Published | EdgeEvent::Overdue => effects.set_ready(),
            EdgeEvent::Ready => {
                assert!(self.phase == EdgePhase::Replaying, "clients may come once");
                self.phase = EdgePhase::Serving;
                effects.begin_duties(self.is_first);
                effects.serve();
            }
            EdgeEvent::Waited(question) => self.waited(question, effects),
            EdgeEvent::Drained => {
                assert!(self.phase == EdgePhase::Serving, "an edge drains once");
                self.phase = EdgePhase::Closing;
                effects.close_proposals();
                effects.end_duties();
            }
            EdgeEvent::StateClosed => {
                assert!(self.phase == EdgePhase::Closing, "the state core ends behind the edges");
                self.phase = EdgePhase::Over;
            }
        }
    }

    /// Callers are answered before watchers are told: a client that waits for its write is not
    /// behind those who watch.
    fn notified(&mut self, notifications: Vec<Notification>, effects: &mut impl EdgeEffects) {
        for notification in notifications {
            match notification {
                Notification::Outcome(id, outcome) => effects.answer(id, outcome),
                Notification::Hearing(question) => {
                    self.hearings.push(EdgeHearing { question, waits: 0, mark: None });
                    effects.wait(question, limits::HEARING_INTERVAL);
                }
                Notification::Read(ticket) => effects.end_reads(ticket, Ok(())),
                Notification::ReadFailed(ticket, why) => effects.end_reads(ticket, Err(why)),
                Notification::Lost(number, why) => effects.lost(number, why),
                Notification::View => {}
            }
        }
        effects.step_watches();
    }

    /// Goes on with a hearing. The first wait ends after sockets were asked what has come, the
    /// second after some of that was read: by then it is known which connections have more. They
    /// are waited for, and so are keepalive streams that may have no more on their way, but not for
    /// ever. Keepalives passed on by then reach the state core before the answer.
    fn waited(&mut self, question: u64, effects: &mut impl EdgeEffects) {
        let Some(at) = self.hearings.iter().position(|hearing| hearing.question == question) else { return };
        let hearing = &mut self.hearings[at];
        hearing.waits += 1;
        let Some(waits) = hearing.waits.checked_sub(2) else {
            return effects.wait(question, limits::HEARING_INTERVAL);
        };
        let mark = *hearing.mark.get_or_insert_with(|| effects.mark_arrivals());
        let is_held_back = effects.holds_keepalives_back();
        let is_read = effects.is_read_up_to(mark);
        let waits_for_streams = is_held_back && waits < limits::HEARING_WAITS_MAX;
        if (waits_for_streams || !is_read) && waits < limits::HEARING_READS_MAX {
            return effects.wait(question, limits::HEARING_INTERVAL);
        }
        if !is_read {
            effects.gave_up_reading();
        }
        self.hearings.swap_remove(at);
        effects.heard(Heard { question, is_all: !is_held_back });
    }
}
