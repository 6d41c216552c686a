//! The members that do not crash: they keep the log short, so that a member that was away needs a
//! state. All of them is durable at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{CheckpointKind, SavedState, Store};
use revd_member::apply::command::{Command, CommandId, Kind};
use revd_member::apply::local::Submitted;
use revd_member::apply::received::ReceivedState;
use revd_member::apply::{DurableIndex, Machine, MachineConfig, Work};
use revd_member::boot::recovery::Recovery;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::{LogFetch, Unread};
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::schema;
use revd_member::wal::reader::RecoveredLog;
use revd_member::wal::{FrameContent, LogEntry};
use revd_proto::etcdserverpb::PutRequest;

use crate::hash_of;
use crate::start::{RETENTION, open};

/// Effects of a log core, on their way.
#[derive(Default)]
pub(crate) struct FromLog {
    pub(crate) frame: Option<FrameContent>,
    pub(crate) release: Option<u64>,
    pub(crate) work: VecDeque<Work>,
    pub(crate) messages: VecDeque<(u64, PeerMessage)>,
    fetches: Vec<LogFetch>,
    /// The state that has come is of no use.
    pub(crate) has_discarded: bool,
    pub(crate) is_installed: bool,
}

impl LogEffects for FromLog {
    fn append(&mut self, frame: FrameContent) {
        assert!(self.frame.replace(frame).is_none(), "one frame at a time");
    }

    fn release(&mut self, index: u64) {
        self.release = Some(index);
    }

    fn work(&mut self, work: Work) {
        self.work.push_back(work);
    }

    fn send(&mut self, to: u64, message: PeerMessage) {
        self.messages.push_back((to, message));
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.fetches.push(fetch);
    }

    fn set_peers(&mut self, _peers: Vec<Peer>) {}

    fn discard(&mut self, state: Box<ReceivedState>) {
        drop(state);
        self.has_discarded = true;
    }

    fn installed(&mut self) {
        self.is_installed = true;
    }
}

/// One of them.
pub(crate) struct Other {
    pub(crate) id: u64,
    pub(crate) log: LogCore,
    pub(crate) from_log: FromLog,
    pub(crate) machine: Machine,
    durable: RecoveredLog,
    submitted: u64,
    /// States that are to be sent: to which member, and in which term.
    pub(crate) sending: Vec<(u64, u64, SavedState)>,
    /// By log index: revision and hash of the state after it.
    pub(crate) truth: Vec<(i64, u32)>,
}

/// The data that one of them goes on with.
#[derive(Clone)]
pub(crate) struct Kept {
    tree: Vec<u8>,
    log: RecoveredLog,
    truth: Vec<(i64, u32)>,
}

pub(crate) const TICK: Duration = Duration::from_millis(100);

impl Other {
    pub(crate) fn new(recovery: Recovery) -> Self {
        let Recovery { identity, origin, mut machine, node, log: durable, .. } = recovery;
        let view = machine.store_mut().view();
        let truth = vec![(0, 0), (view.revision(), hash_of(view))];
        let log = LogCore::new(node, LogConfig { origin, edges: 1, tick: TICK });
        Self::with(identity.member, log, machine, durable, truth)
    }

    fn with(
        id: u64,
        mut log: LogCore,
        machine: Machine,
        durable: RecoveredLog,
        truth: Vec<(i64, u32)>,
    ) -> Self {
        let mut from_log = FromLog::default();
        log.start(&mut from_log).unwrap();
        Self { id, log, from_log, machine, durable, submitted: 0, sending: Vec::new(), truth }
    }

    /// Its data, from which members can go on later.
    pub(crate) fn keep(&mut self) -> Kept {
        self.save();
        let mut stream = self.machine.store().saved_state().unwrap().stream();
        let (disk, mut chunk) = (SimDisk::new(), Vec::new());
        let mut builder = revd_engine::mvcc::StoreBuilder::new(Arc::new(disk.clone())).unwrap();
        while stream.next_chunk(&mut chunk).unwrap() {
            builder.add(&chunk).unwrap();
        }
        builder.finish().unwrap();
        Kept { tree: disk.bytes(), log: self.durable.clone(), truth: self.truth.clone() }
    }

