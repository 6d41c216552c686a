//! The state core's loop: apply, publish, checkpoint. The only writer of the engine.
//!
//! What is applied waits in the backlog and is taken from it for a millisecond at a time; after that others of this core have
//! their turn. A command that visits very many keys is carried out on a helper thread, which the whole machine is handed to:
//! what comes after it in the log has to wait, but keepalives are answered meanwhile by the [`Lessor`], which stays here.
//! Orders about leases never wait for the backlog: an answer that somebody has seen came from what was applied before, so
//! that an order that comes after it sees it too.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use revd_engine::mvcc::{CheckpointKind, Written};
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::lease_lists::Listed;
use revd_member::apply::lease_reports::{LeaseCounts, LeaseList};
use revd_member::apply::lessor::Lessor;
use revd_member::apply::outcome::{Effect, Outcome, Rest};
use revd_member::apply::{CommittedEntry, DurableIndex, FatalError, Machine, Next, Work};
use revd_member::raft::status::NodeStatus;
use revd_member::read::view_slot::ViewSlot;
use serde_json::json;

use crate::clock::Ticker;
use crate::cores::{News, NewsItem};
use crate::disk::reserve::Reserve;
use crate::limits;
use crate::memory;
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::observe::turns::Loop;
use crate::xcore::inbox::Inbox;
use crate::xcore::latch::Latch;
use crate::xcore::mailbox::{ReceiverSeed, Sender, SenderSeed};
use crate::xcore::turn::give_way;

/// What the state core starts with.
pub struct StateSeed {
    /// The recovered state machine.
    pub machine: Machine,
    /// Committed entries, in log order, and orders to this member alone.
    pub from_log: ReceiverSeed<Vec<Work>>,
    /// The index up to which state is durable.
    pub to_log: SenderSeed<DurableIndex>,
    /// One mailbox per edge, by edge number.
    pub to_edges: Vec<SenderSeed<News>>,
    /// Where each new View is published.
    pub views: Arc<ViewSlot>,
    /// Where the applied index is published.
    pub status: Arc<NodeStatus>,
    /// Where it counts.
    pub counters: Arc<Counters>,
    /// Given up when a checkpoint finds no room.
    pub reserve: Arc<Reserve>,
    /// This member's id.
    pub member: u64,
    /// Set once clients may come.
    pub ready: Latch,
}

/// Why the state core cannot go on; the process must end.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// An entry could not be applied: state would differ from the log.
    #[error(transparent)]
    Apply(#[from] FatalError),
    /// The tree file cannot be written.
    #[error(transparent)]
    Engine(#[from] revd_engine::Error),
}

/// Everything this core reacts to.
enum Event {
    Work(Vec<Work>),
    /// Some time has passed since state last changed.
    CheckpointDue,
    Written(revd_engine::Result<Box<Written>>),
    /// A long command is done.
    Back(Back),
    /// All leases, in their order.
    Listed(Outcome),
    /// The log core is done: nothing more will be committed.
    LogClosed,
}

/// The machine, with what a long command did.
struct Back {
    machine: Box<Machine>,
    effects: Vec<Effect>,
    result: Result<(), FatalError>,
}

struct StateCore {
    /// None while a long command is carried out elsewhere; then the lessor is here.
    machine: Option<Box<Machine>>,
    lessor: Option<Lessor>,
    inbox: Rc<Inbox<Event>>,
    edges: Vec<Rc<Inbox<NewsItem>>>,
    durable: Sender<DurableIndex>,
    views: Arc<ViewSlot>,
    status: Arc<NodeStatus>,
    counters: Arc<Counters>,
    reserve: Arc<Reserve>,
    member: u64,
    ready: Latch,
    clock: Ticker,
    /// Entries that wait for their turn and, while too much is unsaved, for the checkpoint.
    backlog: VecDeque<CommittedEntry>,
    /// Orders about leases, and those of them that wait for the machine to come back.
    orders: VecDeque<Command>,
    deferred: VecDeque<Command>,
    /// Who will get the list of all leases that is being put into order.
    listing: Vec<CommandId>,
    effects: Vec<Effect>,
    /// Something was applied that is not published.
    has_news: bool,
    /// The revision that is published.
    revision: i64,
    /// There are more keys to forget revisions of.
    is_forgetting: bool,
    /// A checkpoint that was written while the machine was away, and whether the next one is due.
    written: Option<Box<Written>>,
    is_due: bool,
    /// Answers that wait for the space a compaction frees.
    compacting: Vec<(CommandId, Outcome)>,
    /// Who waits for a defragmentation that has not begun yet, and for the one under way.
    defragment_next: Vec<CommandId>,
    defragmenting: Vec<CommandId>,
    phase: Phase,
    /// The last checkpoint found no room: the next one waits a while.
    has_no_room: bool,
    stopping: bool,
}

/// Where the checkpoint stands.
///
/// ```text
/// Idle --change--> Waiting --100 ms, or enough bytes, or stop--> Writing --done--> Idle
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting,
    Writing,
}

