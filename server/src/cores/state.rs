//! The state core's loop: carries out what `revd_member::cores::state` decides, on mailboxes,
//! helper threads and the slot of the newest View.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use revd_engine::mvcc::{Checkpoint, SavedState, View, WrittenCheckpoint};
use revd_member::apply::command::CommandId;
use revd_member::apply::lease_reports::LeaseCounts;
use revd_member::apply::outcome::Outcome;
use revd_member::apply::received::ReplacedState;
use revd_member::apply::state_hashes::HashPoint;
use revd_member::apply::{DurableIndex, FatalError, Lost, Machine, Work};
use revd_member::auth::rules::TokenChange;
use revd_member::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use revd_member::cores::long::{LongCommand, LongList};
use revd_member::cores::state::StateCore;
use revd_member::error::Error;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use serde_json::json;

use crate::api::auth::tokens::Tokens;
use crate::clock::Ticker;
use crate::cores::{Notification, Notifications, StateReport, StateReports};
use crate::disk::received::ReceivedFiles;
use crate::disk::reserve::Reserve;
use crate::limits;
use crate::memory;
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::observe::turns::Loop;
use crate::queues::latch::Latch;
use crate::queues::mailbox::{ReceiverSeed, SenderSeed};
use crate::queues::queue::LocalQueue;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// The parts of the state core, before it runs.
pub struct StateSeed {
    /// The recovered state machine.
    pub machine: Machine,
    /// Checkpoints of little are put off so often.
    pub put_offs_max: u32,
    /// Committed entries, in log order, and local requests.
    pub from_log: ReceiverSeed<Vec<Work>>,
    /// Reports of this core.
    pub to_log: SenderSeed<StateReports>,
    /// One mailbox per edge, by edge number.
    pub to_edges: Vec<SenderSeed<Notifications>>,
    /// Where each new View is published.
    pub views: Arc<ViewSlot>,
    /// Where the applied index is published.
    pub status: Arc<MemberStatus>,
    /// Where it counts.
    pub counters: Arc<Counters>,
    /// The tokens that users have been given.
    pub tokens: Arc<Tokens>,
    /// Where a state that another member sends becomes the tree file.
    pub files: ReceivedFiles,
    /// Given up when a checkpoint finds no room.
    pub reserve: Arc<Reserve>,
    /// Set once clients may come.
    pub ready: Latch,
}

