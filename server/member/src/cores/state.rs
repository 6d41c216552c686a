//! The state core: apply, publish, answer, save. The only writer of the engine.
//!
//! Committed entries wait in the backlog and are applied for a millisecond at a time; after that
//! others of this core have their turn. A command that visits very many keys is carried out on a
//! helper thread, which the whole machine is handed to: later entries wait, but keepalives are
//! answered meanwhile by the [`Lessor`], which stays here. Lease requests never wait for the
//! backlog: an answer that a client has seen came from what was applied before, so a request that
//! comes after it sees it too.

use std::collections::VecDeque;

use revd_engine::mvcc::WrittenCheckpoint;

use crate::apply::command::CommandId;
use crate::apply::lease_lists::Listed;
use crate::apply::lessor::Lessor;
use crate::apply::local::{LeaseRequest, LocalKind, LocalRequest};
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::state_hashes::HashAsks;
use crate::apply::{CommittedEntry, DurableIndex, FatalError, Lost, Machine, Next, Work};
use crate::cores::effects::{Note, Standpoint, StateEffects, StateEvent};
use crate::cores::installing::{InstallStep, Installing};
use crate::cores::lease_rights::LeaseRightsAsked;
use crate::cores::long::{FinishedCommand, LongCommand, LongList};
use crate::cores::member_callers::{MemberCaller, MemberCallers};
use crate::cores::reads::PendingReads;
use crate::cores::saving::{Haste, Saving};
use crate::error::Error;
use crate::limits;
use crate::mutants::{self, Mutant};

/// State core view.
pub struct StateCore {
    /// None while a long command is carried out elsewhere; then the lessor is here.
    machine: Option<Box<Machine>>,
    lessor: Option<Lessor>,
    edges: usize,
    standpoint: Standpoint,
    /// The term in which this member leads, if it does.
    leads_in: Option<u64>,
    /// Entries that wait for their turn and, while too much is unsaved, for the checkpoint.
    backlog: VecDeque<CommittedEntry>,
    /// Lease requests.
    lease_requests: VecDeque<PendingLeaseRequest>,
    /// Lease requests that wait for the machine to come back.
    deferred: VecDeque<PendingLeaseRequest>,
    /// Requests about leases that this leader may come to know by entries that are in its log.
    early: Vec<PendingLeaseRequest>,
    /// Callers whose rights depend on keys of leases.
    rights_asked: LeaseRightsAsked,
    /// Callers that will get the list of all leases that is being encoded.
    listing: Vec<CommandId>,
    /// Linearizable reads that wait for an entry to be applied.
    reads: PendingReads,
    /// Members that want to know a state hash.
    hash_asks: HashAsks,
    /// This member is known to be corrupt.
    is_corrupt: bool,
    /// Losses to tell of once the entry of an index is applied and its callers are answered.
    losses: VecDeque<(u64, Lost)>,
    /// Index of the last entry that came.
    received: u64,
    member_callers: MemberCallers,
    effects: Vec<Effect>,
    /// Something was applied that is not published.
    has_news: bool,
    /// The revision that is published, and the index of the last entry that is whole in it.
    revision: i64,
    published: u64,
    /// There are more keys to forget revisions of.
    is_forgetting: bool,
    /// A checkpoint that was written, until the machine is here.
    written: Option<(Box<WrittenCheckpoint>, bool)>,
    saving: Saving,
    installing: Installing,
    /// Members that are to be sent the saved state, and the terms in whose name.
    to_stream: Vec<StateRequest>,
    is_stopping: bool,
}

/// A member that needs a state.
#[derive(Debug)]
struct StateRequest {
    to: u64,
    /// The term of the leader that asks.
    term: u64,
    /// The state holds the effects of everything up to here.
    behind: u64,
}

impl StateCore {
    /// Goes on with a recovered machine, whose View is published, for so many edges.
    #[must_use]
    pub fn new(machine: Machine, edges: usize) -> Self {
        let applied = machine.store().applied().index;
        Self {
            revision: machine.store().revision(),
            published: applied,
            received: applied,
            lessor: None,
            edges,
            standpoint: Standpoint { is_ready: false },
            leads_in: None,
            backlog: VecDeque::new(),
            lease_requests: VecDeque::new(),
            deferred: VecDeque::new(),
            early: Vec::new(),
            rights_asked: LeaseRightsAsked::default(),
            listing: Vec::new(),
            reads: PendingReads::default(),
            hash_asks: HashAsks::default(),
            is_corrupt: machine.is_corrupt(),
            losses: VecDeque::new(),
            member_callers: MemberCallers::default(),
            effects: Vec::new(),
            has_news: false,
            is_forgetting: false,
            written: None,
            saving: Saving::default(),
            installing: Installing::default(),
            to_stream: Vec::new(),
            is_stopping: false,
            machine: Some(Box::new(machine)),
        }
    }

