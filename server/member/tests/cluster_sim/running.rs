//! A member while it runs: the shipped log core and machine, what is on its way between them, and
//! its clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, SavedState, StoreBuilder};
use revd_member::apply::command::{Command, CommandId, Kind, Origin};
use revd_member::apply::local::Submitted;
use revd_member::apply::outcome::{Effect, Outcome};
use revd_member::apply::received::ReceivedState;
use revd_member::apply::state_hashes::HashAsks;
use revd_member::apply::{CommittedEntry, Machine, Work};
use revd_member::cluster::membership::Membership;
use revd_member::cores::log::LogCore;
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::error::Error;
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::schema;
use revd_member::wal::reader::RecoveredLog;
use revd_member::wal::{FrameContent, LogEntry};

use crate::history::{ClusterAt, History};

/// Effects of a log core, on their way.
#[derive(Default)]
pub(crate) struct FromLog {
    pub(crate) frame: Option<FrameContent>,
    pub(crate) release: Option<u64>,
    pub(crate) work: VecDeque<Work>,
    pub(crate) messages: Vec<(u64, PeerMessage)>,
    pub(crate) fetches: Vec<LogFetch>,
    /// The state that was received last is in its place, or was of no use; the latter with its
    /// file.
    pub(crate) may_receive: bool,
    pub(crate) has_discarded: bool,
    /// The other members from now on.
    pub(crate) peers: Option<Vec<Peer>>,
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
        self.messages.push((to, message));
    }

    fn fetch(&mut self, fetch: LogFetch) {
        self.fetches.push(fetch);
    }

    fn set_peers(&mut self, peers: Vec<Peer>) {
        self.peers = Some(peers);
    }

    fn discard(&mut self, _state: Box<ReceivedState>) {
        (self.may_receive, self.has_discarded) = (true, true);
    }

    fn installed(&mut self) {
        self.may_receive = true;
    }
}

/// A call of a client of this member, with the revision that it must not fall behind.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    pub(crate) number: u64,
    pub(crate) floor: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallKind {
    Put,
    /// A change of members.
    Change,
    /// The member publishes its name.
    Publish,
}

/// A member that runs.
pub(crate) struct Running {
    /// Of its commands.
    pub(crate) origin: Origin,
    pub(crate) log: LogCore,
    pub(crate) machine: Machine,
    pub(crate) from_log: FromLog,
    pub(crate) events: VecDeque<LogEvent>,
    pub(crate) calls: BTreeMap<CommandId, Call>,
    /// By ticket: the floors of reads that wait.
    pub(crate) reads: BTreeMap<u64, i64>,
    /// Reads up to this ticket are served once this index is applied.
    pub(crate) ready: VecDeque<(u64, u64)>,
    pub(crate) submitted: u64,
    pub(crate) tickets: u64,
    pub(crate) leads: Option<u64>,
    pub(crate) is_receiving: bool,
    pub(crate) hash_asks: HashAsks,
    pub(crate) sending: Vec<(u64, u64, SimDisk)>,
    /// Entries on their way from the log's segments.
    pub(crate) fetching: Vec<(LogFetch, Option<Vec<LogEntry>>)>,
    /// The members that it dials.
    pub(crate) peers: BTreeSet<u64>,
    /// Those whose connections it ends.
    pub(crate) dropped: BTreeSet<u64>,
    /// Another one has said that it was removed.
    pub(crate) is_told: bool,
    /// With a vote at the end of the last turn: they elect whom this one leads in the next.
    pub(crate) voters: Vec<u64>,
}

pub(crate) fn voters_of(membership: &Membership) -> Vec<u64> {
    let voters = membership.members().filter(|member| !member.is_learner);
    voters.map(|member| member.id).collect()
}

/// Entries that a member reads for another one: no more than the fetch names, and often fewer.
pub(crate) fn entries_of(log: &RecoveredLog, fetch: LogFetch) -> Option<Vec<LogEntry>> {
    let wanted = log.entries.iter().filter(|entry| (fetch.low..fetch.high).contains(&entry.index));
    let entries: Vec<LogEntry> = wanted.take(usize::try_from(1 + fetch.low % 7).unwrap()).cloned().collect();
    entries.first().is_some_and(|first| first.index == fetch.low).then_some(entries)
}

