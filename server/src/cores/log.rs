//! The log core's loop: carries out what `revd_member::cores::log` decides, on the files of the log
//! and on mailboxes.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use revd_engine::mvcc::SavedState;
use revd_member::apply::Work;
use revd_member::apply::command::Origin;
use revd_member::apply::local::Submitted;
use revd_member::apply::received::ReceivedState;
use revd_member::cluster::membership::Membership;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::cores::member_changes::ChangeRules;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::{LogFetch, Unread};
use revd_member::raft::node::{RaftError, RaftNode};
use revd_member::raft::status::MemberStatus;
use revd_member::wal::disk::LogDisk;
use revd_member::wal::writer::{WalSeed, WalWriter};
use revd_member::wal::{FrameContent, WalError};
use serde_json::json;

use crate::clock::Ticker;
use crate::cores::{StateReport, StateReports};
use crate::disk::received::ReceivedFiles;
use crate::duties::pace::every;
use crate::limits;
use crate::observe::log;
use crate::peer::states::States;
use crate::peer::{PeerEvent, Peers, PeersSeed};
use crate::queues::mailbox::{ReceiverSeed, SenderSeed};
use crate::queues::queue::LocalQueue;
use crate::queues::sleep::sleep;

/// The parts of the log core, before it runs.
pub struct LogSeed<D> {
    /// Raft, recovered.
    pub node: RaftNode,
    /// The write-ahead log, recovered.
    pub wal: WalSeed<D>,
    /// One mailbox per edge, by edge number.
    pub from_edges: Vec<ReceiverSeed<Submitted>>,
    /// Committed entries, in log order, and local requests.
    pub to_state: SenderSeed<Vec<Work>>,
    /// Reports of the state core.
    pub from_state: ReceiverSeed<StateReports>,
    /// Where term, leader and indexes are published.
    pub status: Arc<MemberStatus>,
    /// Stamped on every entry.
    pub origin: Origin,
    /// Raft's clock step.
    pub tick: Duration,
    /// Connections to other members.
    pub peers: PeersSeed,
    /// The members as of the applied index, and how they may change.
    pub members: (Membership, ChangeRules),
    /// Where a state that another member sends is put.
    pub files: ReceivedFiles,
}

/// Why the log core cannot go on; the process must end and not retry.
#[derive(Debug, thiserror::Error)]
pub enum LogFailure {
    /// It is no longer known which entries are durable.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The cluster goes on without this member.
    #[error("{}", revd_member::cluster::REMOVED)]
    Removed,
    /// raft refused what it must accept.
    #[error(transparent)]
    Raft(#[from] RaftError),
    /// No other member can reach this one.
    #[error("listening for peers: {0}")]
    Listen(io::Error),
}

/// An event of the core, or the end of its log.
enum LogInput {
    Core(LogEvent),
    Peer(PeerEvent),
    /// Send this state to that member, in the name of the leader of that term.
    Send(u64, u64, Option<SavedState>),
    WriteFailed(WalError),
}

/// For the task that owns the log file.
enum WriterJob {
    Append(FrameContent),
    /// Segments that hold nothing above this index may be reused.
    Release(u64),
    /// Read these entries.
    Fetch(LogFetch),
}

/// Carries out what the core decides: each effect goes to the task it is for.
struct LogDriver {
    jobs: Rc<LocalQueue<WriterJob>>,
    work: Rc<LocalQueue<Work>>,
    peers: Peers,
    states: Rc<States>,
    /// Messages of this turn, by member.
    messages: BTreeMap<u64, Vec<PeerMessage>>,
}

impl LogEffects for LogDriver {
    fn append(&mut self, frame: FrameContent) {
        self.jobs.push(WriterJob::Append(frame));
    }

    fn release(&mut self, index: u64) {
        self.jobs.push(WriterJob::Release(index));
    }

    fn work(&mut self, work: Work) {
        self.work.push(work);
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.entry(to).or_default().push(message);
    }

    fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers.set_peers(peers);
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.jobs.push(WriterJob::Fetch(fetch));
    }

    fn discard(&mut self, state: Box<ReceivedState>) {
        self.states.discard(state);
    }

    fn installed(&mut self) {
        self.states.installed();
    }
}

impl LogDriver {
    fn new(
        peers: PeersSeed,
        files: ReceivedFiles,
        status: &Arc<MemberStatus>,
        events: &Rc<LocalQueue<LogInput>>,
    ) -> Result<Self, LogFailure> {
        let (of_peers, of_states) = (Rc::clone(events), Rc::clone(events));
        let peers = Peers::start(peers, move |event| of_peers.push(LogInput::Peer(event)));
        let peers = peers.map_err(LogFailure::Listen)?;
        let emit = move |event| of_states.push(LogInput::Core(event));
        let states = States::new(peers.caller(), files, Arc::clone(status), emit);
        let (jobs, work) = (LocalQueue::new(), LocalQueue::new());
        Ok(Self { jobs, work, peers, states, messages: BTreeMap::new() })
    }

