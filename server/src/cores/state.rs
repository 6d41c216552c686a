//! The state core's loop: apply, publish, checkpoint. The only writer of the engine.

use std::rc::Rc;
use std::sync::Arc;

use revd_engine::mvcc::{Checkpoint, CheckpointKind};

use crate::apply::outcome::Effect;
use crate::apply::{CommittedEntry, Machine};
use crate::apply::command::CommandId;
use crate::apply::outcome::Outcome;
use crate::cores::Outcomes;
use crate::limits;
use crate::raft::status::NodeStatus;
use crate::read::view_slot::ViewSlot;
use crate::xcore::inbox::Inbox;
use crate::xcore::mailbox::{ReceiverSeed, Sender, SenderSeed};

/// What the state core starts with.
pub struct StateSeed {
    /// The recovered state machine.
    pub machine: Machine,
    /// Committed entries, in log order.
    pub from_log: ReceiverSeed<Vec<CommittedEntry>>,
    /// The index up to which state is durable.
    pub to_log: SenderSeed<u64>,
    /// One mailbox per edge, by edge number.
    pub to_edges: Vec<SenderSeed<Outcomes>>,
    /// Where each new View is published.
    pub views: Arc<ViewSlot>,
    /// Where the applied index is published.
    pub status: Arc<NodeStatus>,
}

/// Everything this core reacts to.
enum Event {
    Committed(Vec<CommittedEntry>),
    /// Some time has passed since state last changed.
    CheckpointDue,
    Written(Box<Checkpoint>, revd_engine::Result<()>),
    /// The log core is done: nothing more will be committed.
    LogClosed,
}

struct StateCore {
    machine: Machine,
    inbox: Rc<Inbox<Event>>,
    edges: Vec<Rc<Inbox<(CommandId, Outcome)>>>,
    durable: Sender<u64>,
    views: Arc<ViewSlot>,
    status: Arc<NodeStatus>,
    effects: Vec<Effect>,
    /// Answers that wait for the space a compaction frees.
    compacting: Vec<(CommandId, Outcome)>,
    checkpoint: CheckpointPhase,
    stopping: bool,
}

/// ```text
/// Idle --change--> Waiting --100 ms, or enough bytes, or stop--> Writing --done--> Idle
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckpointPhase {
    Idle,
    Waiting,
    Writing,
}

/// Runs until the log core is done and everything it committed is applied and checkpointed.
///
/// # Errors
/// When the engine cannot go on; the process must end then.
pub async fn run(seed: StateSeed) -> Result<(), Fatal> {
    let inbox = Inbox::new();
    let receiving = glommio::spawn_local({
        let inbox = Rc::clone(&inbox);
        async move {
            let from_log = seed.from_log.open().await;
            while let Some(entries) = from_log.receive().await {
                inbox.push(Event::Committed(entries));
            }
            inbox.push(Event::LogClosed);
        }
    });
    let mut edges = Vec::new();
    let mut pumps = Vec::new();
    for to_edge in seed.to_edges {
        let outbox = Inbox::new();
        edges.push(Rc::clone(&outbox));
        pumps.push(glommio::spawn_local(async move {
            let to_edge = to_edge.open().await;
            while let Some(outcomes) = outbox.take().await {
                if !to_edge.send(Vec::from(outcomes)).await {
                    break; // that edge is gone, and its callers with it
                }
            }
        }));
    }
    let mut core = StateCore {
        machine: seed.machine,
        inbox,
        edges,
        durable: seed.to_log.open().await,
        views: seed.views,
        status: seed.status,
        effects: Vec::new(),
        compacting: Vec::new(),
        checkpoint: CheckpointPhase::Idle,
        stopping: false,
    };
    let result = core.run().await;
    receiving.await;
    for edge in &core.edges {
        edge.close();
    }
    for pump in pumps {
        pump.await;
    }
    result
}