/// The file that a receiver makes of a state.
pub(crate) fn copy(state: &SavedState) -> SimDisk {
    let disk = SimDisk::new();
    let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
    let (mut stream, mut chunk) = (state.stream(), Vec::new());
    while stream.next_chunk(&mut chunk).unwrap() {
        builder.add(&chunk).unwrap();
    }
    builder.finish().unwrap();
    disk
}

impl Running {
    pub(crate) fn tell_hashes(&mut self) {
        for (to, point) in self.hash_asks.answers(self.machine.hashes()) {
            let corrupt = self.machine.corrupt_members().to_vec();
            self.events.push_back(LogEvent::Hash { to, point, corrupt });
        }
    }

    /// A command whose caller waits.
    pub(crate) fn command(&mut self, call: CallKind, kind: Kind, payload: Bytes, floor: i64) -> Command {
        self.submitted += 1;
        let id = CommandId(self.submitted);
        self.calls.insert(id, Call { kind: call, number: self.submitted, floor });
        Command { id, kind, payload }
    }

    pub(crate) fn submit(&mut self, submitted: Submitted) {
        let submitted = Submitted { number: self.submitted, ..submitted };
        self.events.push_back(LogEvent::Submitted { edge: 0, submitted });
    }

    /// Takes up the other members; returns those that are none any more.
    pub(crate) fn take_peers(&mut self) -> Vec<u64> {
        let Some(peers) = self.from_log.peers.take() else { return Vec::new() };
        let peers: BTreeSet<u64> = peers.into_iter().map(|peer| peer.id).collect();
        let gone: Vec<u64> = self.peers.difference(&peers).copied().collect();
        self.dropped.extend(&gone);
        self.dropped.retain(|id| !peers.contains(id));
        self.peers = peers;
        gone
    }

    pub(crate) fn cluster(&self) -> ClusterAt {
        let store = self.machine.store();
        ClusterAt {
            revision: store.revision(),
            hash: store.state_hash(),
            membership: schema::membership(store.tables()),
            votes: schema::conf_state(store.tables()),
        }
    }

    pub(crate) fn apply(&mut self, entry: &CommittedEntry, history: &mut History, is_forged: bool) {
        let mut effects = Vec::new();
        self.machine.apply(entry, 0, &mut effects).unwrap();
        let Applied { index, .. } = self.machine.store().applied();
        assert_eq!(index, entry.index);
        if !is_forged {
            history.applied(entry, self.cluster());
        }
        for effect in effects {
            let Effect::Reply(id, outcome) = effect else { panic!("{effect:?}") };
            self.answered(id, &outcome, history, is_forged);
        }
        self.events.push_back(LogEvent::Applied(index));
    }

    /// One that was lost may be applied all the same.
    pub(crate) fn answered(
        &mut self,
        id: CommandId,
        outcome: &Outcome,
        history: &mut History,
        is_forged: bool,
    ) {
        let Some(call) = self.calls.remove(&id) else { return };
        if let (CallKind::Put | CallKind::Publish, Err(Error::Corrupt)) = (call.kind, &outcome.result) {
            assert!(!self.machine.corrupt_members().is_empty());
            return;
        }
        match (call.kind, &outcome.result) {
            (CallKind::Put, Ok(_)) if is_forged => {}
            (CallKind::Put, Ok(_)) => history.put(call.floor, outcome.revision),
            (CallKind::Change, result) => {
                history.told.answered(self.origin, id, result.as_ref().err());
                history.changed(result.as_ref().err());
            }
            (CallKind::Publish, Ok(_)) => {}
            (CallKind::Put | CallKind::Publish, Err(_)) if outcome.revision == 0 => {}
            (CallKind::Put | CallKind::Publish, Err(error)) => panic!("{error:?}"),
        }
    }

    pub(crate) fn serve_reads(&mut self, history: &mut History, is_forged: bool) {
        let applied = self.machine.store().applied().index;
        let revision = self.machine.store().revision();
        while let Some((ticket, _)) = self.ready.pop_front_if(|(_, index)| *index <= applied) {
            let later = self.reads.split_off(&(ticket + 1));
            let served = std::mem::replace(&mut self.reads, later).into_values();
            served.filter(|_| !is_forged).for_each(|floor| history.read(floor, revision));
        }
    }
}
