//! From committed entries to state and replies: a pure function of the state and the entry.
//!
//! The chain a command passes: `users`: may its caller do it -> `gates`: alarms and quota -> the
//! command itself. A refused command changes nothing but the applied index.

pub mod alarm;
pub mod authorized;
pub mod command;
pub mod compare;
mod compared;
mod fatal;
pub mod gates;
mod key_change;
pub mod kv;
mod lease_keys;
pub mod lease_lists;
pub mod lease_reports;
pub mod lessor;
pub mod local;
pub mod members;
pub mod outcome;
pub mod received;
mod reply;
mod state;
pub mod state_hashes;
pub mod txn;
pub mod txn_message;
pub mod users;
mod versions;
mod weight;

pub use fatal::FatalError;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{Applied, Durable, Store};
use revd_proto::etcdserverpb::{AlarmRequest, CompactionRequest, LeaseTimeToLiveResponse};

use crate::apply::alarm::Raised;
use crate::apply::command::{Command, CommandId, Kind, Origin};
use crate::apply::gates::Gates;
use crate::apply::key_change::KeyChange;
use crate::apply::lease_keys::{KeyLists, KeysOf};
use crate::apply::lease_lists::Listed;
use crate::apply::lease_reports::LeaseCounts;
use crate::apply::lessor::Lessor;
use crate::apply::local::{DeadlineRequest, LeaseRequest, LocalRequest};
use crate::apply::members::JudgedChange;
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::received::{ReceivedState, ReplacedState};
use crate::apply::reply::Reply;
use crate::apply::state::State;
use crate::apply::state_hashes::{HashAsk, StateHashes};
use crate::auth::rules::TokenChange;
use crate::auth::{Access, Caller};
use crate::error::Error;
use crate::lease::Leases;
use crate::schema;

/// A committed entry on its way from the log core to the state core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Position in the log.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// A `command` batch, or nothing.
    pub data: Bytes,
    /// The entry changes members.
    pub change: Option<Box<JudgedChange>>,
}

/// Work of the state core: entries in this order, and what was lost behind those that were
/// committed before; everything else overtakes entries.
#[derive(Debug)]
pub enum Work {
    /// Apply this.
    Entry(CommittedEntry),
    /// Answer this.
    Local(LocalRequest),
    /// The leader has answered a request that this member passed on to it.
    Answer(CommandId, Outcome),
    /// Reads that waited may be served, or are refused.
    Read(ReadReady),
    /// Commands that will not be answered.
    Lost(Lost),
    /// The term in which this member leads from now on, if it does; on each change.
    Leads(Option<u64>),
    /// Go on from this state, which holds the effects of all entries before; entries behind this
    /// follow it. The log begins again behind it.
    Install(Box<ReceivedState>),
    /// A member wants to know a state hash of this one, or the log core of this one does.
    Hash(HashAsk),
    /// The leader of this term needs a saved state for that member that holds the effects of all
    /// entries before.
    Stream {
        /// That member.
        to: u64,
        /// That term.
        term: u64,
    },
}

/// The end of a wait of linearizable reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadReady {
    /// The edge whose reads waited.
    pub edge: u16,
    /// Its reads up to this ticket.
    pub ticket: u64,
    /// They see everything that matters once the entry of this index is applied; or why they are
    /// refused.
    pub index: Result<u64, Error>,
}

/// Commands that are not answered when everything committed before is applied, and will not be as
/// far as this member knows. Some of them may still be applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// By edge: what it submitted up to this number ([`Submitted::number`](local::Submitted)).
    pub numbers: Vec<u64>,
    /// The answer of their callers.
    pub why: Error,
}

/// The settings of a machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineConfig {
    /// Commands proposed by this origin are answered.
    pub own: Origin,
    /// Bytes the store may have; 0 or less is no limit.
    pub quota_bytes: i64,
    /// Milliseconds a new leader adds to every lease: an election's time.
    pub lease_extension: u64,
}