    /// Sends a state to another member, unless it was removed meanwhile.
    fn send_state(&mut self, to: u64, term: u64, state: Option<SavedState>, core: &mut LogCore) {
        match self.peers.peer(to) {
            Some(peer) => self.states.send(peer, term, state),
            None => core.receive(LogEvent::StateSent { to, is_there: false }, self),
        }
    }

    /// At the end of a turn: what is for another member leaves together.
    fn send_messages(&mut self) {
        for (to, messages) in std::mem::take(&mut self.messages) {
            self.peers.send(to, &messages);
        }
    }
}

/// Runs until every edge is done and everything they submitted is durable and committed.
///
/// # Errors
/// [`LogFailure`]
pub async fn run<D: LogDisk>(seed: LogSeed<D>) -> Result<(), LogFailure> {
    let events: Rc<LocalQueue<LogInput>> = LocalQueue::new();
    let mut driver = LogDriver::new(seed.peers, seed.files, &seed.status, &events)?;
    let stopping = Rc::new(Cell::new(false));
    let wal = WalWriter::new(seed.wal);
    let config = LogConfig { origin: seed.origin, edges: seed.from_edges.len(), tick: seed.tick };
    let (membership, rules) = seed.members;
    let mut core = LogCore::new(seed.node, config).with_members(membership, rules);
    let receiving = seed.from_edges.into_iter().zip(0..).map(|(from_edge, edge)| {
        glommio::spawn_local(receive_submitted(edge, from_edge, Rc::clone(&events)))
    });
    let mut tasks: Vec<_> = receiving.collect();
    tasks.push(glommio::spawn_local(send_work(Rc::clone(&driver.work), seed.to_state)));
    let jobs = Rc::clone(&driver.jobs);
    let writing = glommio::spawn_local(write_frames(wal, jobs, Rc::clone(&events), Rc::clone(&stopping)));
    let background = [
        glommio::spawn_local(every(seed.tick, {
            let events = Rc::clone(&events);
            move || events.push(LogInput::Core(LogEvent::Tick))
        })),
        glommio::spawn_local(receive_reports(seed.from_state, Rc::clone(&events))),
    ];
    let clock = Ticker::new();
    core.start(&mut driver)?;
    driver.send_messages();
    publish(&core, &seed.status);
    while !core.is_over() {
        let taken = events.take_in_turn().await.expect("the log core does not close its own queue");
        core.receive(LogEvent::Turn(clock.microseconds()), &mut driver);
        for event in taken {
            match event {
                LogInput::Core(event) => core.receive(event, &mut driver),
                LogInput::Peer(event) => hear(event, &mut core, &mut driver),
                LogInput::Send(to, term, state) => driver.send_state(to, term, state, &mut core),
                LogInput::WriteFailed(error) => return Err(error.into()),
            }
        }
        core.receive(LogEvent::Applied(seed.status.applied.load()), &mut driver);
        core.advance(&mut driver)?;
        driver.send_messages();
        publish(&core, &seed.status);
        if core.has_left() {
            return Err(LogFailure::Removed);
        }
        stopping.set(core.is_stopping());
    }
    driver.peers.stop().await;
    driver.work.close();
    driver.jobs.close();
    for task in tasks {
        task.await;
    }
    for task in background {
        task.cancel().await;
    }
    Ok(writing.await?)
}

fn hear(event: PeerEvent, core: &mut LogCore, driver: &mut LogDriver) {
    match event {
        PeerEvent::Received { from, messages, room } => {
            for message in messages {
                core.receive(LogEvent::Peer { from, message }, driver);
            }
            drop(room);
        }
        PeerEvent::Version(member, version) => {
            core.receive(LogEvent::PeerVersion(member, version), driver);
        }
        PeerEvent::Connected(member) => core.receive(LogEvent::PeerConnected(member), driver),
        PeerEvent::Lost(member) => core.receive(LogEvent::PeerLost(member), driver),
        PeerEvent::Unsent(batch) => core.receive(LogEvent::Unsent(batch), driver),
        PeerEvent::Snapshot(connection) => driver.states.receive(connection),
        PeerEvent::Removed(by) => core.receive(LogEvent::SentAway { by }, driver),
    }
}

