//! The log core's loop: raft and the write-ahead log.
//!
//! Group commit clocks itself: while one frame is being written and synced, commands gather; when it is durable
//! they all go into the next one. There is no timer and no batch size to tune.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::apply::CommittedEntry;
use crate::apply::command::{self, Command, Origin};
use crate::cores::Commands;
use crate::limits;
use crate::raft::node::{Effects, Node};
use crate::raft::status::NodeStatus;
use crate::wal::writer::WalWriter;
use crate::wal::{Frame, WalError};
use crate::xcore::inbox::Inbox;
use crate::xcore::mailbox::{ReceiverSeed, SenderSeed};

/// What the log core starts with.
pub struct LogSeed {
    /// Raft, recovered.
    pub node: Node,
    /// The write-ahead log, positioned behind its last frame.
    pub wal: WalSeed,
    /// One mailbox per edge.
    pub from_edges: Vec<ReceiverSeed<Commands>>,
    /// Committed entries, in log order.
    pub to_state: SenderSeed<Vec<CommittedEntry>>,
    /// The index up to which state is durable elsewhere, so that the log may let go of it.
    pub from_state: ReceiverSeed<u64>,
    /// Where term, leader and indexes are published.
    pub status: Arc<NodeStatus>,
    /// Stamped on every entry.
    pub origin: Origin,
    /// Raft's clock step.
    pub tick: Duration,
}

/// Everything this core reacts to.
enum Event {
    Commands(Commands),
    Written(Frame, Result<(), WalError>),
    Tick,
    Durable(u64),
    EdgeClosed,
}

struct LogCore {
    node: Node,
    inbox: Rc<Inbox<Event>>,
    frames: Rc<Inbox<WalJob>>,
    committed: Rc<Inbox<CommittedEntry>>,
    status: Arc<NodeStatus>,
    origin: Origin,
    /// Commands that wait for the write in flight.
    queue: VecDeque<Command>,
    write_in_flight: bool,
    edges_open: usize,
}

/// For the task that owns the log file.
enum WalJob {
    Append(Frame),
    /// Segments that hold nothing above this index may be reused.
    Release(u64),
}

/// Runs until every edge is done and everything they submitted is durable and committed.
///
/// # Errors
/// When the log cannot be written: what is durable is no longer known, so the process must end and not retry.
pub async fn run(seed: LogSeed) -> Result<(), WalError> {
    let inbox = Inbox::new();
    let mut tasks = Vec::new();
    let edges_open = seed.from_edges.len();
    for from_edge in seed.from_edges {
        tasks.push(glommio::spawn_local(receive_commands(from_edge, Rc::clone(&inbox))));
    }
    let committed = Inbox::new();
    tasks.push(glommio::spawn_local(send_committed(Rc::clone(&committed), seed.to_state)));
    let frames = Inbox::new();
    let wal = WalWriter::open(seed.wal).await?;
    tasks.push(glommio::spawn_local(write_frames(wal, Rc::clone(&frames), Rc::clone(&inbox))));
    let background = [
        glommio::spawn_local(tick(seed.tick, Rc::clone(&inbox))),
        glommio::spawn_local(receive_durable(seed.from_state, Rc::clone(&inbox))),
    ];
    let mut core = LogCore {
        node: seed.node,
        inbox,
        frames,
        committed,
        status: seed.status,
        origin: seed.origin,
        queue: VecDeque::new(),
        write_in_flight: false,
        edges_open,
    };
    let result = core.run().await;
    core.committed.close();
    core.frames.close();
    if result.is_ok() {
        for task in tasks {
            task.await;
        }
    }
    for task in background {
        task.cancel().await;
    }
    result
}

async fn receive_commands(from_edge: ReceiverSeed<Commands>, inbox: Rc<Inbox<Event>>) {
    let from_edge = from_edge.open().await;
    while let Some(commands) = from_edge.receive().await {
        inbox.push(Event::Commands(commands));
    }
    inbox.push(Event::EdgeClosed);
}

async fn receive_durable(from_state: ReceiverSeed<u64>, inbox: Rc<Inbox<Event>>) {
    let from_state = from_state.open().await;
    while let Some(index) = from_state.receive().await {
        inbox.push(Event::Durable(index));
    }
}

async fn send_committed(committed: Rc<Inbox<CommittedEntry>>, to_state: SenderSeed<Vec<CommittedEntry>>) {
    let to_state = to_state.open().await;
    while let Some(entries) = committed.take().await {
        if !to_state.send(Vec::from(entries)).await {
            break;
        }
    }
}

async fn write_frames(mut wal: WalWriter, jobs: Rc<Inbox<WalJob>>, inbox: Rc<Inbox<Event>>) {
    while let Some(batch) = jobs.take().await {
        for job in batch {
            match job {
                WalJob::Append(frame) => {
                    let number = frame.number();
                    let result = wal.append(frame).await;
                    inbox.push(Event::Written(number, result));
                }
                WalJob::Release(index) => wal.release(index),
            }
        }
    }
}

async fn tick(every: Duration, inbox: Rc<Inbox<Event>>) {
    loop {
        glommio::timer::sleep(every).await;
        inbox.push(Event::Tick);
    }
}

impl LogCore {
    async fn run(&mut self) -> Result<(), WalError> {
        self.node.campaign();
        self.advance();
        while self.edges_open > 0 || self.write_in_flight || !self.queue.is_empty() {
            let events = self.inbox.take().await.expect("nobody closes the log core's own inbox");
            for event in events {
                self.handle(event)?;
            }
            self.advance();
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), WalError> {
        match event {
            Event::Commands(commands) => self.queue.extend(commands),
            Event::Written(frame, result) => {
                result?;
                self.write_in_flight = false;
                self.carry_out(self.node.persisted(frame));
            }
            Event::Tick => self.node.tick(),
            Event::Durable(index) => {
                self.node.release(index);
                self.frames.push(WalJob::Release(index));
            }
            Event::EdgeClosed => self.edges_open -= 1,
        }
        Ok(())
    }

    /// Proposes what has gathered, unless a write is in flight, and does what raft asks for.
    fn advance(&mut self) {
        if !self.write_in_flight {
            while let Some(data) = self.next_entry() {
                self.node.propose(data);
            }
        }
        while let Some(effects) = self.node.ready() {
            self.carry_out(effects);
        }
        let node = self.node.status();
        self.status.term.store(node.term);
    }

    /// Encodes queued commands as one entry, bounded in bytes.
    fn next_entry(&mut self) -> Option<bytes::Bytes> {
        let mut bytes = 0;
        let count = self
            .queue
            .iter()
            .take_while(|command| {
                let first = bytes == 0;
                bytes += command.encoded_len();
                first || bytes <= limits::ENTRY_BYTES_MAX
            })
            .count();
        if count == 0 {
            return None;
        }
        let commands: Vec<Command> = self.queue.drain(..count).collect();
        Some(command::encode(self.origin, &commands))
    }

    fn carry_out(&mut self, effects: Effects) {
        if let Some(frame) = effects.append {
            self.write_in_flight = true;
            self.frames.push(WalJob::Append(frame));
        }
        for entry in effects.committed {
            self.committed.push(entry);
        }
    }
}