/// Why the state core cannot go on; the process must end.
#[derive(Debug, thiserror::Error)]
pub enum StateFailure {
    /// An entry could not be applied: state would differ from the log.
    #[error(transparent)]
    Apply(#[from] FatalError),
    /// A received state cannot become the tree file.
    #[error("making the state that another member has sent the tree file: {0}")]
    Install(std::io::Error),
    /// The tree file cannot be written.
    #[error(transparent)]
    Engine(#[from] revd_engine::Error),
}

/// An event of the core, or the end of a checkpoint.
enum StateInput {
    Core(StateEvent),
    Written(revd_engine::Result<Box<WrittenCheckpoint>>),
    Installed(std::io::Result<()>),
    Discarded,
    TimeToFree,
}

/// Carries out what the core decides.
struct StateDriver {
    events: Rc<LocalQueue<StateInput>>,
    edges: Vec<Rc<LocalQueue<Notification>>>,
    reports: Rc<LocalQueue<StateReport>>,
    files: ReceivedFiles,
    views: Arc<ViewSlot>,
    status: Arc<MemberStatus>,
    counters: Arc<Counters>,
    tokens: Arc<Tokens>,
    clock: Ticker,
}

/// Runs until the log core is done and everything it committed is applied and saved.
///
/// # Errors
/// [`StateFailure`]
pub async fn run(seed: StateSeed) -> Result<(), StateFailure> {
    let events = LocalQueue::new();
    let receiving = glommio::spawn_local(receive_work(seed.from_log, Rc::clone(&events)));
    let mut edges = Vec::new();
    let mut sending = Vec::new();
    for to_edge in seed.to_edges {
        let outbox = LocalQueue::new();
        edges.push(Rc::clone(&outbox));
        sending.push(glommio::spawn_local(send_all(outbox, to_edge)));
    }
    let reports = LocalQueue::new();
    sending.push(glommio::spawn_local(send_all(Rc::clone(&reports), seed.to_log)));
    let mut core = StateCore::new(seed.machine, edges.len());
    core.put_off_checkpoints(seed.put_offs_max);
    let mut driver = StateDriver {
        events,
        edges,
        reports,
        files: seed.files,
        views: seed.views,
        status: seed.status,
        counters: seed.counters,
        tokens: seed.tokens,
        clock: Ticker::new(),
    };
    let mut is_to_free = false;
    while !core.is_over(&mut driver) {
        if !is_to_free && core.machine().is_some_and(|machine| machine.store().may_have_unneeded()) {
            is_to_free = true;
            driver.push_after(limits::FREE_INTERVAL, StateInput::TimeToFree);
        }
        let events = if core.can_go_on() {
            give_way().await;
            driver.events.take_now()
        } else {
            driver.events.take().await.expect("the state core does not close its own queue")
        };
        let began = driver.clock.microseconds();
        for event in events {
            let event = match event {
                StateInput::Core(event) => event,
                StateInput::Written(written) => made_durable(written?, &seed.reserve),
                StateInput::Installed(renamed) => {
                    renamed.map_err(StateFailure::Install)?;
                    log::info("the received state is the tree file", json!({}));
                    StateEvent::Installed
                }
                StateInput::Discarded => continue,
                StateInput::TimeToFree => {
                    is_to_free = false;
                    StateEvent::ViewsMayHaveEnded
                }
            };
            core.receive(event, &mut driver)?;
        }
        core.turn(Standpoint { is_ready: seed.ready.is_set() }, &mut driver)?;
        let took = driver.clock.microseconds() - began;
        driver.counters.state_turns.record(Loop::State, took, || json!({"backlog": core.backlog()}));
    }
    receiving.await;
    driver.edges.iter().for_each(|edge| edge.close());
    driver.reports.close();
    for task in sending {
        task.await;
    }
    // The process ends, and the system takes its memory at once: to free a large index key by key
    // takes longer.
    std::mem::forget(core);
    Ok(())
}

/// A checkpoint that found no room makes some: the reserve is there for it.
fn made_durable(written: Box<WrittenCheckpoint>, reserve: &Reserve) -> StateEvent {
    let made_room = written.has_no_room() && reserve.give_up("a checkpoint");
    StateEvent::Written { written, made_room }
}

async fn receive_work(from_log: ReceiverSeed<Vec<Work>>, events: Rc<LocalQueue<StateInput>>) {
    let from_log = from_log.open().await;
    while let Some(work) = from_log.receive().await {
        events.push(StateInput::Core(StateEvent::Work(work)));
    }
    events.push(StateInput::Core(StateEvent::LogClosed));
}

/// One message a turn, of everything that gathered: the core itself never waits for another one.
async fn send_all<T: Send + 'static>(outbox: Rc<LocalQueue<T>>, to: SenderSeed<Vec<T>>) {
    let to = to.open().await;
    while let Some(news) = outbox.take().await {
        if !to.send(Vec::from(news)).await {
            break; // the other core is gone, and those that waited there
        }
    }
}

impl StateDriver {
    /// Does this on a helper thread; what comes of it is an event.
    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        event: impl FnOnce(T) -> StateInput + 'static,
    ) {
        let events = Rc::clone(&self.events);
        glommio::spawn_local(async move {
            let result = glommio::executor().spawn_blocking(work).await;
            events.push(event(result));
        })
        .detach();
    }

    /// This comes after some time.
    fn push_after(&self, time: Duration, input: StateInput) {
        let events = Rc::clone(&self.events);
        glommio::spawn_local(async move {
            sleep(time).await;
            events.push(input);
        })
        .detach();
    }
}

impl StateEffects for StateDriver {
    fn microseconds(&self) -> u64 {
        self.clock.microseconds()
    }

    fn last_index(&self) -> u64 {
        self.status.last_index.load() // published before the work of the same turn is sent
    }

    fn counted(&mut self, counts: LeaseCounts) {
        let LeaseCounts { granted, renewed, revoked, expired } = counts;
        let counters = &self.counters.leases;
        counters.granted.set(granted);
        counters.renewed.set(renewed);
        counters.revoked.set(revoked);
        counters.expired.set(expired);
    }

    fn publish(&mut self, view: View, applied: u64, leases: usize) {
        // Before the View: an edge that finds no leases does not ask for any.
        self.status.leases.store(leases as u64);
        self.views.store(view);
        self.status.applied.store(applied);
    }

