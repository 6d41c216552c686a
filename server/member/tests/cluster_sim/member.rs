//! A member: the shipped log core and machine, a log and a tree file that outlive crashes, and its
//! clients.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{CheckpointKind, SmallTable};
use revd_engine::random::Random;
use revd_member::apply::command::Kind;
use revd_member::apply::local::Submitted;
use revd_member::apply::outcome::Effect;
use revd_member::apply::received::ReceivedState;
use revd_member::apply::state_hashes::HashAsks;
use revd_member::apply::{DurableIndex, Lost, Machine, ReadReady, Work};
use revd_member::auth::rules::TokenChange;
use revd_member::boot::recovery::{Recovery, RecoveryConfig, Refusal, recover};
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::membership::Membership;
use revd_member::cluster::version::ClusterVersion;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::LogEvent;
use revd_member::cores::member_changes::ChangeRules;
use revd_member::peer::PeerMessage;
use revd_member::raft::feed::{LogFetch, Unread};
use revd_member::raft::node::LogRetention;
use revd_member::schema;
use revd_proto::etcdserverpb::PutRequest;

use crate::files::{CLUSTER, Files, Starting, open, row};
use crate::history::{ClusterAt, History};
use crate::running::{Call, CallKind, FromLog, Running, copy, entries_of, voters_of};

/// Of all members, and of the cluster.
const VERSION: ClusterVersion = ClusterVersion { major: 3, minor: 7 };

/// Whether members ask before an election whether it can be won (`--pre-vote`).
#[derive(Clone, Copy)]
pub(crate) enum PreVotes {
    On,
    Off,
    /// By each start of each member.
    Toggled,
}

/// How a member has ended that is started no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It has seen its own removal.
    Left,
    /// Another member has told it.
    Told,
    /// Its own files say so at a start.
    Found,
}

pub(crate) struct Member {
    pub(crate) id: u64,
    boot: u64,
    pre_votes: PreVotes,
    files: Files,
    /// Its state is not what the log has made it.
    pub(crate) is_forged: bool,
    running: Option<Running>,
    pub(crate) end: Option<End>,
    /// It was added, and its operator has forgotten it.
    pub(crate) never_starts: bool,
}

impl Member {
    /// One of the members `1..=members` of a new cluster.
    pub(crate) fn of_new_cluster(id: u64, members: u64, pre_votes: PreVotes) -> Self {
        let mut member = Self::joining(id, false);
        member.pre_votes = pre_votes;
        member.files = Files::of_new_cluster(id, members);
        member.start(id, None);
        member
    }