/// The last log entry whose effects a checkpoint has made durable: the log may let go of everything
/// up to it. The effects of an entry that was only applied would be lost in a crash, so this is
/// made of a finished checkpoint and of nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableIndex(u64);

impl DurableIndex {
    /// As of this checkpoint.
    #[must_use]
    pub fn of(checkpoint: &Durable) -> Self {
        Self(checkpoint.applied.index)
    }

    /// As of a received state that has taken the machine's place: its file is the tree file.
    #[must_use]
    pub fn of_installed(machine: &Machine) -> Self {
        debug_assert!(!machine.store().has_unsaved(), "a received state is in its file");
        Self(machine.store().applied().index)
    }

    /// The entry's index.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// State core view: the state, and what the leader knows besides. `now` is in milliseconds of a
/// clock that never goes back; it decides about the leader's deadlines only, never about state.
#[derive(Debug)]
pub struct Machine {
    state: State,
    config: MachineConfig,
    lessor: Lessor,
    key_lists: KeyLists,
    /// Clients can come.
    serves: bool,
    raised: Raised,
    /// Members whose data is damaged, or differs from that of others.
    corrupt: Vec<u64>,
    hashes: StateHashes,
    access: Access,
    /// The caller of the last command that was in somebody's name.
    last_caller: Caller,
    /// The entry that is applied in part.
    current: Option<Applying>,
}

/// An entry and those of its commands that are to come.
#[derive(Debug)]
struct Applying {
    index: u64,
    term: u64,
    /// This process proposed it, so that somebody may wait for the outcomes.
    is_own: bool,
    commands: std::vec::IntoIter<Command>,
    /// The log core's verdict, if the entry changes members.
    verdict: Option<Result<(), Error>>,
}

/// The next step of the entry that is being applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A command.
    Command,
    /// A command that visits so many keys that it takes long.
    LongCommand,
    /// Nothing: the entry is applied.
    Nothing,
}

impl Machine {
    /// Applies to `store`.
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn new(store: Store, config: MachineConfig) -> revd_engine::Result<Self> {
        let (raised, corrupt) = (Raised::of(store.tables()), alarm::corrupt_members(store.tables()));
        let hashes = StateHashes::new(store.applied().index, store.state_hash());
        let (leases, access) = (Leases::load(&store)?, Access::of(store.tables()));
        let (state, lessor) = (State { store, leases }, Lessor::default());
        let key_lists = KeyLists::default();
        let (serves, current, last_caller) = (false, None, Caller::Nobody);
        let own = Self {
            state,
            config,
            lessor,
            key_lists,
            serves,
            raised,
            corrupt,
            hashes,
            access,
            last_caller,
            current,
        };
        Ok(own)
    }