fn publish(core: &LogCore, status: &MemberStatus) {
    let now = core.status();
    status.term.store(now.term);
    if now.leader != 0 && now.leader != status.leader.load() {
        status.leader_changes.store(status.leader_changes.load() + 1);
    }
    status.leader.store(now.leader);
    status.last_index.store(now.last_index);
    status.committed.store(now.committed);
    status.is_sole_voter.store(now.is_sole_voter);
    status.reads_alone.store(now.reads_alone);
    status.is_learner.store(now.is_learner);
}

async fn receive_submitted(edge: u16, from_edge: ReceiverSeed<Submitted>, events: Rc<LocalQueue<LogInput>>) {
    let from_edge = from_edge.open().await;
    while let Some(submitted) = from_edge.receive().await {
        events.push(LogInput::Core(LogEvent::Submitted { edge, submitted }));
    }
    events.push(LogInput::Core(LogEvent::EdgeClosed));
}

async fn receive_reports(from_state: ReceiverSeed<StateReports>, events: Rc<LocalQueue<LogInput>>) {
    let from_state = from_state.open().await;
    while let Some(reports) = from_state.receive().await {
        for report in reports {
            events.push(match report {
                StateReport::Durable(index) => LogInput::Core(LogEvent::Durable(index)),
                StateReport::Hash { to, point, corrupt } => {
                    LogInput::Core(LogEvent::Hash { to, point, corrupt })
                }
                StateReport::Saved { to, term, state } => LogInput::Send(to, term, state),
                StateReport::Answer { to, id, outcome } => {
                    LogInput::Core(LogEvent::Answer { to, id, outcome })
                }
            });
        }
    }
}

async fn send_work(work: Rc<LocalQueue<Work>>, to_state: SenderSeed<Vec<Work>>) {
    let to_state = to_state.open().await;
    while let Some(work) = work.take().await {
        if !to_state.send(Vec::from(work)).await {
            break;
        }
    }
}

async fn write_frames<D: LogDisk>(
    mut wal: WalWriter<D>,
    jobs: Rc<LocalQueue<WriterJob>>,
    events: Rc<LocalQueue<LogInput>>,
    stopping: Rc<Cell<bool>>,
) -> Result<(), WalError> {
    let (mut waiting, mut room) = (VecDeque::new(), u64::MAX);
    while let Some(batch) = jobs.take().await {
        waiting.extend(batch);
        while let Some(job) = waiting.pop_front() {
            let WriterJob::Append(frame) = job else {
                beside_writes(job, &mut wal, &events);
                continue;
            };
            let mut result = wal.append(&frame).await;
            // On a full disk writes wait: a checkpoint releases old segments, or an operator makes
            // room.
            while matches!(result, Err(WalError::NoSpace { .. })) && !stopping.get() {
                events.push(LogInput::Core(LogEvent::DiskRoom(0)));
                sleep(limits::NO_SPACE_INTERVAL).await;
                for job in jobs.take_now() {
                    match job {
                        append @ WriterJob::Append(_) => waiting.push_back(append),
                        job => beside_writes(job, &mut wal, &events),
                    }
                }
                room = 0;
                result = wal.resume().await;
            }
            if let Err(error) = result {
                events.push(LogInput::WriteFailed(error));
                return Ok(()); // nothing may follow a write that may or may not have happened
            }
            if std::mem::replace(&mut room, wal.room()) != room {
                events.push(LogInput::Core(LogEvent::DiskRoom(room)));
            }
            events.push(LogInput::Core(LogEvent::Written));
        }
    }
    wal.settle().await
}

/// Carries out jobs that go on while frames are written.
fn beside_writes<D: LogDisk>(job: WriterJob, wal: &mut WalWriter<D>, events: &Rc<LocalQueue<LogInput>>) {
    match job {
        WriterJob::Append(_) => unreachable!("writes go one by one"),
        WriterJob::Release(index) => wal.release(index),
        WriterJob::Fetch(fetch) => {
            let (reading, events) = (wal.fetch(fetch.low, fetch.high, fetch.bytes_max), Rc::clone(events));
            glommio::spawn_local(async move {
                let entries = reading.await.map_err(|error| {
                    let why = json!({"error": error.to_string(), "entry": fetch.low});
                    let unread = Unread::from(&error);
                    match unread {
                        Unread::Released => {
                            log::info("the log has let go of entries that another member lacks", why);
                        }
                        Unread::Failed => {
                            log::warn("entries of the log cannot be read for another member", why);
                        }
                    }
                    unread
                });
                events.push(LogInput::Core(LogEvent::Fetched(fetch, entries)));
            })
            .detach();
        }
    }
}