    fn answer(&mut self, id: CommandId, outcome: Outcome) {
        // An id of this boot names one of our edges; `Machine` drops those of earlier boots.
        if let Some(edge) = self.edges.get(usize::from(id.edge())) {
            edge.push(Notification::Outcome(id, outcome));
        }
    }

    fn answer_member(&mut self, member: u64, id: CommandId, outcome: Outcome) {
        self.reports.push(StateReport::Answer { to: member, id, outcome });
    }

    fn end_reads(&mut self, edge: u16, ticket: u64, result: Result<(), Error>) {
        let Some(edge) = self.edges.get(usize::from(edge)) else { return };
        edge.push(match result {
            Ok(()) => Notification::Read(ticket),
            Err(why) => Notification::ReadFailed(ticket, why),
        });
    }

    fn lost(&mut self, lost: Lost) {
        let Lost { numbers, why } = lost;
        for (edge, number) in self.edges.iter().zip(numbers) {
            edge.push(Notification::Lost(number, why.clone()));
        }
    }

    fn hear(&mut self, question: u64) {
        self.edges.iter().for_each(|edge| edge.push(Notification::Hearing(question)));
    }

    fn tell_of_view(&mut self) {
        for (edge, outbox) in self.edges.iter().enumerate() {
            // An edge that gets any news looks at the View too.
            if outbox.is_empty() && self.views.is_followed(edge) {
                outbox.push(Notification::View);
            }
        }
    }

    /// Plain blocking writes and syncs: this core goes on applying meanwhile.
    fn write(&mut self, checkpoint: Checkpoint, is_light: bool) {
        let write_now = move || {
            let written = checkpoint.with_pauses().write();
            if is_light {
                memory::give_back(); // under load the next checkpoint needs it again
            }
            written
        };
        self.spawn(write_now, |written| StateInput::Written(written.map(Box::new)));
    }

    fn remind(&mut self, after: Duration) {
        self.push_after(after, StateInput::Core(StateEvent::CheckpointDue));
    }

    fn durable(&mut self, index: DurableIndex) {
        self.reports.push(StateReport::Durable(index));
    }

    fn run(&mut self, command: LongCommand) {
        self.spawn(move || command.run(), |done| StateInput::Core(StateEvent::Finished(done)));
    }

    fn encode(&mut self, list: LongList) {
        self.spawn(move || list.encode(), |outcome| StateInput::Core(StateEvent::Listed(outcome)));
    }

    fn install(&mut self) {
        let files = self.files.clone();
        self.spawn(move || files.install(), StateInput::Installed);
    }

    fn discard(&mut self, state: ReplacedState) {
        self.spawn(
            move || {
                drop(state);
                memory::give_back();
            },
            |()| StateInput::Discarded,
        );
    }

    fn stream(&mut self, to: u64, term: u64, state: Option<SavedState>) {
        self.reports.push(StateReport::Saved { to, term, state });
    }

    fn hashed(&mut self, to: u64, point: HashPoint, corrupt: &[u64]) {
        self.reports.push(StateReport::Hash { to, point, corrupt: corrupt.to_vec() });
    }

    fn corrupt(&mut self, is_corrupt: bool) {
        self.status.is_corrupt.store(is_corrupt);
        let text = if is_corrupt {
            "the data of this member is not that of the others: clients are sent away until it is replaced"
        } else {
            "the alarm that this member is corrupt was cleared: clients are served again"
        };
        log::warn(text, json!({}));
    }

    fn rights_needed(&mut self, are_needed: bool) {
        self.status.needs_rights.store(are_needed);
    }

    fn tokens(&mut self, change: TokenChange) {
        self.tokens.change(change);
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::LeasesReset { leads, leases } => {
                let fields = json!({"leads": leads, "leases": leases});
                log::info("lease TTLs reset after a leadership change", fields);
            }
            Note::StoppedUnsaved => {
                log::warn("stopping without a last checkpoint: the disk is full", json!({}));
            }
            Note::FileStaysLong { why, file, in_use } => {
                let fields = json!({"why": why, "file_bytes": file, "in_use_bytes": in_use});
                log::warn("the file stays longer than it could be after a defragmentation", fields);
            }
        }
    }
}