    /// Checkpoints of little are put off so often.
    pub fn put_off_checkpoints(&mut self, times: u32) {
        self.saving.put_off_little(times);
    }

    /// The machine, unless a long command has it; for simulators.
    #[must_use]
    pub fn machine(&self) -> Option<&Machine> {
        self.machine.as_deref()
    }

    /// Entries that wait to be applied.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.backlog.len()
    }

    /// There is something to do in another turn, also without an event.
    #[must_use]
    pub fn can_go_on(&self) -> bool {
        let is_listing = |lessor: &Lessor| self.listing.is_empty() && lessor.is_listing();
        let Some(machine) = &self.machine else {
            // A member that does not lead lists what the machine knows.
            return self.lessor.as_ref().is_some_and(|lessor| lessor.term().is_some() && is_listing(lessor));
        };
        is_listing(machine.lessor())
            || machine.lessor().is_changing()
            || !(self.lease_requests.is_empty() || self.has_yet_to_lead(machine))
            || !self.rights_asked.is_empty()
            || self.is_forgetting
            || machine.is_within_entry()
            || machine.is_listing_keys()
            || (!self.backlog.is_empty() && !self.installing.is_under_way() && has_room(machine))
    }

    /// Everything is applied and saved, and nothing more will come.
    #[must_use]
    pub fn is_over(&self, effects: &mut impl StateEffects) -> bool {
        let Some(machine) = &self.machine else { return false };
        if self.is_stopping && self.saving.finds_no_room() && machine.store().has_unsaved() {
            effects.note(Note::StoppedUnsaved);
            return true; // the log has everything
        }
        let is_at_rest = self.saving.is_idle() && !self.installing.is_under_way();
        self.is_stopping && !machine.is_within_entry() && self.backlog.is_empty() && is_at_rest
    }

    /// Takes an event in; [`StateCore::turn`] follows the last one.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn receive(&mut self, event: StateEvent, effects: &mut impl StateEffects) -> Result<(), FatalError> {
        match event {
            StateEvent::Work(work) => {
                work.into_iter().for_each(|work| self.take_work(work, effects));
            }
            StateEvent::CheckpointDue => self.saving.due(),
            StateEvent::Written { written, made_room } => self.written = Some((written, made_room)),
            StateEvent::Finished(command) => self.finished(command, effects)?,
            StateEvent::Listed(outcome) => self.listed(&outcome, effects),
            StateEvent::Installed => self.installing.named(),
            StateEvent::ViewsMayHaveEnded => {
                self.machine.iter_mut().for_each(|machine| machine.store_mut().free_unneeded());
            }
            StateEvent::LogClosed => self.is_stopping = true,
        }
        Ok(())
    }

    fn take_work(&mut self, work: Work, effects: &mut impl StateEffects) {
        match work {
            Work::Entry(entry) => {
                self.received = entry.index;
                self.backlog.push_back(entry);
            }
            Work::Local(request) => self.take_request(request, effects),
            // The header of a reply says how far this member is, not the leader.
            Work::Answer(id, outcome) => {
                effects.answer(id, Outcome { revision: self.revision, ..outcome });
            }
            Work::Read(ready) => self.reads.add(ready, self.published, effects),
            Work::Hash(ask) => self.hash_asks.add(ask),
            Work::Lost(lost) => self.losses.push_back((self.received, lost)),
            Work::Leads(term) => self.leads_in = term,
            // The state has the effects of all entries that wait.
            Work::Install(state) => {
                self.backlog.clear();
                self.received = state.applied().index;
                self.installing.begin(state);
            }
            Work::Stream { to, term } => {
                self.to_stream.push(StateRequest { to, term, behind: self.received });
            }
        }
    }

    fn take_request(&mut self, request: LocalRequest, effects: &mut impl StateEffects) {
        let LocalRequest { id, kind, from } = request;
        let own_id = match from {
            None => Some(id),
            Some(member) => self.member_callers.enter(MemberCaller { member, id }),
        };
        match (own_id, kind, from) {
            (Some(id), LocalKind::Defragment, _) => self.saving.defragment(id),
            // The log core answers.
            (
                Some(_),
                LocalKind::MoveLeader { .. } | LocalKind::PeerVersions | LocalKind::MayChange(_),
                _,
            ) => {}
            (Some(caller), LocalKind::Lease(request), _) => {
                let behind = effects.last_index();
                self.lease_requests.push_back(PendingLeaseRequest { caller, request, behind });
            }
            (Some(caller), LocalKind::MayCaller(rights), _) => self.rights_asked.add(caller, rights),
            (None, _, member) => {
                let result = Err(Error::TooManyRequests);
                let outcome = Outcome { revision: self.revision, result, rest: Rest::NONE };
                member.into_iter().for_each(|member| effects.answer_member(member, id, outcome.clone()));
            }
        }
    }

    fn finished(
        &mut self,
        command: FinishedCommand,
        effects: &mut impl StateEffects,
    ) -> Result<(), FatalError> {
        let FinishedCommand { mut machine, effects: done, result } = command;
        result?;
        self.effects.extend(done);
        if let Some(lessor) = self.lessor.take() {
            machine.return_lessor(lessor, &mut self.effects);
        }
        self.deferred.append(&mut self.lease_requests);
        std::mem::swap(&mut self.deferred, &mut self.lease_requests);
        self.has_news = true;
        if !machine.is_within_entry() {
            effects.applied(&mut machine);
        }
        self.machine = Some(machine);
        Ok(())
    }

    /// One turn: the work before other tasks of the thread go on.
    ///
    /// # Errors
    /// [`FatalError`]; the member must stop.
    pub fn turn(
        &mut self,
        standpoint: Standpoint,
        effects: &mut impl StateEffects,
    ) -> Result<(), FatalError> {
        self.standpoint = standpoint;
        let now = effects.microseconds() / 1_000;
        if let Some(mut machine) = self.machine.take() {
            match self.turn_of(&mut machine, now, effects)? {
                // A new leader comes to know its leases first: lease requests would wait for the
                // command as well.
                Next::LongCommand if !machine.lessor().is_loading() => {
                    self.lessor = Some(machine.lend_lessor());
                    effects.run(LongCommand { machine, now });
                }
                Next::LongCommand | Next::Command | Next::Nothing => self.machine = Some(machine),
            }
        } else {
            self.answer_without_machine(now, effects);
        }
        self.list_leases(effects);
        self.tell_losses(effects);
        Ok(())
    }

    /// A turn with the machine here; what comes next in the log.
    fn turn_of(
        &mut self,
        machine: &mut Machine,
        now: u64,
        effects: &mut impl StateEffects,
    ) -> Result<Next, FatalError> {
        if let Some((written, made_room)) = self.written.take() {
            self.checkpoint_written(machine, *written, made_room, effects);
        }
        if self.installing.is_under_way() {
            self.install(machine, now, effects)?;
        }
        self.stream(machine, effects);
        self.lead(machine, now, effects);
        self.carry_out_lease_requests(machine, now, effects);
        self.rights_asked.answer(machine, || effects.microseconds(), &mut self.effects);
        machine.list_keys(now, &mut self.effects);
        let next = self.apply(machine, now, effects)?;
        effects.counted(machine.lease_counts());
        self.publish(machine, effects);
        for (to, point) in self.hash_asks.answers(machine.hashes()) {
            effects.hashed(to, point, machine.corrupt_members());
        }
        self.is_forgetting = machine.store_mut().forget_compacted(limits::FORGET_KEYS_PER_TURN);
        let is_within = machine.is_within_entry() && !mutants::is(Mutant::CheckpointWithinEntry);
        if !is_within && !self.installing.is_under_way() {
            let haste = match (self.is_stopping, self.to_stream.is_empty()) {
                (true, _) => Haste::Stopping,
                (false, false) => Haste::Streaming,
                (false, true) => Haste::None,
            };
            self.saving.schedule(machine, haste, effects);
        }
        Ok(next)
    }

    /// Hands out the state for members that lag behind. They may have become members only lately: a
    /// state from before that is of no use to them.
    fn stream(&mut self, machine: &Machine, effects: &mut impl StateEffects) {
        if self.to_stream.is_empty() {
            return;
        }
        let saved = machine.store().saved_state();
        let applied = saved.as_ref().map_or(0, |state| state.applied().index);
        let is_there =
            |asked: &mut StateRequest| asked.behind <= applied || mutants::is(Mutant::SentStateTooOld);
        for StateRequest { to, term, .. } in self.to_stream.extract_if(.., is_there) {
            effects.stream(to, term, saved.clone());
        }
    }

    /// Goes on with the state that is to take the machine's place. No caller is told more than by
    /// entries: the outcomes of what it holds are lost.
    fn install(
        &mut self,
        machine: &mut Machine,
        now: u64,
        effects: &mut impl StateEffects,
    ) -> Result<(), FatalError> {
        let is_writing = self.saving.is_writing() && !mutants::is(Mutant::InstallDuringCheckpoint);
        match self.installing.next(!machine.is_within_entry() && !is_writing) {
            InstallStep::Wait => {}
            InstallStep::Name => effects.install(),
            InstallStep::Replace(state) => {
                let replaced = machine.replace_state(*state, now, &mut self.effects)?;
                effects.discard(replaced);
                for (id, outcome) in self.saving.replaced(machine) {
                    effects.answer(id, outcome);
                }
                effects.durable(DurableIndex::of_installed(machine));
                self.has_news = true;
            }
        }
        Ok(())
    }

    /// A new leader has not applied an entry of its term. Those before it may end leases, by the
    /// word of an earlier leader: nobody is told before that a lease lives.
    fn has_yet_to_lead(&self, machine: &Machine) -> bool {
        self.leads_in.is_some_and(|term| machine.store().applied().term < term)
    }

    fn lead(&mut self, machine: &mut Machine, now: u64, effects: &mut impl StateEffects) {
        if self.standpoint.is_ready {
            machine.serve(self.edges);
        }
        let term = self.leads_in.filter(|_| !self.has_yet_to_lead(machine));
        let is_new = machine.set_leadership(term, now, &mut self.effects);
        let leases = machine.leases().len();
        if is_new && leases > 0 {
            effects.note(Note::LeasesReset { leads: term.is_some(), leases });
        }
    }

    /// Lease requests, in their order, for a while: some list keys. The rest comes in the next
    /// turn. They wait for a new leader to lead, and to know all leases.
    fn carry_out_lease_requests(&mut self, machine: &mut Machine, now: u64, effects: &impl StateEffects) {
        if machine.lessor().is_loading() || self.has_yet_to_lead(machine) {
            return;
        }
        let began = effects.microseconds();
        for step in 1..=limits::LEASE_REQUESTS_PER_TURN {
            let Some(pending) = self.lease_requests.pop_front() else { return };
            let PendingLeaseRequest { caller, request, behind } = pending;
            let is_early = behind > machine.store().applied().index && !machine.knows_lease_of(request);
            if is_early && machine.lessor().term().is_some() {
                self.early.push(pending);
            } else {
                machine.lease_request(caller, request, now, &mut self.effects);
            }
            if step.is_multiple_of(4) && effects.microseconds() >= began + limits::APPLY_MICROSECONDS {
                return;
            }
        }
    }

    /// While the machine is away, those lease requests are carried out that only need to know
    /// deadlines.
    fn answer_without_machine(&mut self, now: u64, effects: &mut impl StateEffects) {
        let term = self.leads_in;
        let Some(lessor) = self.lessor.as_mut() else { return };
        for pending in self.lease_requests.drain(..) {
            let PendingLeaseRequest { caller, request, behind } = pending;
            match request {
                LeaseRequest::Deadline(request)
                    if lessor.term() == term && (behind <= self.published || lessor.knows(request)) =>
                {
                    lessor.deadline_request(caller, request, self.revision, now, &mut self.effects);
                }
                _ => self.deferred.push_back(pending),
            }
        }
        self.carry_out(effects);
    }

    /// Applies for a while.
    fn apply(
        &mut self,
        machine: &mut Machine,
        now: u64,
        effects: &mut impl StateEffects,
    ) -> Result<Next, FatalError> {
        let began = effects.microseconds();
        for step in 1_u32.. {
            match machine.next() {
                Next::LongCommand => return Ok(Next::LongCommand),
                Next::Command => {
                    machine.step(now, &mut self.effects)?;
                }
                Next::Nothing => {
                    let waits = self.saving.has_to_save(machine) || self.installing.is_under_way();
                    if waits || !has_room(machine) {
                        break;
                    }
                    let Some(entry) = self.backlog.pop_front() else { break };
                    self.saving.entry(entry.data.len());
                    machine.begin(&entry)?;
                }
            }
            if !machine.is_within_entry() {
                effects.applied(machine);
            }
            self.has_news = true;
            if step.is_multiple_of(4) && effects.microseconds() >= began + limits::APPLY_MICROSECONDS {
                break;
            }
        }
        Ok(Next::Nothing)
    }

    /// Makes what was applied visible, then answers: a reply never overtakes the View that holds
    /// its write.
    fn publish(&mut self, machine: &mut Machine, effects: &mut impl StateEffects) {
        let is_new = std::mem::take(&mut self.has_news);
        if is_new {
            if mutants::is(Mutant::AnswerBeforeView) {
                self.carry_out(effects);
            }
            self.show(machine, effects);
        }
        self.carry_out(effects);
        if is_new {
            effects.tell_of_view();
        }
    }

    fn show(&mut self, machine: &mut Machine, effects: &mut impl StateEffects) {
        // Before the View: who waits until an entry is in one finds the token that it has made.
        for effect in self.effects.extract_if(.., |effect| matches!(effect, Effect::Tokens(_))) {
            if let Effect::Tokens(change) = effect {
                effects.tokens(change);
            }
        }
        self.revision = machine.store().revision();
        let applied = machine.store().applied().index;
        let leases = machine.leases().len();
        if self.is_corrupt != machine.is_corrupt() {
            self.is_corrupt = machine.is_corrupt();
            effects.corrupt(self.is_corrupt); // before the View
        }
        effects.rights_needed(machine.needs_rights()); // before the View
        effects.publish(machine.store_mut().view(), applied, leases);
        self.published = applied;
        let is_ready = |pending: &mut PendingLeaseRequest| pending.behind <= applied;
        self.lease_requests.extend(self.early.extract_if(.., is_ready));
        self.reads.published(applied, effects);
    }

    /// Tells of losses behind entries whose callers have their answers. Callers that only wait for
    /// the space of a compaction get theirs before: nothing of theirs is lost.
    fn tell_losses(&mut self, effects: &mut impl StateEffects) {
        let is_over = |index: u64| index <= self.published || mutants::is(Mutant::LossBeforeAnswers);
        while let Some((_, lost)) = self.losses.pop_front_if(|(index, _)| is_over(*index)) {
            for (id, outcome) in self.saving.take_compacted() {
                effects.answer(id, outcome);
            }
            effects.lost(lost);
        }
    }

    fn carry_out(&mut self, effects: &mut impl StateEffects) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Reply(id, outcome) => answer(&mut self.member_callers, id, outcome, effects),
                Effect::ReplyWhenCompacted(id, outcome, at) => self.saving.when_compacted(id, outcome, at),
                Effect::Hear(question) => effects.hear(question),
                Effect::Tokens(change) => effects.tokens(change),
            }
        }
    }

    fn checkpoint_written(
        &mut self,
        machine: &mut Machine,
        written: WrittenCheckpoint,
        made_room: bool,
        effects: &mut impl StateEffects,
    ) {
        let saved = self.saving.written(machine, written, made_room, self.is_stopping);
        // Views made from now on read the new tree, so that the memory of the old tail can go.
        self.show(machine, effects);
        for (id, outcome) in saved.answers {
            effects.answer(id, outcome);
        }
        effects.durable(saved.index);
    }

    /// Goes on with the list of all leases, if a caller wants one; a long one is encoded elsewhere.
    fn list_leases(&mut self, effects: &mut impl StateEffects) {
        if !self.listing.is_empty() {
            return;
        }
        let listed = match (&mut self.machine, &mut self.lessor) {
            (Some(machine), _) => machine.list_leases(self.revision),
            (None, Some(lessor)) => lessor.list(None, self.revision),
            (None, None) => None,
        };
        let Some(Listed { askers, revision, list }) = listed else { return };
        self.listing = askers;
        if list.is_long() {
            effects.encode(LongList { list, revision });
        } else {
            self.listed(&Outcome { revision, result: Ok(list.encode()), rest: Rest::NONE }, effects);
        }
    }

    fn listed(&mut self, outcome: &Outcome, effects: &mut impl StateEffects) {
        for id in self.listing.drain(..) {
            answer(&mut self.member_callers, id, outcome.clone(), effects);
        }
    }
}

/// A lease request and its caller, who may know of leases by entries up to an index.
#[derive(Debug, Clone, Copy)]
struct PendingLeaseRequest {
    caller: CommandId,
    request: LeaseRequest,
    behind: u64,
}

/// Answers a caller of this member or another one.
fn answer(callers: &mut MemberCallers, id: CommandId, outcome: Outcome, effects: &mut impl StateEffects) {
    match callers.leave(id) {
        Some(MemberCaller { member, id }) => effects.answer_member(member, id, outcome),
        None => {
            if mutants::is(Mutant::AnswerDoubled) {
                effects.answer(id, outcome.clone());
            }
            effects.answer(id, outcome);
        }
    }
}

/// The disk sets the pace of what is applied.
fn has_room(machine: &Machine) -> bool {
    machine.store().unsaved_bytes() < limits::UNSAVED_BYTES_MAX
}
