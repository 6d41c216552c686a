//! The log core's loop: raft and the write-ahead log.
//!
//! Group commit clocks itself: while one frame is being written and synced, commands gather; when it is durable
//! they all go into the next one. There is no timer and no batch size to tune.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use revd_member::apply::command::{self, Command, Origin};
use revd_member::apply::{DurableIndex, Work};
use revd_member::raft::node::{Effects, Node, NodeError};
use revd_member::raft::status::NodeStatus;
use revd_member::wal::disk::LogDisk;
use revd_member::wal::writer::{WalSeed, WalWriter};
use revd_member::wal::{FrameContent, WalError};

use crate::cores::Commands;
use crate::limits;
use crate::xcore::inbox::Inbox;
use crate::xcore::mailbox::{ReceiverSeed, SenderSeed};

/// What the log core starts with.
pub struct LogSeed<D> {
    /// Raft, recovered.
    pub node: Node,
    /// The write-ahead log, recovered.
    pub wal: WalSeed<D>,
    /// One mailbox per edge.
    pub from_edges: Vec<ReceiverSeed<Commands>>,
    /// Committed entries, in log order, and orders to this member alone.
    pub to_state: SenderSeed<Vec<Work>>,
    /// The index up to which state is durable elsewhere, so that the log may let go of it.
    pub from_state: ReceiverSeed<DurableIndex>,
    /// Where term, leader and indexes are published.
    pub status: Arc<NodeStatus>,
    /// Stamped on every entry.
    pub origin: Origin,
    /// Raft's clock step.
    pub tick: Duration,
}

/// Why the log core cannot go on; the process must end and not retry.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// What is durable is no longer known.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// raft refused what it must accept.
    #[error(transparent)]
    Raft(#[from] NodeError),
}

/// Everything this core reacts to.
enum Event {
    Commands(Commands),
    Written(Result<(), WalError>),
    Tick,
    Durable(DurableIndex),
    EdgeClosed,
}

/// For the task that owns the log file.
enum WalJob {
    Append(FrameContent),
    /// Segments that hold nothing above this index may be reused.
    Release(u64),
}

struct LogCore {
    node: Node,
    inbox: Rc<Inbox<Event>>,
    jobs: Rc<Inbox<WalJob>>,
    work: Rc<Inbox<Work>>,
    status: Arc<NodeStatus>,
    origin: Origin,
    /// Commands that wait for the write in flight.
    queue: VecDeque<Command>,
    edges_open: usize,
    /// Nobody waits for outcomes any more.
    stopping: Rc<Cell<bool>>,
}

/// Runs until every edge is done and everything they submitted is durable and committed.
///
/// # Errors
/// [`Fatal`]
pub async fn run<D: LogDisk>(seed: LogSeed<D>) -> Result<(), Fatal> {
    let inbox = Inbox::new();
    let work = Inbox::new();
    let jobs = Inbox::new();
    let stopping = Rc::new(Cell::new(false));
    let wal = WalWriter::new(seed.wal);
    let edges_open = seed.from_edges.len();
    let receiving = seed
        .from_edges
        .into_iter()
        .map(|from_edge| glommio::spawn_local(receive_commands(from_edge, Rc::clone(&inbox))));
    let mut tasks: Vec<_> = receiving.collect();
    tasks.push(glommio::spawn_local(send_work(Rc::clone(&work), seed.to_state)));
    let writing =
        glommio::spawn_local(write_frames(wal, Rc::clone(&jobs), Rc::clone(&inbox), Rc::clone(&stopping)));
    let background = [
        glommio::spawn_local(tick(seed.tick, Rc::clone(&inbox))),
        glommio::spawn_local(receive_durable(seed.from_state, Rc::clone(&inbox))),
    ];
    let mut core = LogCore {
        node: seed.node,
        inbox,
        jobs,
        work,
        status: seed.status,
        origin: seed.origin,
        queue: VecDeque::new(),
        edges_open,
        stopping,
    };
    core.run().await?;
    core.work.close();
    core.jobs.close();
    for task in tasks {
        task.await;
    }
    for task in background {
        task.cancel().await;
    }
    Ok(writing.await?)
}