    /// One that is being added.
    pub(crate) fn joining(id: u64, never_starts: bool) -> Self {
        Self {
            id,
            boot: 0,
            pre_votes: PreVotes::On,
            files: Files::empty(id),
            is_forged: false,
            running: None,
            end: None,
            never_starts,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// It may be started.
    pub(crate) fn is_down(&self) -> bool {
        self.running.is_none() && self.end.is_none() && !self.never_starts
    }

    /// It has promised something.
    pub(crate) fn has_begun(&self) -> bool {
        self.files.log.is_some()
    }

    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// Starts from what is durable; `remote` is the cluster as another member knows it.
    pub(crate) fn start(&mut self, seed: u64, remote: Option<RemoteCluster>) {
        if self.files.waits_for_others() && remote.is_none() {
            return;
        }
        self.boot += 1;
        // Some keep so little of the log that others need a state, some so little of it in memory
        // that they read all the time.
        let (snapshot_count, catchup_entries) =
            [(1 << 40, 0), (6, 3), (30, 20)][usize::try_from(seed % 3).unwrap()];
        let disk_bytes_max = if seed.is_multiple_of(5) { 20 * 4096 } else { 1 << 40 };
        let memory_bytes_max = if seed.is_multiple_of(4) { 1 << 20 } else { 300 };
        let mut starting = Starting { files: &mut self.files, remote };
        let config = RecoveryConfig {
            begins_cluster: false,
            initial: starting.initial(),
            forces_new: false,
            version: VERSION,
            pre_vote: match self.pre_votes {
                PreVotes::On => true,
                PreVotes::Off => false,
                PreVotes::Toggled => seed.is_multiple_of(2),
            },
            advances_election: seed.is_multiple_of(5),
            boot: self.boot,
            election_ticks: 10,
            election_seed: seed ^ self.id << 32,
            log_retention: LogRetention { snapshot_count, catchup_entries, disk_bytes_max, memory_bytes_max },
            quota_bytes: 0,
            lease_extension: 0,
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let recovered = match recover(&config, &logger, &mut starting) {
            Ok(recovered) => recovered,
            Err(Refusal::Removed) => return self.end = Some(End::Found),
            Err(Refusal::Join(_)) => return, // no place was made for it yet
            Err(refusal) => panic!("member {} cannot start: {refusal:?}", self.id),
        };
        let Recovery { origin, machine, node, membership, .. } = recovered;
        let mut peers: BTreeSet<u64> = membership.members().map(|member| member.id).collect();
        peers.remove(&self.id);
        let voters = voters_of(&membership);
        let rules = ChangeRules { is_strict: true, steady_ticks: 5, forced_until: None };
        let config = LogConfig { origin, edges: 1, tick: Duration::from_millis(100) };
        let mut log = LogCore::new(node, config).with_members(membership, rules);
        let mut from_log = FromLog::default();
        log.start(&mut from_log).unwrap();
        self.running = Some(Running {
            origin,
            log,
            machine,
            from_log,
            events: VecDeque::new(),
            calls: BTreeMap::new(),
            reads: BTreeMap::new(),
            ready: VecDeque::new(),
            submitted: 0,
            tickets: 0,
            leads: None,
            is_receiving: false,
            hash_asks: HashAsks::default(),
            sending: Vec::new(),
            fetching: Vec::new(),
            peers,
            dropped: BTreeSet::new(),
            is_told: false,
            voters,
        });
    }

    /// The cluster as this member answers for it; none if it is not among the members.
    pub(crate) fn remote(&self) -> Option<RemoteCluster> {
        let members: Vec<_> = self.membership()?.members().cloned().collect();
        let names_itself = members.iter().any(|member| member.id == self.id);
        names_itself.then_some(RemoteCluster { id: CLUSTER, members, versions: vec![VERSION] })
    }

    /// The members as of the applied index.
    pub(crate) fn membership(&self) -> Option<Membership> {
        self.running.as_ref().map(|running| schema::membership(running.machine.store().tables()))
    }

    /// This member dials that one, which it knows.
    pub(crate) fn dials(&self, to: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.peers.contains(&to))
    }

    /// A connection of that member is refused without a reason.
    pub(crate) fn drops(&self, from: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.dropped.contains(&from))
    }

    /// Another member says that this one was removed.
    pub(crate) fn sent_away(&mut self, by: u64) {
        if let Some(running) = &mut self.running {
            running.events.push_back(LogEvent::SentAway { by });
            running.is_told = true;
        }
    }

    /// States that are to be sent: to which member, in which term, and the file it makes of them.
    pub(crate) fn sending(&mut self) -> Vec<(u64, u64, SimDisk)> {
        self.running.as_mut().map_or_else(Vec::new, |running| std::mem::take(&mut running.sending))
    }

    /// A state has come, whole; false if another one is on its way into its place.
    pub(crate) fn receive(&mut self, from: u64, term: u64, disk: SimDisk) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| !running.is_receiving) else {
            return false;
        };
        running.is_receiving = true;
        let state = Box::new(ReceivedState::load(open(&disk)).unwrap());
        running.events.push_back(LogEvent::StateReceived { from, term, state });
        self.files.received = Some(disk);
        true
    }

    /// Everything in memory is gone. The frame that was being written may be durable all the same.
    pub(crate) fn crash(&mut self, random: &mut Random) {
        let Some(running) = self.running.take() else { return };
        if let Some(frame) = running.from_log.frame
            && random.one_in(2)
        {
            self.files.write(frame);
        }
    }

    pub(crate) fn event(&mut self, event: LogEvent) {
        if let Some(running) = &mut self.running {
            running.events.push_back(event);
        }
    }

    /// A turn of the log core: messages to send, and members that are none any more.
    pub(crate) fn turn(&mut self, history: &mut History) -> (Vec<(u64, PeerMessage)>, Vec<u64>) {
        let Some(running) = &mut self.running else { return Default::default() };
        for event in running.events.drain(..) {
            running.log.receive(event, &mut running.from_log);
        }
        running.log.advance(&mut running.from_log).unwrap();
        let status = running.log.status();
        let leads = status.is_leader.then_some(status.term);
        if running.leads != leads {
            running.leads = leads;
            leads.inspect(|term| history.leads(self.id, *term, &running.voters));
        }
        running.voters = voters_of(running.log.membership());
        if std::mem::take(&mut running.from_log.may_receive) {
            running.is_receiving = false;
        }
        if std::mem::take(&mut running.from_log.has_discarded) {
            self.files.received = None;
        }
        for fetch in std::mem::take(&mut running.from_log.fetches) {
            running.fetching.push((fetch, entries_of(self.files.log.as_ref().unwrap(), fetch)));
        }
        let messages = std::mem::take(&mut running.from_log.messages);
        let is_forward = |message: &PeerMessage| matches!(message, PeerMessage::Forward(_));
        let is_hash = |message: &PeerMessage| matches!(message, PeerMessage::Hash(_));
        history.seen.hashes += messages.iter().filter(|(_, message)| is_hash(message)).count() as u64;
        history.seen.forwards += messages.iter().filter(|(_, message)| is_forward(message)).count() as u64;
        if let Some(index) = running.from_log.release.take() {
            self.files.release(index);
        }
        let gone = running.take_peers();
        if running.log.has_left() {
            self.end = Some(if running.is_told { End::Told } else { End::Left });
            self.running = None;
        }
        (messages, gone)
    }

    /// Entries that were to be read are there, or cannot be read. The segment that held them may be
    /// another one by now.
    pub(crate) fn fetched(&mut self, random: &mut Random, is_wild: bool, history: &mut History) {
        let Some(running) = &mut self.running else { return };
        let Some((fetch, entries)) = running.fetching.pop() else { return };
        let entries = match random.below(if is_wild { 8 } else { 1 }) {
            1 => None,
            2 => Some(Vec::new()),
            // Of another index, or of another time.
            3 => entries_of(self.files.log.as_ref().unwrap(), LogFetch { low: fetch.low + 1, ..fetch }),
            4 => entries.map(|mut entries| {
                entries.iter_mut().for_each(|entry| entry.term += random.below(2));
                entries
            }),
            _ => entries,
        };
        let unread = if fetch.low % 2 == 0 { Unread::Released } else { Unread::Failed };
        history.seen.fetches += 1;
        history.seen.unread += u64::from(entries.as_ref().is_none_or(Vec::is_empty));
        running.events.push_back(LogEvent::Fetched(fetch, entries.ok_or(unread)));
    }

    /// The frame under way is durable.
    pub(crate) fn written(&mut self) {
        let Some(frame) = self.running.as_mut().and_then(|running| running.from_log.frame.take()) else {
            return;
        };
        self.files.write(frame);
        self.event(LogEvent::Written);
    }

    pub(crate) fn leads(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.log.status().is_leader)
    }

    pub(crate) fn term(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.log.status().term)
    }

    pub(crate) fn applied(&self) -> u64 {
        self.running.as_ref().map_or(0, |running| running.machine.store().applied().index)
    }

    pub(crate) fn machine(&mut self) -> Option<&mut Machine> {
        self.running.as_mut().map(|running| &mut running.machine)
    }

    /// It has a vote, as far as it knows.
    pub(crate) fn is_a_voter(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.voters.contains(&self.id))
    }

    /// Calls without an end, and what else goes on.
    pub(crate) fn open_calls(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.calls.len() + running.reads.len())
    }

    /// Clients call: some put, some read. A learner is only read from.
    pub(crate) fn call(&mut self, random: &mut Random, history: &History) {
        let Some(running) = &mut self.running else { return };
        // Reads go on where writes wait: a leader that is cut off must not serve them.
        if running.reads.len() > 6 || running.log.is_stopping() {
            return;
        }
        let own = schema::member(running.machine.store().tables(), self.id);
        let may_put = own.as_ref().is_some_and(|own| !own.is_learner) && running.calls.len() <= 9;
        let puts = if may_put { random.below(4) } else { 0 };
        let floor = history.called();
        let mut submitted = Submitted::default();
        for _ in 0..puts {
            let key = format!("key {}", random.below(20)).into_bytes().into();
            let value = vec![random.byte(); usize::try_from(random.below(60)).unwrap()].into();
            let payload = PutRequest { key, value, ..PutRequest::default() }.encode_to_vec().into();
            submitted.commands.push(running.command(CallKind::Put, Kind::Put, payload, floor));
        }
        if own.is_some_and(|own| own.name.is_empty()) {
            let payload = row(self.id, &format!("m{}", self.id), false).encode_to_vec().into();
            submitted.commands.push(running.command(
                CallKind::Publish,
                Kind::MemberAttributes,
                payload,
                floor,
            ));
        }
        if random.one_in(2) {
            running.tickets += 1;
            running.reads.insert(running.tickets, floor);
            submitted.read = Some(running.tickets);
        }
        running.submit(submitted);
    }

    /// A put, unless this member learns, and a read.
    pub(crate) fn call_once(&mut self, history: &History) {
        let Some(running) = &mut self.running else { return };
        let own = schema::member(running.machine.store().tables(), self.id);
        let mut submitted = Submitted::default();
        if own.is_some_and(|own| !own.is_learner) {
            let put = PutRequest { key: b"last".as_slice().into(), ..PutRequest::default() };
            let payload = put.encode_to_vec().into();
            submitted.commands.push(running.command(CallKind::Put, Kind::Put, payload, history.called()));
        }
        running.tickets += 1;
        running.reads.insert(running.tickets, history.called());
        submitted.read = Some(running.tickets);
        running.submit(submitted);
    }

    /// Where it stands, for a reader of a failure.
    pub(crate) fn standing(&self) -> String {
        let status = self.running.as_ref().map(|running| running.log.status());
        format!(
            "member {}: end {:?}, forgotten {}, {} calls, applied {}, {status:?}, voters {:?}, dials {:?}",
            self.id,
            self.end,
            self.never_starts,
            self.open_calls(),
            self.applied(),
            self.running.as_ref().map(|running| &running.voters),
            self.running.as_ref().map(|running| &running.peers),
        )
    }

    pub(crate) fn cluster(&self) -> Option<ClusterAt> {
        self.running.as_ref().map(Running::cluster)
    }

    /// An operator asks this member for a change of members.
    pub(crate) fn change(&mut self, kind: Kind, payload: Bytes, history: &History) {
        let Some(running) = &mut self.running else { return };
        if running.log.is_stopping() {
            return;
        }
        let command = running.command(CallKind::Change, kind, payload, history.called());
        running.submit(Submitted { commands: vec![command], ..Submitted::default() });
    }

    /// Some of the work of the state core.
    pub(crate) fn work(&mut self, random: &mut Random, history: &mut History) {
        let Some(running) = &mut self.running else { return };
        for _ in 0..=random.below(3) {
            let Some(work) = running.from_log.work.pop_front() else { break };
            match work {
                Work::Entry(entry) => running.apply(&entry, history, self.is_forged),
                Work::Hash(ask) => running.hash_asks.add(ask),
                Work::Lost(Lost { numbers, .. }) => {
                    let before = running.calls.len();
                    let is_left = |call: &Call| call.number > numbers[0] || call.kind == CallKind::Change;
                    running.calls.retain(|_, call| is_left(call));
                    history.seen.lost += (before - running.calls.len()) as u64;
                }
                Work::Read(ReadReady { ticket, index: Ok(index), .. }) => {
                    running.ready.push_back((ticket, index));
                }
                Work::Read(ReadReady { ticket, .. }) => {
                    let later = running.reads.split_off(&(ticket + 1));
                    history.seen.refused_reads += running.reads.len() as u64;
                    running.reads = later;
                }
                Work::Answer(id, outcome) => {
                    assert!(outcome.result.is_err(), "there are no leases");
                    running.answered(id, &outcome, history, self.is_forged);
                }
                Work::Leads(_) => {}
                Work::Stream { to, term } => {
                    let state = running.machine.store().saved_state().unwrap();
                    running.sending.push((to, term, copy(&state)));
                }
                Work::Install(state) => {
                    self.files.disk = self.files.received.take().unwrap();
                    let mut effects = Vec::new();
                    drop(running.machine.replace_state(*state, 0, &mut effects).unwrap());
                    // There are no leases; tokens may have ended in what is skipped.
                    assert_eq!(effects, [Effect::Tokens(TokenChange::RevokedAll)]);
                    let index = running.machine.store().applied().index;
                    history.installed(index, &running.cluster());
                    let durable = DurableIndex::of_installed(&running.machine);
                    running.events.extend([LogEvent::Applied(index), LogEvent::Durable(durable)]);
                    history.seen.states += 1;
                }
                Work::Local(request) => unreachable!("{request:?} without a reason"),
            }
        }
        running.serve_reads(history, self.is_forged);
        running.tell_hashes();
    }

    /// Its file is one of a version that knew no state hashes.
    pub(crate) fn forget_hash(&mut self) {
        self.running.as_mut().unwrap().machine.store_mut().begin_state_hash();
    }

    /// Something writes into the state that is not in the log.
    pub(crate) fn forge(&mut self) {
        self.is_forged = true;
        let store = self.running.as_mut().unwrap().machine.store_mut();
        store.table_put(SmallTable::Cluster, b"forged", b"");
    }

    /// A checkpoint of what is applied.
    pub(crate) fn save(&mut self) {
        let Some(running) = &mut self.running else { return };
        let store = running.machine.store_mut();
        let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto) else { return };
        let written = checkpoint.write().unwrap();
        let durable = DurableIndex::of(&store.finish_checkpoint(written));
        running.events.push_back(LogEvent::Durable(durable));
    }

    /// The member is asked to stop.
    pub(crate) fn stop(&mut self) {
        if let Some(running) = &mut self.running
            && !running.log.is_stopping()
        {
            running.calls.clear();
            running.reads.clear();
            running.events.push_back(LogEvent::EdgeClosed);
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.log.is_stopping())
    }

    /// It was asked to, and is done.
    pub(crate) fn is_over(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.log.is_over())
    }
}
