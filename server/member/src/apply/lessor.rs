//! Commands about leases, and requests that only the leader answers.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseTimeToLiveResponse,
};

use crate::apply::command::CommandId;
use crate::apply::lease_lists::{LeaseLists, Listed};
use crate::apply::lease_reports::{CHECKPOINT_FIRST, ExpiredLeases, LOOK_AGAIN, LeaseCounts, RemainingTtls};
use crate::apply::local::{DeadlineRequest, Heard, LeaseRequest};
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::state::State;
use crate::error::Error;
use crate::lease::{ExpiryCheck, KeepaliveResult, LeaseDeadlines, Leases};
use crate::limits;
use crate::mutants::{self, Mutant};

/// Leader's view. The edges are asked about keepalives that may be on their way.
#[derive(Debug, Default)]
pub struct Lessor {
    deadlines: LeaseDeadlines,
    /// Keepalives that wait until their lease, which is over, is revoked.
    waiting: BTreeMap<i64, Vec<CommandId>>,
    counts: LeaseCounts,
    edges: usize,
    questions: u64,
    hearing: Option<Hearing>,
    lists: LeaseLists,
    /// Leases that were revoked while this stood in for another; see [`Lessor::stand_in`].
    ended: Option<Vec<i64>>,
}

/// The time of some leases has passed. Before it is decided that they are over, every edge passes
/// on the keepalives it has: those that came in time are among them, whatever they waited for.
#[derive(Debug)]
struct Hearing {
    question: u64,
    began: u64,
    /// Edges that have not answered.
    missing: usize,
    /// How often they were asked.
    asked: usize,
    /// Meanwhile the machine was away.
    was_away: bool,
    /// The caller that asks which leases are over.
    asker: CommandId,
}

impl Lessor {
    /// Keepalives come by way of so many edges.
    pub(super) fn serve(&mut self, edges: usize) {
        self.edges = edges;
    }

    /// Notes which leases end while they are changed where keepalives cannot be answered.
    pub(super) fn stand_in() -> Self {
        Self { ended: Some(Vec::new()), ..Self::default() }
    }

    /// Learns what happened to leases in the meantime.
    pub(super) fn catch_up(&mut self, stand_in: &Self, revision: i64, effects: &mut Vec<Effect>) {
        for id in stand_in.ended.iter().flatten() {
            self.end(*id, revision, effects);
        }
        self.counts.revoked += stand_in.counts.revoked;
        self.counts.expired += stand_in.counts.expired;
        if let Some(hearing) = &mut self.hearing {
            hearing.was_away = true;
        }
    }

    /// The term this member leads in.
    #[must_use]
    pub fn term(&self) -> Option<u64> {
        self.deadlines.term()
    }