/// Runs until the log core is done and everything it committed is applied and saved.
///
/// # Errors
/// [`Fatal`]
pub async fn run(seed: StateSeed) -> Result<(), Fatal> {
    let inbox = Inbox::new();
    let receiving = glommio::spawn_local(receive_work(seed.from_log, Rc::clone(&inbox)));
    let mut edges = Vec::new();
    let mut sending = Vec::new();
    for to_edge in seed.to_edges {
        let outbox = Inbox::new();
        edges.push(Rc::clone(&outbox));
        sending.push(glommio::spawn_local(send_news(outbox, to_edge)));
    }
    let mut core = StateCore {
        revision: seed.machine.store().revision(),
        machine: Some(Box::new(seed.machine)),
        lessor: None,
        inbox,
        edges,
        durable: seed.to_log.open().await,
        views: seed.views,
        status: seed.status,
        counters: seed.counters,
        reserve: seed.reserve,
        member: seed.member,
        ready: seed.ready,
        clock: Ticker::new(),
        backlog: VecDeque::new(),
        orders: VecDeque::new(),
        deferred: VecDeque::new(),
        listing: Vec::new(),
        effects: Vec::new(),
        has_news: false,
        is_forgetting: false,
        written: None,
        is_due: false,
        compacting: Vec::new(),
        defragment_next: Vec::new(),
        defragmenting: Vec::new(),
        phase: Phase::Idle,
        has_no_room: false,
        stopping: false,
    };
    core.run().await?;
    receiving.await;
    core.edges.iter().for_each(|edge| edge.close());
    for task in sending {
        task.await;
    }
    Ok(())
}

async fn receive_work(from_log: ReceiverSeed<Vec<Work>>, inbox: Rc<Inbox<Event>>) {
    let from_log = from_log.open().await;
    while let Some(work) = from_log.receive().await {
        inbox.push(Event::Work(work));
    }
    inbox.push(Event::LogClosed);
}

async fn send_news(outbox: Rc<Inbox<NewsItem>>, to_edge: SenderSeed<News>) {
    let to_edge = to_edge.open().await;
    while let Some(news) = outbox.take().await {
        if !to_edge.send(Vec::from(news)).await {
            break; // that edge is gone, and its callers with it
        }
    }
}

impl StateCore {
    async fn run(&mut self) -> Result<(), Fatal> {
        loop {
            let events = if self.can_go_on() {
                give_way().await;
                self.inbox.take_now()
            } else {
                self.inbox.take().await.expect("nobody closes the state core's own inbox")
            };
            let began = self.clock.microseconds();
            for event in events {
                self.receive(event)?;
            }
            let now = began / 1_000;
            if let Some(mut machine) = self.machine.take() {
                match self.turn(&mut machine, now)? {
                    // A new leader comes to know its leases first: orders about them would wait for the command as well.
                    Next::LongCommand if !machine.lessor().is_loading() => self.send_away(machine, now),
                    Next::LongCommand | Next::Command | Next::Nothing => self.machine = Some(machine),
                }
            } else {
                self.answer_without_machine(now);
            }
            self.list_leases();
            let took = self.clock.microseconds() - began;
            self.counters.state_turns.record(Loop::State, took, || json!({"backlog": self.backlog.len()}));
            if self.is_over() {
                return Ok(());
            }
        }
    }