    /// The state.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.state.store
    }

    /// The state, for publication and checkpoints.
    pub fn store_mut(&mut self) -> &mut Store {
        &mut self.state.store
    }

    /// The leases.
    #[must_use]
    pub fn leases(&self) -> &Leases {
        &self.state.leases
    }

    /// Leases granted, renewed and ended since the start of the process.
    #[must_use]
    pub fn lease_counts(&self) -> LeaseCounts {
        self.lessor.counts()
    }

    /// Clients can come from now on: keepalives by way of so many edges, which are asked before it
    /// is decided that a lease is over.
    pub fn serve(&mut self, edges: usize) {
        self.serves = true;
        self.lessor.serve(edges);
    }

    /// This member leads in this term, or does not lead; true when it has begun or ceased to,
    /// which may take many calls if there are many leases. Before [`Machine::serve`] it does
    /// not, as far as leases go: while a start applies the log, which may take longer than they
    /// live, nobody can keep them alive.
    pub fn set_leadership(&mut self, term: Option<u64>, now: u64, effects: &mut Vec<Effect>) -> bool {
        let term = term.filter(|_| self.serves);
        self.lessor.set_term(term, &self.state, now, self.config.lease_extension, effects)
    }

    /// Carries out a local request about leases; not while the lessor is loading.
    pub fn lease_request(
        &mut self,
        caller: CommandId,
        request: LeaseRequest,
        now: u64,
        effects: &mut Vec<Effect>,
    ) {
        match request {
            LeaseRequest::TimeToLive { lease, keys: true } if self.state.leases.has_many_keys(lease) => {
                self.key_lists.ask(caller, KeysOf { lease, is_alone: false });
            }
            LeaseRequest::Keys { lease } => self.key_lists.ask(caller, KeysOf { lease, is_alone: true }),
            LeaseRequest::KeyBytes { lease } => lease_keys::tell_bytes(caller, &self.state, lease, effects),
            request => self.lessor.request(&self.state, caller, request, now, effects),
        }
    }

    /// Whether the lease is known that a request asks about, if it asks about one.
    #[must_use]
    pub fn knows_lease_of(&self, request: LeaseRequest) -> bool {
        match request {
            LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease })
            | LeaseRequest::TimeToLive { lease, .. } => self.state.leases.get(lease).is_some(),
            _ => true,
        }
    }

    /// A caller waits for the keys of a lease that has many.
    #[must_use]
    pub fn is_listing_keys(&self) -> bool {
        !self.key_lists.is_empty()
    }

    /// Goes on with the list of such keys; not while the lessor is loading.
    pub fn list_keys(&mut self, now: u64, effects: &mut Vec<Effect>) {
        let lessor = &self.lessor;
        if lessor.is_loading() {
            return;
        }
        self.key_lists.go_on(&mut self.state, effects, |state, KeysOf { lease, is_alone }| {
            match lessor.term() {
                _ if is_alone => Ok(LeaseTimeToLiveResponse::default()),
                Some(_) => Ok(lessor.time_to_live(state, lease, false, now)),
                None => Err(Error::NotLeader),
            }
        });
    }

    /// The lessor, which answers keepalives.
    #[must_use]
    pub fn lessor(&self) -> &Lessor {
        &self.lessor
    }

    /// Goes on with a list of all leases, if somebody wants one; the list when it is made.
    pub fn list_leases(&mut self, revision: i64) -> Option<Listed> {
        self.lessor.list(Some(&self.state.leases), revision)
    }

    /// Hands out what answers keepalives, for as long as the machine is where it cannot.
    pub fn lend_lessor(&mut self) -> Lessor {
        std::mem::replace(&mut self.lessor, Lessor::stand_in())
    }

    /// Takes it back.
    pub fn return_lessor(&mut self, lessor: Lessor, effects: &mut Vec<Effect>) {
        let stand_in = std::mem::replace(&mut self.lessor, lessor);
        self.lessor.catch_up(&stand_in, self.state.store.revision(), effects);
    }

    /// Goes on from a received state, not within an entry. Callers that wait for this member as a
    /// leader are refused: it has not been one.
    ///
    /// # Errors
    /// [`FatalError::Received`] when it is not newer than the machine's; the member must stop.
    pub fn replace_state(
        &mut self,
        received: ReceivedState,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<ReplacedState, FatalError> {
        assert!(!self.is_within_entry(), "a state takes the place of one with half an entry");
        let (applied, before) = (self.store().applied().index, self.store().revision());
        let (index, revision) = (received.applied().index, received.revision());
        if applied >= index || before > revision {
            return Err(FatalError::Received { index, revision, applied, before });
        }
        self.set_leadership(None, now, effects);
        self.key_lists.refuse_all(before, &Error::NoLeader, effects);
        let replaced = received.replace(&mut self.state);
        self.hashes = StateHashes::new(index, self.state.store.state_hash());
        self.look_at_alarms();
        self.access = Access::of(self.state.store.tables());
        // Changes that end tokens may be among those that are skipped.
        effects.push(Effect::Tokens(TokenChange::RevokedAll));
        Ok(replaced)
    }

    /// Applies the next entry, all of it.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn apply(
        &mut self,
        entry: &CommittedEntry,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<(), FatalError> {
        self.begin(entry)?;
        while self.current.is_some() {
            self.step(now, effects)?;
        }
        Ok(())
    }

    /// Begins with the next entry; its commands are carried out by
    /// [`Machine::step`], until there are no more.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn begin(&mut self, entry: &CommittedEntry) -> Result<(), FatalError> {
        let applied = self.state.store.applied().index;
        if entry.index != applied + 1 || self.current.is_some() {
            return Err(FatalError::Order { index: entry.index, applied });
        }
        let (is_own, commands) = if entry.data.is_empty() {
            (false, Vec::new())
        } else {
            let batch = command::decode(entry.data.clone())
                .map_err(|source| FatalError::Entry { index: entry.index, source })?;
            (batch.origin == self.config.own, batch.commands)
        };
        if let Some(change) = &entry.change {
            schema::put_conf_state(&mut self.state.store, &change.conf_state);
        }
        let verdict = entry.change.as_ref().map(|change| change.verdict.clone());
        let commands = commands.into_iter();
        self.current = Some(Applying { index: entry.index, term: entry.term, is_own, commands, verdict });
        self.end_if_done();
        Ok(())
    }

    /// An entry is applied in part: nothing may be saved now.
    #[must_use]
    pub fn is_within_entry(&self) -> bool {
        self.current.is_some()
    }

    /// The next step of the entry that is being applied.
    #[must_use]
    pub fn next(&self) -> Next {
        match self.current.as_ref().map(|current| current.commands.as_slice()) {
            None | Some([]) => Next::Nothing,
            Some([command, ..]) if weight::is_long(command, &self.state, &self.access) => Next::LongCommand,
            Some(_) => Next::Command,
        }
    }

    /// Carries out the next command of the entry.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn step(&mut self, now: u64, effects: &mut Vec<Effect>) -> Result<(), FatalError> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let (index, term, is_own) = (current.index, current.term, current.is_own);
        let Some(command) = current.commands.next() else { return Ok(()) };
        let verdict = current.verdict.take();
        let effect = self.run(&command, Moment { index, term, now, is_own, verdict }, effects);
        let damaged = !self.raised.corrupt
            && matches!(&effect, Effect::Reply(_, outcome) if outcome.result == Err(Error::Corrupt));
        if damaged {
            let source = revd_engine::Error::Corrupt("a record could not be read while applying".to_owned());
            return Err(FatalError::Engine { index, source });
        }
        if is_own {
            effects.push(effect);
        }
        self.end_if_done();
        Ok(())
    }

    /// With its last command an entry counts as applied.
    fn end_if_done(&mut self) {
        if let Some(Applying { index, term, commands, .. }) = &self.current
            && commands.as_slice().is_empty()
        {
            self.state.store.set_applied(Applied { index: *index, term: *term });
            self.hashes.push(self.state.store.state_hash());
            self.current = None;
        }
    }

    fn carry_out(&mut self, command: &Command, moment: Moment, effects: &mut Vec<Effect>) -> Effect {
        let payload = command.payload.clone();
        let gates = self.gates();
        let Self { state, lessor, .. } = self;
        let result = match command.kind {
            Kind::Alarm | Kind::Corrupt => {
                let is_found = command.kind == Kind::Corrupt;
                let result = AlarmRequest::decode(payload)
                    .map_err(Error::from)
                    .map(|request| alarm::set(&mut state.store, &request, is_found));
                self.look_at_alarms();
                result
            }
            Kind::BeginHash => {
                state.store.begin_state_hash();
                Ok(Bytes::new())
            }
            Kind::Compact => return self.compact(command, gates),
            Kind::LeaseGrant => {
                gates.pass(state, gates::LEASE_COST, |state| lessor.grant(state, payload, moment.now))
            }
            Kind::LeaseRevoke => gates.pass(state, 0, |state| lessor.revoke(state, payload, effects)),
            Kind::LeaseExpire => {
                gates.pass(state, 0, |state| lessor.expire(state, payload, moment.term, effects))
            }
            Kind::LeaseCheckpoint => lessor.checkpoint(state, payload),
            Kind::MemberAdd | Kind::MemberRemove | Kind::MemberUpdate | Kind::MemberPromote => {
                members::change(&mut state.store, command, moment.verdict.as_ref())
            }
            Kind::MemberAttributes => members::set_attributes(&mut state.store, &payload),
            Kind::ClusterVersion => versions::set_cluster(&mut state.store, &payload),
            Kind::Downgrade => versions::set_downgrade(&mut state.store, &payload),
            // Changes of keys are `change`'s, and an envelope is opened before.
            Kind::Put | Kind::DeleteRange | Kind::Txn | Kind::Authorized => {
                Err(Error::Malformed("an envelope without a command"))
            }
            Kind::AuthEnable
            | Kind::AuthDisable
            | Kind::Authenticate
            | Kind::UserAdd
            | Kind::UserDelete
            | Kind::UserChangePassword
            | Kind::UserGrantRole
            | Kind::UserRevokeRole
            | Kind::RoleAdd
            | Kind::RoleDelete
            | Kind::RoleGrantPermission
            | Kind::RoleRevokePermission => self.change_users(command, moment.index, effects),
        };
        self.reply(command, result)
    }

    /// Carries out a command that changes keys.
    fn change(&mut self, command: &Command, change: Result<KeyChange, Error>, is_wanted: bool) -> Effect {
        let gates = self.gates();
        let (state, reply) = (&mut self.state, Reply::new(is_wanted));
        let reply = change.and_then(|change| match &change {
            KeyChange::Put(put) => {
                gates.pass(state, gates::put_cost(put), |state| kv::put(state, put, reply))
            }
            KeyChange::DeleteRange(delete) => {
                gates.pass(state, 0, |state| kv::delete_range(state, delete, reply))
            }
            KeyChange::Txn(request) => {
                gates.pass(state, gates::txn_cost(request), |state| txn::apply(state, request, reply))
            }
        });
        let (result, rest) = match reply.map(Reply::finish) {
            Ok((body, rest)) => (Ok(body), rest.into()),
            Err(error) => (Err(error), Rest::NONE),
        };
        Effect::Reply(command.id, Outcome { revision: self.state.store.revision(), result, rest })
    }

    fn gates(&self) -> Gates {
        Gates { raised: self.raised, quota_bytes: self.config.quota_bytes }
    }

    /// Dead records count for the quota: in its last quarter they go, but for tombstones that the
    /// saved index still needs.
    pub(crate) fn free_where_nearly_full(&mut self) {
        let in_use = self.state.store.sizes().in_use;
        if !gates::fits(self.config.quota_bytes, in_use / 3 * 4, 1) {
            self.state.store.free_all_compacted();
        }
    }

    fn compact(&mut self, command: &Command, gates: Gates) -> Effect {
        let request = CompactionRequest::decode(command.payload.clone()).map_err(Error::from);
        let result = request.as_ref().map_err(Clone::clone).and_then(|request| {
            gates.pass(&mut self.state, 0, |state| kv::compact(&mut state.store, request))
        });
        let waits = result.is_ok() && request.is_ok_and(|request| request.physical);
        if waits {
            self.state.store.free_all_compacted();
        }
        if result.is_ok() {
            self.free_where_nearly_full();
        }
        let outcome = Outcome { revision: self.state.store.revision(), result, rest: Rest::NONE };
        if waits {
            Effect::ReplyWhenCompacted(command.id, outcome, self.state.store.compact_revision())
        } else {
            Effect::Reply(command.id, outcome)
        }
    }
}

/// When a command is applied: in the log, and by the clock.
#[derive(Debug, Clone)]
struct Moment {
    index: u64,
    term: u64,
    now: u64,
    /// This run of the process has proposed it: somebody may wait for its reply.
    is_own: bool,
    /// Of the change of members that it asks for.
    verdict: Option<Result<(), Error>>,
}

#[cfg(test)]
mod tests;