    /// It has yet to come to know some leases before it leads: lease requests have to wait.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.deadlines.is_loading()
    }

    /// A change of leaders is under way: `Lessor::set_term` has more to do.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.deadlines.is_loading() || self.deadlines.is_freeing()
    }

    /// This member leads in `term`, or does not lead; true when it has begun or ceased to. A new
    /// leader gives every lease `extension` more, to some with each call; it leads when all have
    /// it. Callers that wait for a decision of the past leader ask again.
    pub(super) fn set_term(
        &mut self,
        term: Option<u64>,
        state: &State,
        now: u64,
        extension: u64,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let is_new = term != self.deadlines.coming_term();
        if is_new {
            match term {
                Some(term) => self.deadlines.lead(term, extension),
                None => self.deadlines.follow(),
            }
            self.lists.begin_again();
            let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
            for id in waiting.chain(self.hearing.take().map(|hearing| hearing.asker)) {
                let revision = state.store.revision();
                let outcome = Outcome { revision, result: Err(Error::NotLeader), rest: Rest::NONE };
                effects.push(Effect::Reply(id, outcome));
            }
        }
        self.deadlines.free(limits::LEASES_PER_TURN);
        let known = |after| state.leases.iter_after(after);
        self.deadlines.load(known, limits::LEASES_PER_TURN, now) || (is_new && term.is_none())
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> LeaseCounts {
        self.counts
    }

    pub(super) fn grant(&mut self, state: &mut State, payload: Bytes, now: u64) -> Result<Bytes, Error> {
        let request = LeaseGrantRequest::decode(payload)?;
        state.leases.grant(&mut state.store, request.id, request.ttl)?;
        self.deadlines.granted(request.id, request.ttl, now);
        self.counts.granted += 1;
        let response =
            LeaseGrantResponse { id: request.id, ttl: request.ttl, ..LeaseGrantResponse::default() };
        Ok(response.encode_to_vec().into())
    }

    pub(super) fn revoke(
        &mut self,
        state: &mut State,
        payload: Bytes,
        effects: &mut Vec<Effect>,
    ) -> Result<Bytes, Error> {
        let request = LeaseRevokeRequest::decode(payload)?;
        self.revoke_one(state, request.id, effects).map(|()| Bytes::new())
    }

    /// Revokes what was due in the term of the entry that says so; a leader of the past
    /// does not know of keepalives since.
    pub(super) fn expire(
        &mut self,
        state: &mut State,
        payload: Bytes,
        term: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Bytes, Error> {
        let expired = ExpiredLeases::decode(payload)?;
        let is_of_term = expired.term == term || mutants::is(Mutant::RevokeWithoutTerm);
        for id in expired.leases.into_iter().filter(|_| is_of_term) {
            // One that a client has revoked meanwhile is gone already.
            self.counts.expired += u64::from(self.revoke_one(state, id, effects).is_ok());
        }
        Ok(Bytes::new())
    }

    fn revoke_one(&mut self, state: &mut State, id: i64, effects: &mut Vec<Effect>) -> Result<(), Error> {
        state.leases.revoke(&mut state.store, id)?;
        self.counts.revoked += 1;
        match &mut self.ended {
            Some(ended) => ended.push(id),
            None => self.end(id, state.store.revision(), effects),
        }
        Ok(())
    }

    fn end(&mut self, id: i64, revision: i64, effects: &mut Vec<Effect>) {
        self.deadlines.revoked(id);
        for waiting in self.waiting.remove(&id).into_iter().flatten() {
            let result = Ok(Bytes::from_static(&[0; 8]));
            effects.push(Effect::Reply(waiting, Outcome { revision, result, rest: Rest::NONE }));
        }
    }

    /// Writes the remaining TTL of leases into the state.
    pub(super) fn checkpoint(&mut self, state: &mut State, payload: Bytes) -> Result<Bytes, Error> {
        for note in LeaseCheckpointRequest::decode(payload)?.checkpoints {
            state.leases.checkpoint(&mut state.store, note.id, note.remaining_ttl);
            self.deadlines.checkpointed(note.id, note.remaining_ttl);
        }
        Ok(Bytes::new())
    }

    /// Whether it knows the lease of a request, if that asks about one.
    pub fn knows(&self, request: DeadlineRequest) -> bool {
        let DeadlineRequest::KeepAlive { lease } = request else { return true };
        self.deadlines.granted_ttl(lease).is_some()
    }

    /// Carries out a local request that is about deadlines only.
    pub fn deadline_request(
        &mut self,
        caller: CommandId,
        request: DeadlineRequest,
        revision: i64,
        now: u64,
        effects: &mut Vec<Effect>,
    ) {
        let result = match request {
            DeadlineRequest::List => return self.lists.ask(caller),
            _ if self.deadlines.term().is_none() => Err(Error::NotLeader),
            DeadlineRequest::KeepAlive { lease } => match self.keep_alive(caller, lease, now) {
                Some(body) => Ok(body),
                None => return,
            },
            DeadlineRequest::Remaining { from } => Ok(RemainingTtls::of(&self.deadlines, from, now).encode()),
        };
        effects.push(Effect::Reply(caller, Outcome { revision, result, rest: Rest::NONE }));
    }

    /// A caller waits for a list of all leases, with which [`Lessor::list`] can go on.
    #[must_use]
    pub fn is_listing(&self) -> bool {
        !self.lists.is_empty() && !self.is_loading()
    }

    /// Goes on with such a list, if somebody wants one; the list when it is made.
    pub fn list(&mut self, known: Option<&Leases>, revision: i64) -> Option<Listed> {
        self.lists.go_on(&mut self.deadlines, known, revision)
    }

    /// Carries out a local request.
    pub(super) fn request(
        &mut self,
        state: &State,
        caller: CommandId,
        request: LeaseRequest,
        now: u64,
        effects: &mut Vec<Effect>,
    ) {
        let revision = state.store.revision();
        let result = match request {
            LeaseRequest::Deadline(request) => {
                return self.deadline_request(caller, request, revision, now, effects);
            }
            LeaseRequest::Keys { .. } | LeaseRequest::KeyBytes { .. } => unreachable!("the machine's"),
            _ if self.deadlines.term().is_none() => Err(Error::NotLeader),
            LeaseRequest::TimeToLive { lease, keys } => {
                Ok(self.time_to_live(state, lease, keys, now).encode_to_vec().into())
            }
            LeaseRequest::Expired => match self.look(state, caller, now, effects) {
                Some(over) => Ok(over),
                None => return,
            },
            LeaseRequest::Heard(heard) => {
                self.heard(state, heard, effects);
                Ok(Bytes::new())
            }
        };
        effects.push(Effect::Reply(caller, Outcome { revision, result, rest: Rest::NONE }));
    }

    /// None if the answer has to wait.
    fn keep_alive(&mut self, caller: CommandId, lease: i64, now: u64) -> Option<Bytes> {
        let seconds = match self.deadlines.renew(lease, now) {
            KeepaliveResult::Renewed(seconds) => {
                self.counts.renewed += 1;
                seconds
            }
            // A restart would go by the checkpoint: it must be replaced first.
            KeepaliveResult::CheckpointFirst => return Some(CHECKPOINT_FIRST),
            KeepaliveResult::Expired => {
                self.waiting.entry(lease).or_default().push(caller);
                return None;
            }
            KeepaliveResult::NotFound => 0,
        };
        Some(Bytes::copy_from_slice(&seconds.to_le_bytes()))
    }

    /// Which leases are over; none if the edges have to be heard first.
    fn look(
        &mut self,
        state: &State,
        asker: CommandId,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Option<Bytes> {
        match self.deadlines.look(now, limits::LEASES_PER_LOOK) {
            ExpiryCheck::Some if self.hearing.is_none() => {}
            ExpiryCheck::Some | ExpiryCheck::None => return Some(self.expired(Vec::new())),
            ExpiryCheck::Unfinished => return Some(LOOK_AGAIN),
        }
        if self.edges == 0 || mutants::is(Mutant::LeaseExpiresUnheard) {
            return Some(self.decide(state, now));
        }
        self.questions += 1;
        let (question, missing) = (self.questions, self.edges);
        self.hearing = Some(Hearing { question, began: now, missing, asked: 1, was_away: false, asker });
        effects.push(Effect::Hear(self.questions));
        None
    }

    /// An edge has passed on what it had. If not all of it, because of streams that may have waited
    /// for the machine, every edge is asked again.
    fn heard(&mut self, state: &State, Heard { question, is_all }: Heard, effects: &mut Vec<Effect>) {
        let Some(hearing) = self.hearing.as_mut().filter(|hearing| hearing.question == question) else {
            return;
        };
        if !is_all && hearing.was_away && hearing.asked < limits::HEARINGS_MAX {
            self.questions += 1;
            (hearing.question, hearing.missing) = (self.questions, self.edges);
            (hearing.asked, hearing.was_away) = (hearing.asked + 1, false);
            effects.push(Effect::Hear(self.questions));
            return;
        }
        hearing.missing -= 1;
        if hearing.missing == 0
            && let Some(Hearing { began, asker, .. }) = self.hearing.take()
        {
            let outcome = Outcome {
                revision: state.store.revision(),
                result: Ok(self.decide(state, began)),
                rest: Rest::NONE,
            };
            effects.push(Effect::Reply(asker, outcome));
        }
    }

    /// Decides which leases are over: as many as one command may revoke.
    fn decide(&mut self, state: &State, then: u64) -> Bytes {
        let (mut leases, mut keys) = (0, 0);
        let takes = |id| {
            leases += 1;
            keys += state.leases.key_count(id);
            leases == 1 || (leases <= limits::LEASES_PER_REVOKE && keys <= limits::KEYS_PER_REVOKE)
        };
        let over = self.deadlines.expire(then, limits::LEASES_PER_LOOK, takes);
        self.expired(over)
    }

    fn expired(&self, leases: Vec<i64>) -> Bytes {
        ExpiredLeases { term: self.deadlines.term().unwrap_or_default(), leases }.encode()
    }

    pub(super) fn time_to_live(
        &self,
        state: &State,
        lease: i64,
        keys: bool,
        now: u64,
    ) -> LeaseTimeToLiveResponse {
        let mut response =
            LeaseTimeToLiveResponse { id: lease, ttl: -1, ..LeaseTimeToLiveResponse::default() };
        if let Some(granted) = self.deadlines.granted_ttl(lease) {
            response.granted_ttl = granted;
            response.ttl = self.deadlines.remaining(lease, now).unwrap_or_default();
            if keys {
                response.keys = state.leases.keys(lease).map(Bytes::copy_from_slice).collect();
            }
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use revd_proto::etcdserverpb::LeaseCheckpoint;
    use std::sync::Arc;

    const EXTENSION: u64 = 1000;

    fn state() -> State {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        State { store, leases: Leases::default() }
    }

    fn request(message: &impl prost::Message) -> Bytes {
        message.encode_to_vec().into()
    }

    fn caller() -> CommandId {
        CommandId::new(0, 1, 0)
    }

    fn ask(lessor: &mut Lessor, state: &State, request: LeaseRequest, now: u64) -> Option<Bytes> {
        let mut effects = Vec::new();
        lessor.request(state, caller(), request, now, &mut effects);
        effects.into_iter().find_map(|effect| match effect {
            Effect::Reply(_, outcome) => Some(outcome.result.unwrap()),
            _ => None,
        })
    }

    fn lead(lessor: &mut Lessor, state: &State, term: u64, now: u64) {
        lessor.set_term(Some(term), state, now, EXTENSION, &mut Vec::new());
    }

    fn keep_alive(lessor: &mut Lessor, state: &State, id: i64, now: u64) -> Option<Bytes> {
        ask(lessor, state, LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease: id }), now)
    }

    fn seconds(seconds: i64) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(&seconds.to_le_bytes()))
    }

    /// Row 73 (etcd #15247, #12528): a leader that was paused revoked leases
    /// that lived on under the next one.
    #[test]
    fn bug_073_a_leader_of_the_past_revokes_nothing() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        lead(&mut lessor, &state, 2, 0);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 5 }), 0).unwrap();
        let due = ask(&mut lessor, &state, LeaseRequest::Expired, 5_000).unwrap();
        assert_eq!(ExpiredLeases::decode(due.clone()).unwrap(), ExpiredLeases { term: 2, leases: vec![7] });
        lessor.expire(&mut state, due.clone(), 3, &mut effects).unwrap();
        assert!(state.leases.get(7).is_some(), "the entry is of a later term");
        lead(&mut lessor, &state, 3, 6_000);
        assert_eq!(keep_alive(&mut lessor, &state, 7, 11_999), seconds(5));
        lead(&mut lessor, &state, 2, 0);
        lessor.expire(&mut state, due, 2, &mut effects).unwrap();
        assert!(state.leases.get(7).is_none());
    }

    #[test]
    fn a_keepalive_that_comes_after_the_end_was_decided_waits_for_it() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        assert_eq!(keep_alive_error(&mut lessor, &state), Error::NotLeader);
        lead(&mut lessor, &state, 2, 0);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 5 }), 0).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 4_999), seconds(5));
        let due = ask(&mut lessor, &state, LeaseRequest::Expired, 9_999).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 9_999), None, "it is over");
        lessor.expire(&mut state, due, 2, &mut effects).unwrap();
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(outcome.result, Ok(seconds(0).unwrap()));
        assert_eq!(lessor.counts(), LeaseCounts { granted: 1, renewed: 1, revoked: 1, expired: 1 });
    }

    fn keep_alive_error(lessor: &mut Lessor, state: &State) -> Error {
        let mut effects = Vec::new();
        let keep_alive = LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease: 7 });
        lessor.request(state, caller(), keep_alive, 0, &mut effects);
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        outcome.result.clone().unwrap_err()
    }

    /// A lease checkpoint must not shorten the life of a lease that is kept alive after it.
    #[test]
    fn a_keepalive_takes_back_a_checkpoint() {
        let (mut lessor, mut state) = (Lessor::default(), state());
        lead(&mut lessor, &state, 2, 0);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 1000 }), 0).unwrap();
        let remaining = LeaseRequest::Deadline(DeadlineRequest::Remaining { from: i64::MIN });
        let remaining = ask(&mut lessor, &state, remaining, 400_000).unwrap();
        let RemainingTtls { checkpoint, next: None } = RemainingTtls::decode(remaining).unwrap() else {
            panic!("there is one lease")
        };
        assert_eq!(checkpoint.checkpoints, [LeaseCheckpoint { id: 7, remaining_ttl: 600 }]);
        lessor.checkpoint(&mut state, request(&checkpoint)).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 400_000), Some(CHECKPOINT_FIRST));
        let taken_back =
            LeaseCheckpointRequest { checkpoints: vec![LeaseCheckpoint { id: 7, remaining_ttl: 0 }] };
        lessor.checkpoint(&mut state, request(&taken_back)).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 400_000), seconds(1000));
        // A new leader, with and without a checkpoint.
        lead(&mut lessor, &state, 3, 500_000);
        assert_eq!(lessor.deadlines.remaining(7, 500_000), Some(1001));
        lessor.checkpoint(&mut state, request(&checkpoint)).unwrap();
        lead(&mut lessor, &state, 4, 600_000);
        assert_eq!(lessor.deadlines.remaining(7, 600_000), Some(601));
    }

    fn grant(lessor: &mut Lessor, state: &mut State, id: i64, ttl: i64) {
        lessor.grant(state, request(&LeaseGrantRequest { id, ttl }), 0).unwrap();
    }

    fn heard(lessor: &mut Lessor, state: &State, question: u64) -> Vec<Effect> {
        say(lessor, state, Heard { question, is_all: true })
    }

    fn say(lessor: &mut Lessor, state: &State, said: Heard) -> Vec<Effect> {
        let (edge, mut effects) = (CommandId::new(0, 9, 0), Vec::new());
        lessor.request(state, edge, LeaseRequest::Heard(said), 0, &mut effects);
        effects.retain(|effect| !matches!(effect, Effect::Reply(id, _) if *id == edge));
        effects
    }

    fn look(lessor: &mut Lessor, state: &State, now: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        lessor.request(state, caller(), LeaseRequest::Expired, now, &mut effects);
        effects
    }

    fn over(effects: &[Effect]) -> Vec<i64> {
        let [Effect::Reply(_, outcome)] = effects else { panic!("{effects:?}") };
        ExpiredLeases::decode(outcome.result.clone().unwrap()).unwrap().leases
    }

    /// A keepalive that came in time and waited behind something else is not lost: before a lease
    /// ends every edge has passed on what it had, and what comes with that counts.
    #[test]
    fn no_lease_ends_before_every_edge_was_heard() {
        let (mut lessor, mut state) = (Lessor::default(), state());
        lessor.serve(2);
        lead(&mut lessor, &state, 2, 0);
        grant(&mut lessor, &mut state, 7, 5);
        grant(&mut lessor, &mut state, 8, 5);
        assert!(over(&look(&mut lessor, &state, 4_999)).is_empty());
        assert_eq!(look(&mut lessor, &state, 5_000), [Effect::Hear(1)]);
        assert_eq!(heard(&mut lessor, &state, 1), []);
        // The other edge stood still for a minute with a keepalive in its sockets.
        assert_eq!(keep_alive(&mut lessor, &state, 7, 65_000), seconds(5));
        assert_eq!(heard(&mut lessor, &state, 77), [], "an answer to another question");
        assert_eq!(over(&heard(&mut lessor, &state, 1)), [8]);
        assert_eq!(keep_alive(&mut lessor, &state, 8, 65_000), None);
    }

    /// Long commands without a pause do not keep leases from ending: an edge that has passed on
    /// everything was heard, wherever the machine was.
    #[test]
    fn what_was_passed_on_while_the_machine_was_away_counts() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        lessor.serve(1);
        lead(&mut lessor, &state, 2, 0);
        grant(&mut lessor, &mut state, 7, 5);
        assert_eq!(look(&mut lessor, &state, 5_000), [Effect::Hear(1)]);
        lessor.catch_up(&Lessor::stand_in(), 1, &mut effects);
        assert_eq!(over(&heard(&mut lessor, &state, 1)), [7]);
    }

    /// Streams may wait for what the log brings, and so for the machine;
    /// their edge does not wait for ever.
    #[test]
    fn an_edge_that_could_not_pass_on_all_while_the_machine_was_away_is_asked_again() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        lessor.serve(1);
        lead(&mut lessor, &state, 2, 0);
        grant(&mut lessor, &mut state, 7, 5);
        grant(&mut lessor, &mut state, 8, 5);
        assert_eq!(look(&mut lessor, &state, 5_000), [Effect::Hear(1)]);
        let mut stand_in = Lessor::stand_in();
        stand_in.revoke(&mut state, request(&LeaseRevokeRequest { id: 8 }), &mut effects).unwrap();
        lessor.catch_up(&stand_in, 1, &mut effects);
        assert_eq!(effects, []);
        let not_all = |question| Heard { question, is_all: false };
        for question in 1..limits::HEARINGS_MAX as u64 {
            assert_eq!(say(&mut lessor, &state, not_all(question)), [Effect::Hear(question + 1)]);
            assert_eq!(heard(&mut lessor, &state, question), []);
            lessor.catch_up(&Lessor::stand_in(), 1, &mut effects);
        }
        let last = not_all(limits::HEARINGS_MAX as u64);
        assert_eq!(over(&say(&mut lessor, &state, last)), [7], "the other one is gone");
        assert_eq!(lessor.counts().revoked, 1);
    }

    /// A million leases that are due at once do not become one command.
    #[test]
    fn what_one_command_revokes_is_bounded_in_leases_and_keys() {
        let (mut lessor, mut state) = (Lessor::default(), state());
        lead(&mut lessor, &state, 2, 0);
        for id in 1..=2_500 {
            grant(&mut lessor, &mut state, id, 5);
        }
        for (lease, keys) in [(1, 5_000), (2, 600), (3, 600)] {
            let touched = (0..keys).map(|key| (format!("{lease} {key}").into_bytes(), lease)).collect();
            state.leases.attach(&mut state.store, touched);
        }
        let mut effects = Vec::new();
        let mut sizes = Vec::new();
        loop {
            let due = ask(&mut lessor, &state, LeaseRequest::Expired, 5_000).unwrap();
            let leases = ExpiredLeases::decode(due.clone()).unwrap().leases.len();
            if leases == 0 {
                break;
            }
            sizes.push(leases);
            lessor.expire(&mut state, due, 2, &mut effects).unwrap();
        }
        assert_eq!(sizes, [1, 1, 1_000, 1_000, 498]);
    }

    /// A caller that waits for the end of a lease is told when this member ceases to lead.
    #[test]
    fn a_waiting_keepalive_hears_that_the_member_ceases_to_lead() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        lead(&mut lessor, &state, 2, 0);
        grant(&mut lessor, &mut state, 7, 5);
        ask(&mut lessor, &state, LeaseRequest::Expired, 5_000).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 5_000), None);
        assert!(lessor.set_term(None, &state, 5_000, EXTENSION, &mut effects));
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(outcome.result, Err(Error::NotLeader));
    }
}
