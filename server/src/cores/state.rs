//! The state core's loop: apply, publish, checkpoint. The only writer of the engine.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use revd_engine::mvcc::{CheckpointKind, Written};
use serde_json::json;

use crate::apply::command::{CommandId, Kind};
use crate::apply::lessor::LeaseCounts;
use crate::apply::outcome::{Effect, Outcome};
use crate::apply::{DurableIndex, FatalError, Machine, Work};
use crate::clock::Ticker;
use crate::cores::{News, NewsItem};
use crate::limits;
use crate::memory;
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::observe::turns::Loop;
use crate::raft::status::NodeStatus;
use crate::read::view_slot::ViewSlot;
use crate::reserve::Reserve;
use crate::xcore::inbox::Inbox;
use crate::xcore::mailbox::{ReceiverSeed, Sender, SenderSeed};

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
    /// There are more keys to forget revisions of.
    Forget,
    /// The log core is done: nothing more will be committed.
    LogClosed,
}

struct StateCore {
    machine: Machine,
    inbox: Rc<Inbox<Event>>,
    edges: Vec<Rc<Inbox<NewsItem>>>,
    durable: Sender<DurableIndex>,
    views: Arc<ViewSlot>,
    status: Arc<NodeStatus>,
    counters: Arc<Counters>,
    reserve: Arc<Reserve>,
    member: u64,
    clock: Ticker,
    /// Work that waits, while too much is unsaved, for the checkpoint.
    backlog: VecDeque<Work>,
    effects: Vec<Effect>,
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
        machine: seed.machine,
        inbox,
        edges,
        durable: seed.to_log.open().await,
        views: seed.views,
        status: seed.status,
        counters: seed.counters,
        reserve: seed.reserve,
        member: seed.member,
        clock: Ticker::new(),
        backlog: VecDeque::new(),
        effects: Vec::new(),
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
            let events = self.inbox.take().await.expect("nobody closes the state core's own inbox");
            let began = self.clock.microseconds();
            let mut due = false;
            for event in events {
                match event {
                    Event::Work(work) => self.backlog.extend(work),
                    Event::CheckpointDue => due = true,
                    Event::Written(result) => self.checkpoint_written(*result?),
                    Event::Forget => {}
                    Event::LogClosed => self.stopping = true,
                }
            }
            self.apply()?;
            self.publish();
            if self.machine.store_mut().forget_compacted(limits::FORGET_KEYS_PER_TURN) {
                self.inbox.push(Event::Forget);
            }
            if due && self.phase == Phase::Waiting {
                self.phase = Phase::Idle;
            }
            self.schedule_checkpoint(due);
            let took = self.clock.microseconds() - began;
            self.counters.state_turns.record(Loop::State, took, || json!({"backlog": self.backlog.len()}));
            if self.stopping && self.has_no_room {
                log::warn("stopping without a last checkpoint: the disk is full", json!({}));
                return Ok(()); // the log has everything
            }
            if self.stopping && self.backlog.is_empty() && self.phase == Phase::Idle {
                return Ok(());
            }
        }
    }

    fn apply(&mut self) -> Result<(), FatalError> {
        let now = self.clock.milliseconds();
        let leads = self.status.leader.load() == self.member;
        let is_new = self.machine.set_leadership(leads.then(|| self.status.term.load()), now);
        let leases = self.machine.leases().len();
        if is_new && leases > 0 {
            log::info("leases have their time again", json!({"leads": leads, "leases": leases}));
        }
        while self.machine.store().unsaved_bytes() < limits::UNSAVED_BYTES_MAX
            && let Some(work) = self.backlog.pop_front()
        {
            match work {
                Work::Entry(entry) => self.machine.apply(&entry, now, &mut self.effects)?,
                Work::Local(command) if command.kind == Kind::Defragment => {
                    self.defragment_next.push(command.id)
                }
                Work::Local(command) => self.machine.order(&command, now, &mut self.effects),
            }
        }
        self.status.leases.store(self.machine.leases().len() as u64);
        self.count_leases();
        Ok(())
    }

    fn count_leases(&self) {
        let LeaseCounts { granted, renewed, revoked, expired } = self.machine.lease_counts();
        let counters = &self.counters.leases;
        counters.granted.set(granted);
        counters.renewed.set(renewed);
        counters.revoked.set(revoked);
        counters.expired.set(expired);
    }

    /// Makes what was applied visible, then answers: a reply never overtakes the View that holds its write.
    fn publish(&mut self) {
        let applied = self.machine.store().applied().index;
        let is_new = applied != self.status.applied.load();
        if is_new {
            self.views.store(self.machine.store_mut().view());
            self.status.applied.store(applied);
        }
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Reply(id, outcome) => answer(&self.edges, id, outcome),
                Effect::ReplyWhenCompacted(id, outcome) => self.compacting.push((id, outcome)),
            }
        }
        if is_new {
            for (edge, outbox) in self.edges.iter().enumerate() {
                // Whoever has any news looks at the View too.
                if outbox.is_empty() && self.views.is_followed(edge) {
                    outbox.push(NewsItem::View);
                }
            }
        }
    }

    /// Decides whether a checkpoint starts now, later, or not at all.
    fn schedule_checkpoint(&mut self, due: bool) {
        if self.phase == Phase::Writing {
            return; // its end comes back here
        }
        self.begin_defragmentation();
        let store = self.machine.store();
        let compacting = store.compaction_pending() || store.is_sweeping() || store.is_defragmenting();
        let work = store.has_unsaved() || compacting;
        let much = self.stopping || store.unsaved_bytes() >= limits::CHECKPOINT_BYTES_MAX;
        if (due && work) || (much && !self.has_no_room) {
            self.start_checkpoint();
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
    fn begin_defragmentation(&mut self) {
        if !self.defragment_next.is_empty()
            && self.defragmenting.is_empty()
            && self.machine.store_mut().defragment().is_ok()
        {
            self.defragmenting.append(&mut self.defragment_next);
        }
    }

    fn start_checkpoint(&mut self) {
        // Also the last one: reading the records that the saved index does not know is faster than saving it once more.
        let Some(checkpoint) = self.machine.store_mut().checkpoint(CheckpointKind::Auto) else {
            self.phase = Phase::Idle;
            return;
        };
        self.phase = Phase::Writing;
        let is_light = self.machine.store().unsaved_bytes() < limits::CHECKPOINT_BYTES_MAX / 8;
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

    fn checkpoint_written(&mut self, written: Written) {
        let durable = self.machine.store_mut().finish_checkpoint(written);
        self.phase = Phase::Idle;
        self.has_no_room = durable.no_space.is_some() && !self.reserve.give_up("a checkpoint");
        // Views made from now on read the new tree, so that the memory of the old tail can go.
        self.views.store(self.machine.store_mut().view());
        self.status.applied.store(self.machine.store().applied().index);
        if !durable.compaction_pending {
            for (id, outcome) in self.compacting.drain(..) {
                answer(&self.edges, id, outcome);
            }
        }
        if !durable.defragmenting {
            let revision = self.machine.store().revision();
            for id in self.defragmenting.drain(..) {
                answer(&self.edges, id, Outcome { revision, result: Ok(Bytes::new()) });
            }
        }
        // Never wait for the log core: a report that finds no room is made good by the next one.
        let _ = self.durable.try_send(DurableIndex::of(&durable));
    }
}

fn answer(edges: &[Rc<Inbox<NewsItem>>], id: CommandId, outcome: Outcome) {
    // An id of this boot names one of our edges; `Machine` drops those of earlier boots.
    if let Some(edge) = edges.get(usize::from(id.edge())) {
        edge.push(NewsItem::Outcome(id, outcome));
    }
}