    /// There is something to do whatever comes.
    fn can_go_on(&self) -> bool {
        let is_listing = |lessor: &Lessor| self.listing.is_empty() && lessor.is_listing();
        let Some(machine) = &self.machine else { return self.lessor.as_ref().is_some_and(is_listing) };
        is_listing(machine.lessor())
            || machine.lessor().is_changing()
            || !self.orders.is_empty()
            || self.is_forgetting
            || machine.is_within_entry()
            || machine.is_listing_keys()
            || (!self.backlog.is_empty() && has_room(machine))
    }

    fn receive(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Work(work) => {
                for work in work {
                    match work {
                        Work::Entry(entry) => self.backlog.push_back(entry),
                        Work::Local(command) if command.kind == Kind::Defragment => {
                            self.defragment_next.push(command.id);
                        }
                        Work::Local(command) => self.orders.push_back(command),
                    }
                }
            }
            Event::CheckpointDue => self.is_due = true,
            Event::Written(result) => self.written = Some(result?),
            Event::Back(Back { mut machine, effects, result }) => {
                result?;
                self.effects.extend(effects);
                if let Some(lessor) = self.lessor.take() {
                    machine.return_lessor(lessor, &mut self.effects);
                }
                self.deferred.append(&mut self.orders);
                std::mem::swap(&mut self.deferred, &mut self.orders);
                self.has_news = true;
                self.machine = Some(machine);
            }
            Event::Listed(outcome) => self.listed(&outcome),
            Event::LogClosed => self.stopping = true,
        }
        Ok(())
    }

    /// Goes on with the list of all leases, if somebody wants one; a long one is put into order on a helper thread.
    fn list_leases(&mut self) {
        if !self.listing.is_empty() {
            return;
        }
        let here = self.machine.as_mut().map(|machine| machine.lessor_mut());
        let Some(lessor) = here.or(self.lessor.as_mut()) else { return };
        let Some(Listed { askers, revision, result }) = lessor.list(self.revision) else { return };
        self.listing = askers;
        match result {
            Ok(list) if list.is_long() => {
                let inbox = Rc::clone(&self.inbox);
                glommio::spawn_local(async move {
                    let body = glommio::executor().spawn_blocking(move || list.encode()).await;
                    inbox.push(Event::Listed(Outcome { revision, result: Ok(body), rest: Rest::NONE }));
                })
                .detach();
            }
            list => self.listed(&Outcome { revision, result: list.map(LeaseList::encode), rest: Rest::NONE }),
        }
    }

    fn listed(&mut self, outcome: &Outcome) {
        for id in self.listing.drain(..) {
            answer(&self.edges, id, outcome.clone());
        }
    }

    /// What this core does before others of it go on; what comes next in the log.
    fn turn(&mut self, machine: &mut Machine, now: u64) -> Result<Next, Fatal> {
        if let Some(written) = self.written.take() {
            self.checkpoint_written(machine, *written);
        }
        self.lead(machine, now);
        self.carry_out_orders(machine, now);
        machine.list_keys(now, &mut self.effects);
        let next = self.apply(machine, now)?;
        self.status.leases.store(machine.leases().len() as u64);
        self.count_leases(machine);
        self.publish(machine);
        self.is_forgetting = machine.store_mut().forget_compacted(limits::FORGET_KEYS_PER_TURN);
        // The applied index that is saved is that of a whole entry, and so must be what is saved with it.
        let may_save = !machine.is_within_entry();
        let due = may_save && std::mem::take(&mut self.is_due);
        if due && self.phase == Phase::Waiting {
            self.phase = Phase::Idle;
        }
        if may_save {
            self.schedule_checkpoint(machine, due);
        }
        Ok(next)
    }

    fn is_over(&self) -> bool {
        if self.machine.is_none() {
            return false;
        }
        if self.stopping && self.has_no_room {
            log::warn("stopping without a last checkpoint: the disk is full", json!({}));
            return true; // the log has everything
        }
        let is_done = self.machine.as_ref().is_some_and(|machine| !machine.is_within_entry());
        self.stopping && is_done && self.backlog.is_empty() && self.phase == Phase::Idle
    }

    /// The term in which this member leads.
    fn leads_in(&self) -> Option<u64> {
        (self.status.leader.load() == self.member).then(|| self.status.term.load())
    }

    fn lead(&mut self, machine: &mut Machine, now: u64) {
        if self.ready.is_set() {
            machine.serve(self.edges.len());
        }
        let term = self.leads_in();
        let is_new = machine.set_leadership(term, now, &mut self.effects);
        let leases = machine.leases().len();
        if is_new && leases > 0 {
            log::info("leases have their time again", json!({"leads": term.is_some(), "leases": leases}));
        }
    }

    /// Orders about leases, in their order, for a while: some list keys. Those that are left come next. They wait for a new leader
    /// to know all leases.
    fn carry_out_orders(&mut self, machine: &mut Machine, now: u64) {
        if machine.lessor().is_loading() {
            return;
        }
        let began = self.clock.microseconds();
        for step in 1..=limits::ORDERS_PER_TURN {
            let Some(command) = self.orders.pop_front() else { return };
            machine.order(&command, now, &mut self.effects);
            if step.is_multiple_of(4) && self.clock.microseconds() >= began + limits::APPLY_MICROSECONDS {
                return;
            }
        }
    }

    /// While the machine is away, those orders are carried out that only need to know deadlines.
    fn answer_without_machine(&mut self, now: u64) {
        let term = self.leads_in();
        let Some(lessor) = self.lessor.as_mut() else { return };
        let mut effects = Vec::new();
        for command in self.orders.drain(..) {
            if Lessor::answers(command.kind) && lessor.term() == term {
                lessor.order(&command, self.revision, now, &mut effects);
            } else {
                self.deferred.push_back(command);
            }
        }
        self.carry_out(effects);
    }

    /// Applies for a while.
    fn apply(&mut self, machine: &mut Machine, now: u64) -> Result<Next, FatalError> {
        let began = self.clock.microseconds();
        for step in 1_u32.. {
            match machine.next() {
                Next::LongCommand => return Ok(Next::LongCommand),
                Next::Command => machine.step(now, &mut self.effects)?,
                Next::Nothing => {
                    if !has_room(machine) || self.has_to_save(machine) {
                        break;
                    }
                    let Some(entry) = self.backlog.pop_front() else { break };
                    machine.begin(&entry)?;
                }
            }
            self.has_news = true;
            if step.is_multiple_of(4) && self.clock.microseconds() >= began + limits::APPLY_MICROSECONDS {
                break;
            }
        }
        Ok(Next::Nothing)
    }

    /// A checkpoint waits for the end of an entry.
    fn has_to_save(&self, machine: &Machine) -> bool {
        let much = !self.has_no_room && machine.store().unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        (self.is_due && self.phase == Phase::Waiting) || (much && self.phase != Phase::Writing)
    }

    /// Hands the machine to a helper thread, for one command.
    fn send_away(&mut self, mut machine: Box<Machine>, now: u64) {
        self.lessor = Some(machine.lend_lessor());
        let inbox = Rc::clone(&self.inbox);
        glommio::spawn_local(async move {
            let step = move || {
                let mut effects = Vec::new();
                let result = machine.step(now, &mut effects);
                Back { machine, effects, result }
            };
            inbox.push(Event::Back(glommio::executor().spawn_blocking(step).await));
        })
        .detach();
    }

    fn count_leases(&self, machine: &Machine) {
        let LeaseCounts { granted, renewed, revoked, expired } = machine.lease_counts();
        let counters = &self.counters.leases;
        counters.granted.set(granted);
        counters.renewed.set(renewed);
        counters.revoked.set(revoked);
        counters.expired.set(expired);
    }

    /// Makes what was applied visible, then answers: a reply never overtakes the View that holds its write.
    fn publish(&mut self, machine: &mut Machine) {
        let is_new = std::mem::take(&mut self.has_news);
        if is_new {
            self.show(machine);
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.carry_out(effects.drain(..));
        self.effects = effects;
        if is_new {
            for (edge, outbox) in self.edges.iter().enumerate() {
                // Whoever has any news looks at the View too.
                if outbox.is_empty() && self.views.is_followed(edge) {
                    outbox.push(NewsItem::View);
                }
            }
        }
    }

    fn show(&mut self, machine: &mut Machine) {
        self.revision = machine.store().revision();
        self.views.store(machine.store_mut().view());
        self.status.applied.store(machine.store().applied().index);
    }

    fn carry_out(&mut self, effects: impl IntoIterator<Item = Effect>) {
        for effect in effects {
            match effect {
                Effect::Reply(id, outcome) => answer(&self.edges, id, outcome),
                Effect::ReplyWhenCompacted(id, outcome) => self.compacting.push((id, outcome)),
                Effect::Hear(question) => {
                    self.edges.iter().for_each(|edge| edge.push(NewsItem::Hear(question)));
                }
            }
        }
    }

    /// Decides whether a checkpoint starts now, later, or not at all.
    fn schedule_checkpoint(&mut self, machine: &mut Machine, due: bool) {
        if self.phase == Phase::Writing {
            return; // its end comes back here
        }
        self.begin_defragmentation(machine);
        let store = machine.store();
        let compacting = store.compaction_pending() || store.is_sweeping() || store.is_defragmenting();
        let work = store.has_unsaved() || compacting;
        let much = self.stopping || store.unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        if (due && work) || (much && !self.has_no_room) {
            self.start_checkpoint(machine);
        } else if work && self.phase == Phase::Idle {
            self.phase = Phase::Waiting;
            let wait = match (self.has_no_room, compacting) {
                (true, _) => limits::NO_SPACE_INTERVAL,
                (false, true) => limits::COMPACT_INTERVAL,
                (false, false) => limits::CHECKPOINT_INTERVAL,
            };
            let inbox = Rc::clone(&self.inbox);
            glommio::spawn_local(async move {
                glommio::timer::sleep(wait).await;
                inbox.push(Event::CheckpointDue);
            })
            .detach();
        }
    }

    /// Begins the next one; everybody who waits by now is served by it.
    fn begin_defragmentation(&mut self, machine: &mut Machine) {
        if !self.defragment_next.is_empty()
            && self.defragmenting.is_empty()
            && machine.store_mut().defragment().is_ok()
        {
            self.defragmenting.append(&mut self.defragment_next);
        }
    }

    fn start_checkpoint(&mut self, machine: &mut Machine) {
        // Also the last one: reading the records that the saved index does not know is faster than saving it once more.
        let Some(checkpoint) = machine.store_mut().checkpoint(CheckpointKind::Auto) else {
            self.phase = Phase::Idle;
            return;
        };
        self.phase = Phase::Writing;
        let is_light = machine.store().unsaved_bytes() < limits::CHECKPOINT_BYTES_MAX / 8;
        let inbox = Rc::clone(&self.inbox);
        glommio::spawn_local(async move {
            // Plain blocking writes and syncs on a helper thread: this core goes on applying meanwhile.
            let write_now = move || {
                let written = checkpoint.write();
                if is_light {
                    memory::give_back(); // under load the next checkpoint needs it again
                }
                written
            };
            let written = glommio::executor().spawn_blocking(write_now).await;
            inbox.push(Event::Written(written.map(Box::new)));
        })
        .detach();
    }

    fn checkpoint_written(&mut self, machine: &mut Machine, written: Written) {
        let durable = machine.store_mut().finish_checkpoint(written);
        self.phase = Phase::Idle;
        self.has_no_room = durable.no_space.is_some() && !self.reserve.give_up("a checkpoint");
        // Views made from now on read the new tree, so that the memory of the old tail can go.
        self.show(machine);
        if !durable.compaction_pending {
            for (id, outcome) in self.compacting.drain(..) {
                answer(&self.edges, id, outcome);
            }
        }
        if !durable.defragmenting {
            let revision = self.revision;
            for id in self.defragmenting.drain(..) {
                answer(&self.edges, id, Outcome { revision, result: Ok(Bytes::new()), rest: Rest::NONE });
            }
        }
        // Never wait for the log core: a report that finds no room is made good by the next one.
        let _ = self.durable.try_send(DurableIndex::of(&durable));
    }
}

/// The disk sets the pace of what is applied.
fn has_room(machine: &Machine) -> bool {
    machine.store().unsaved_bytes() < limits::UNSAVED_BYTES_MAX
}

fn answer(edges: &[Rc<Inbox<NewsItem>>], id: CommandId, outcome: Outcome) {
    // An id of this boot names one of our edges; `Machine` drops those of earlier boots.
    if let Some(edge) = edges.get(usize::from(id.edge())) {
        edge.push(NewsItem::Outcome(id, outcome));
    }
}