    /// A member goes on with what one of them has kept.
    pub(crate) fn go_on(id: u64, kept: &Kept, seed: u64) -> Self {
        let store: Store = open(Arc::new(SimDisk::from_bytes(kept.tree.clone())));
        let own = revd_member::apply::command::Origin { member: id, boot: 2 };
        let config = RaftConfig {
            conf_state: schema::conf_state(store.tables()),
            seed: seed ^ id,
            retention: RETENTION,
            ..RaftConfig::alone(id, store.applied().index)
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let mut found = kept.log.clone();
        found.forget_applied(config.applied);
        let node = RaftNode::start(&config, &found, &logger).unwrap();
        let machine = Machine::new(store, MachineConfig { own, quota_bytes: 0, lease_extension: 0 }).unwrap();
        let log = LogCore::new(node, LogConfig { origin: own, edges: 1, tick: TICK });
        Self::with(id, log, machine, kept.log.clone(), kept.truth.clone())
    }

    pub(crate) fn event(&mut self, event: LogEvent) {
        self.log.receive(event, &mut self.from_log);
        self.log.advance(&mut self.from_log).unwrap();
        while let Some(frame) = self.from_log.frame.take() {
            self.write(frame);
            self.log.receive(LogEvent::Written, &mut self.from_log);
            self.log.advance(&mut self.from_log).unwrap();
        }
        while let Some(work) = self.from_log.work.pop_front() {
            self.work(work);
        }
        for fetch in std::mem::take(&mut self.from_log.fetches) {
            let wanted = |entry: &&LogEntry| (fetch.low..fetch.high).contains(&entry.index);
            let entries: Vec<_> = self.durable.entries.iter().filter(wanted).cloned().collect();
            let is_there = entries.first().is_some_and(|first| first.index == fetch.low);
            self.event(LogEvent::Fetched(fetch, is_there.then_some(entries).ok_or(Unread::Released)));
        }
        if let Some(index) = self.from_log.release.take() {
            while self.durable.entries.front().is_some_and(|entry| entry.index <= index) {
                let entry = self.durable.entries.pop_front().unwrap();
                self.durable.base = (entry.index, entry.term);
            }
        }
    }

    fn write(&mut self, frame: FrameContent) {
        assert!(frame.restart.is_none(), "it never lags behind");
        self.durable.hard_state = frame.hard_state.unwrap_or(self.durable.hard_state);
        if let Some(first) = frame.entries.first() {
            self.durable.entries.retain(|entry| entry.index < first.index);
        }
        self.durable.entries.extend(frame.entries);
    }

    fn work(&mut self, work: Work) {
        match work {
            Work::Entry(entry) => {
                self.machine.apply(&entry, 0, &mut Vec::new()).unwrap();
                let view = self.machine.store_mut().view();
                self.truth.push((view.revision(), hash_of(view)));
                assert_eq!(self.truth.len() as u64 - 1, entry.index);
                self.log.receive(LogEvent::Applied(entry.index), &mut self.from_log);
            }
            Work::Stream { to, term } => {
                self.save();
                self.sending.push((to, term, self.machine.store().saved_state().unwrap()));
            }
            Work::Hash(_) | Work::Leads(_) | Work::Lost(_) | Work::Read(_) => {}
            work => unreachable!("{work:?} without a reason"),
        }
    }

    /// A checkpoint of what is applied.
    pub(crate) fn save(&mut self) {
        let store = self.machine.store_mut();
        let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) else { return };
        let written = checkpoint.write().unwrap();
        let durable = DurableIndex::of(&store.finish_checkpoint(written));
        self.log.receive(LogEvent::Durable(durable), &mut self.from_log);
    }

    pub(crate) fn put(&mut self, key: u64, bytes: u64) {
        self.submitted += 1;
        let key = format!("key {key}").into_bytes().into();
        let value = vec![7; usize::try_from(bytes).unwrap()].into();
        let payload = PutRequest { key, value, ..PutRequest::default() }.encode_to_vec().into();
        let command = Command { id: CommandId(self.submitted), kind: Kind::Put, payload };
        let number = self.submitted;
        let submitted = Submitted { commands: vec![command], number, ..Submitted::default() };
        self.event(LogEvent::Submitted { edge: 0, submitted });
    }

    pub(crate) fn leads(&self) -> bool {
        self.log.status().is_leader
    }
}