async fn receive_commands(from_edge: ReceiverSeed<Commands>, inbox: Rc<Inbox<Event>>) {
    let from_edge = from_edge.open().await;
    while let Some(commands) = from_edge.receive().await {
        inbox.push(Event::Commands(commands));
    }
    inbox.push(Event::EdgeClosed);
}

async fn receive_durable(from_state: ReceiverSeed<DurableIndex>, inbox: Rc<Inbox<Event>>) {
    let from_state = from_state.open().await;
    while let Some(index) = from_state.receive().await {
        inbox.push(Event::Durable(index));
    }
}

async fn send_work(work: Rc<Inbox<Work>>, to_state: SenderSeed<Vec<Work>>) {
    let to_state = to_state.open().await;
    while let Some(work) = work.take().await {
        if !to_state.send(Vec::from(work)).await {
            break;
        }
    }
}

async fn write_frames<D: LogDisk>(
    mut wal: WalWriter<D>,
    jobs: Rc<Inbox<WalJob>>,
    inbox: Rc<Inbox<Event>>,
    stopping: Rc<Cell<bool>>,
) -> Result<(), WalError> {
    let mut waiting = VecDeque::new();
    while let Some(batch) = jobs.take().await {
        waiting.extend(batch);
        while let Some(job) = waiting.pop_front() {
            let mut result = match job {
                WalJob::Append(frame) => wal.append(&frame).await,
                WalJob::Release(index) => {
                    wal.release(index);
                    continue;
                }
            };
            // On a full disk writes wait: a checkpoint lets go of old segments, or somebody makes room.
            while matches!(result, Err(WalError::NoSpace { .. })) && !stopping.get() {
                glommio::timer::sleep(limits::NO_SPACE_INTERVAL).await;
                for job in jobs.take_now() {
                    match job {
                        WalJob::Release(index) => wal.release(index),
                        append @ WalJob::Append(_) => waiting.push_back(append),
                    }
                }
                result = wal.resume().await;
            }
            let has_failed = result.is_err();
            inbox.push(Event::Written(result));
            if has_failed {
                return Ok(()); // nothing may follow a write of which nobody knows whether it happened
            }
        }
    }
    wal.settle().await
}

async fn tick(every: Duration, inbox: Rc<Inbox<Event>>) {
    loop {
        glommio::timer::sleep(every).await;
        inbox.push(Event::Tick);
    }
}

impl LogCore {
    async fn run(&mut self) -> Result<(), Fatal> {
        self.node.campaign()?;
        self.advance()?;
        while self.edges_open > 0 || self.node.is_writing() || !self.queue.is_empty() {
            let events = self.inbox.take().await.expect("nobody closes the log core's own inbox");
            for event in events {
                self.handle(event)?;
            }
            self.advance()?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), Fatal> {
        match event {
            Event::Commands(commands) => {
                for command in commands {
                    if command.kind.is_local() {
                        self.work.push(Work::Local(command));
                    } else {
                        self.queue.push_back(command);
                    }
                }
            }
            Event::Written(result) => {
                result?;
                self.node.written();
            }
            Event::Tick => self.node.tick(),
            Event::Durable(index) => {
                self.node.release(index.get());
                self.jobs.push(WalJob::Release(index.get()));
            }
            Event::EdgeClosed => {
                self.edges_open -= 1;
                self.stopping.set(self.edges_open == 0);
            }
        }
        Ok(())
    }

    /// Proposes what has gathered, unless a write is in flight, and does what raft asks for.
    fn advance(&mut self) -> Result<(), Fatal> {
        if !self.node.is_writing() && self.node.standing().is_leader {
            let mut frame_bytes = 0;
            while frame_bytes < limits::FRAME_BYTES_MAX
                && let Some(data) = self.next_entry()
            {
                frame_bytes += data.len();
                self.node.propose(data)?;
            }
        }
        let Effects { append, committed } = self.node.effects();
        if let Some(frame) = append {
            self.jobs.push(WalJob::Append(frame));
        }
        committed.into_iter().for_each(|entry| self.work.push(Work::Entry(entry)));
        let standing = self.node.standing();
        self.status.term.store(standing.term);
        self.status.leader.store(standing.leader);
        self.status.last_index.store(standing.last_index);
        self.status.committed.store(standing.committed);
        Ok(())
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