/// Why the state core cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// An entry could not be applied: state would differ from the log.
    #[error(transparent)]
    Apply(#[from] crate::apply::FatalError),
    /// The tree file cannot be written or read.
    #[error(transparent)]
    Engine(#[from] revd_engine::Error),
}

impl StateCore {
    async fn run(&mut self) -> Result<(), Fatal> {
        loop {
            let events = self.inbox.take().await.expect("nobody closes the state core's own inbox");
            let mut due = false;
            for event in events {
                match event {
                    Event::Committed(entries) => self.apply(&entries)?,
                    Event::CheckpointDue => due = true,
                    Event::Written(checkpoint, result) => self.checkpoint_written(*checkpoint, result)?,
                    Event::LogClosed => self.stopping = true,
                }
            }
            self.publish();
            if due && self.checkpoint == CheckpointPhase::Waiting {
                self.checkpoint = CheckpointPhase::Idle;
            }
            self.schedule_checkpoint(due)?;
            if self.stopping && self.checkpoint == CheckpointPhase::Idle {
                return Ok(());
            }
        }
    }

    fn apply(&mut self, entries: &[CommittedEntry]) -> Result<(), Fatal> {
        for entry in entries {
            self.machine.apply(entry, &mut self.effects)?;
        }
        Ok(())
    }

    /// Makes what was applied visible, then answers: a reply never overtakes the View that holds its write.
    fn publish(&mut self) {
        let applied = self.machine.store().applied().index;
        if applied != self.status.applied.load() {
            self.views.store(self.machine.store_mut().view());
            self.status.applied.store(applied);
        }
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Reply(id, outcome) => answer(&self.edges, id, outcome),
                Effect::ReplyWhenCompacted(id, outcome) => self.compacting.push((id, outcome)),
            }
        }
    }

    /// Decides whether a checkpoint starts now, later, or not at all.
    fn schedule_checkpoint(&mut self, due: bool) -> Result<(), Fatal> {
        if self.checkpoint == CheckpointPhase::Writing {
            return Ok(()); // `checkpoint_written` comes back here
        }
        let unsaved = self.machine.store().unsaved_bytes();
        let work = unsaved > 0 || self.machine.store().compaction_pending();
        if self.stopping || unsaved >= limits::CHECKPOINT_BYTES_MAX || (due && work) {
            return self.start_checkpoint();
        }
        if work && self.checkpoint == CheckpointPhase::Idle {
            self.checkpoint = CheckpointPhase::Waiting;
            let inbox = Rc::clone(&self.inbox);
            glommio::spawn_local(async move {
                glommio::timer::sleep(limits::CHECKPOINT_INTERVAL).await;
                inbox.push(Event::CheckpointDue);
            })
            .detach();
        }
        Ok(())
    }

    fn start_checkpoint(&mut self) -> Result<(), Fatal> {
        let kind = if self.stopping { CheckpointKind::WithIndex } else { CheckpointKind::Auto };
        let Some(checkpoint) = self.machine.store_mut().checkpoint(kind)? else {
            self.checkpoint = CheckpointPhase::Idle;
            return Ok(());
        };
        self.checkpoint = CheckpointPhase::Writing;
        let inbox = Rc::clone(&self.inbox);
        glommio::spawn_local(async move {
            // Plain blocking writes and syncs on a helper thread: this core goes on applying meanwhile.
            let (checkpoint, result) = glommio::executor()
                .spawn_blocking(move || {
                    let result = checkpoint.write();
                    (checkpoint, result)
                })
                .await;
            inbox.push(Event::Written(Box::new(checkpoint), result));
        })
        .detach();
        Ok(())
    }

    fn checkpoint_written(
        &mut self,
        checkpoint: Checkpoint,
        result: revd_engine::Result<()>,
    ) -> Result<(), Fatal> {
        result?;
        let durable = self.machine.store_mut().finish_checkpoint(checkpoint)?;
        self.checkpoint = CheckpointPhase::Idle;
        // Views made from now on read the new tree, so that the memory of the old tail can go.
        self.views.store(self.machine.store_mut().view());
        if !durable.compaction_pending {
            for (id, outcome) in self.compacting.drain(..) {
                answer(&self.edges, id, outcome);
            }
        }
        // Never wait for the log core: a report that finds no room is made good by the next one.
        let _ = self.durable.try_send(durable.applied.index);
        Ok(())
    }
}

fn answer(edges: &[Rc<Inbox<(CommandId, Outcome)>>], id: CommandId, outcome: Outcome) {
    // An id of this boot names one of our edges; `Machine` drops those of earlier boots.
    if let Some(edge) = edges.get(usize::from(id.edge())) {
        edge.push((id, outcome));
    }
}
