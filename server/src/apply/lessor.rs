//! Commands about leases, and what only the leader answers: keepalives, what is due, what is left.

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseCheckpoint, LeaseCheckpointRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseLeasesResponse,
    LeaseRevokeRequest, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};

use crate::apply::command::{Command, CommandId, Kind};
use crate::apply::decoded;
use crate::apply::outcome::{Effect, Outcome};
use crate::apply::state::State;
use crate::error::Error;
use crate::lease::{Deadlines, Renewal};
use crate::limits;

/// The body of a keepalive's outcome: the seconds the lease has now; nothing if it has to be noted first that a keepalive
/// came.
pub const NOTE_FIRST: Bytes = Bytes::new();

/// Leader's view.
#[derive(Debug, Default)]
pub(super) struct Lessor {
    deadlines: Deadlines,
    /// Keepalives that wait until their lease, which is due, is revoked.
    waiting: BTreeMap<i64, Vec<CommandId>>,
    counts: LeaseCounts,
}

/// What has happened to leases since the start of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Leases granted.
    pub granted: u64,
    /// Keepalives of leases that live.
    pub renewed: u64,
    /// Leases revoked, for whatever reason.
    pub revoked: u64,
    /// Leases revoked because they were due.
    pub expired: u64,
}

/// Leases that are due, and the term they were due in: body of an outcome, and then payload of a command.
///
/// ```text
///  0  u64  term
///  8  i64  lease, as often as there are any; all little-endian
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The leader's term.
    pub term: u64,
    /// Lease ids.
    pub leases: Vec<i64>,
}

impl Due {
    fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(8 + 8 * self.leases.len());
        out.put_u64_le(self.term);
        self.leases.iter().for_each(|id| out.put_i64_le(*id));
        out.into()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// When it is cut short.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Error> {
        if !bytes.len().is_multiple_of(8) || bytes.is_empty() {
            return Err(Error::Malformed(format!("{} bytes of due leases", bytes.len())));
        }
        let term = bytes.get_u64_le();
        let mut leases = Vec::with_capacity(bytes.len() / 8);
        while bytes.has_remaining() {
            leases.push(bytes.get_i64_le());
        }
        Ok(Self { term, leases })
    }
}

impl Lessor {
    /// This member leads in `term`, or does not lead. A new leader gives every lease `extension` more.
    pub(super) fn set_term(&mut self, term: Option<u64>, state: &State, now: u64, extension: u64) -> bool {
        if term == self.deadlines.term() {
            return false;
        }
        match term {
            Some(term) => self.deadlines.lead(term, state.leases.iter(), now, extension),
            None => self.deadlines.follow(),
        }
        true
    }

    /// What has happened so far.
    pub(super) fn counts(&self) -> LeaseCounts {
        self.counts
    }

    pub(super) fn grant(&mut self, state: &mut State, payload: Bytes, now: u64) -> Result<Bytes, Error> {
        let request = decoded(LeaseGrantRequest::decode(payload))?;
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
        let request = decoded(LeaseRevokeRequest::decode(payload))?;
        self.revoke_one(state, request.id, effects)?;
        Ok(Bytes::new())
    }

    /// Revokes what was due in the term of the entry that says so; a leader of the past does not know of keepalives since.
    pub(super) fn expire(
        &mut self,
        state: &mut State,
        payload: Bytes,
        term: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Bytes, Error> {
        let due = Due::decode(payload)?;
        for id in due.leases.into_iter().filter(|_| due.term == term) {
            // One that a client has revoked meanwhile is gone already.
            let is_revoked = self.revoke_one(state, id, effects).is_ok();
            self.counts.expired += u64::from(is_revoked);
        }
        Ok(Bytes::new())
    }

    fn revoke_one(&mut self, state: &mut State, id: i64, effects: &mut Vec<Effect>) -> Result<(), Error> {
        state.leases.revoke(&mut state.store, id)?;
        self.deadlines.revoked(id);
        self.counts.revoked += 1;
        for waiting in self.waiting.remove(&id).into_iter().flatten() {
            effects.push(Effect::Reply(waiting, keepalive(state, 0)));
        }
        Ok(())
    }

    /// Notes what leases have left.
    pub(super) fn note(&mut self, state: &mut State, payload: Bytes) -> Result<Bytes, Error> {
        for note in decoded(LeaseCheckpointRequest::decode(payload))?.checkpoints {
            state.leases.note_remaining(&mut state.store, note.id, note.remaining_ttl);
        }
        Ok(Bytes::new())
    }

    /// An order to this member alone; none if its answer has to wait.
    pub(super) fn order(&mut self, state: &State, command: &Command, now: u64) -> Option<Outcome> {
        let reply = |body: Bytes| Some(Outcome { revision: state.store.revision(), result: Ok(body) });
        if self.deadlines.term().is_none() {
            return Some(Outcome { revision: state.store.revision(), result: Err(Error::NoLeader) });
        }
        match command.kind {
            Kind::LeaseKeepAlive => self.keep_alive(state, command, now),
            Kind::LeaseTimeToLive => match self.time_to_live(state, &command.payload, now) {
                Ok(response) => reply(response.encode_to_vec().into()),
                Err(error) => Some(Outcome { revision: state.store.revision(), result: Err(error) }),
            },
            Kind::LeaseLeases => {
                let leases = self.deadlines.by_deadline().into_iter().map(|id| LeaseStatus { id }).collect();
                reply(LeaseLeasesResponse { header: None, leases }.encode_to_vec().into())
            }
            Kind::LeaseDue => {
                let term = self.deadlines.term().unwrap_or_default();
                let leases = self.deadlines.due(now, limits::LEASES_PER_REVOKE);
                reply(Due { term, leases }.encode())
            }
            Kind::LeaseLeft => reply(self.left(state, now).encode_to_vec().into()),
            other => unreachable!("{other:?} is no order about leases"),
        }
    }

    fn keep_alive(&mut self, state: &State, command: &Command, now: u64) -> Option<Outcome> {
        let id = command.payload.clone().try_get_i64_le().unwrap_or_default();
        let seconds = match state.leases.get(id) {
            // A restart would go by that note; it has to say first that somebody keeps the lease alive.
            Some((_, remaining)) if remaining > 0 => {
                return Some(Outcome { revision: state.store.revision(), result: Ok(NOTE_FIRST) });
            }
            Some(_) => match self.deadlines.renew(id, now) {
                Renewal::Renewed(seconds) => {
                    self.counts.renewed += 1;
                    seconds
                }
                Renewal::Due => {
                    self.waiting.entry(id).or_default().push(command.id);
                    return None;
                }
                Renewal::Gone => 0,
            },
            None => 0,
        };
        Some(keepalive(state, seconds))
    }

    fn time_to_live(
        &self,
        state: &State,
        payload: &Bytes,
        now: u64,
    ) -> Result<LeaseTimeToLiveResponse, Error> {
        let request = decoded(LeaseTimeToLiveRequest::decode(payload.clone()))?;
        let mut response =
            LeaseTimeToLiveResponse { id: request.id, ttl: -1, ..LeaseTimeToLiveResponse::default() };
        if let Some((granted, _)) = state.leases.get(request.id) {
            response.granted_ttl = granted;
            response.ttl = self.deadlines.remaining(request.id, now).unwrap_or_default();
            if request.keys {
                response.keys = state.leases.keys(request.id).map(Bytes::copy_from_slice).collect();
            }
        }
        Ok(response)
    }

    /// What is left of leases that live so long that a restart should not begin their time anew.
    fn left(&self, state: &State, now: u64) -> LeaseCheckpointRequest {
        let long = state
            .leases
            .iter()
            .filter(|(_, ttl, _)| *ttl > limits::LEASE_NOTE_INTERVAL.as_secs().cast_signed());
        let noted = long.filter_map(|(id, ttl, noted)| {
            let remaining_ttl = self.deadlines.remaining(id, now)?;
            let differs = remaining_ttl > 0 && remaining_ttl < ttl && remaining_ttl != noted;
            differs.then_some(LeaseCheckpoint { id, remaining_ttl })
        });
        LeaseCheckpointRequest { checkpoints: noted.collect() }
    }
}

fn keepalive(state: &State, seconds: i64) -> Outcome {
    let body = Bytes::copy_from_slice(&seconds.to_le_bytes());
    Outcome { revision: state.store.revision(), result: Ok(body) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Leases;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use std::sync::Arc;

    const EXTENSION: u64 = 1000;

    fn state() -> State {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        State { store, leases: Leases::default() }
    }

    fn request(message: &impl prost::Message) -> Bytes {
        message.encode_to_vec().into()
    }

    fn order(lessor: &mut Lessor, state: &State, kind: Kind, payload: Bytes, now: u64) -> Option<Bytes> {
        let command = Command { id: CommandId::new(0, 1, 0), kind, payload };
        lessor.order(state, &command, now).map(|outcome| outcome.result.unwrap())
    }

    fn keep_alive(lessor: &mut Lessor, state: &State, id: i64, now: u64) -> Option<Bytes> {
        order(lessor, state, Kind::LeaseKeepAlive, Bytes::copy_from_slice(&id.to_le_bytes()), now)
    }

    fn seconds(seconds: i64) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(&seconds.to_le_bytes()))
    }

    /// Row 73 (etcd #15247, #12528): a leader that was paused revoked leases that lived on under the next one.
    #[test]
    fn bug_073_a_leader_of_the_past_revokes_nothing() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        lessor.set_term(Some(2), &state, 0, EXTENSION);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 5 }), 0).unwrap();
        let due = order(&mut lessor, &state, Kind::LeaseDue, Bytes::new(), 5_000).unwrap();
        assert_eq!(Due::decode(due.clone()).unwrap(), Due { term: 2, leases: vec![7] });
        lessor.expire(&mut state, due.clone(), 3, &mut effects).unwrap();
        assert!(state.leases.get(7).is_some(), "the entry is of a later term");
        lessor.set_term(Some(3), &state, 6_000, EXTENSION);
        assert_eq!(keep_alive(&mut lessor, &state, 7, 11_999), seconds(5));
        lessor.set_term(Some(2), &state, 0, EXTENSION);
        lessor.expire(&mut state, due, 2, &mut effects).unwrap();
        assert!(state.leases.get(7).is_none());
    }

    #[test]
    fn a_keepalive_that_comes_too_late_waits_for_the_end() {
        let (mut lessor, mut state, mut effects) = (Lessor::default(), state(), Vec::new());
        assert_eq!(keep_alive_error(&mut lessor, &state), Error::NoLeader);
        lessor.set_term(Some(2), &state, 0, EXTENSION);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 5 }), 0).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 4_999), seconds(5));
        assert_eq!(keep_alive(&mut lessor, &state, 7, 9_999), None, "it is due");
        let due = order(&mut lessor, &state, Kind::LeaseDue, Bytes::new(), 9_999).unwrap();
        lessor.expire(&mut state, due, 2, &mut effects).unwrap();
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(outcome.result, Ok(seconds(0).unwrap()));
        assert_eq!(lessor.counts(), LeaseCounts { granted: 1, renewed: 1, revoked: 1, expired: 1 });
    }

    fn keep_alive_error(lessor: &mut Lessor, state: &State) -> Error {
        let payload = Bytes::copy_from_slice(&7_i64.to_le_bytes());
        let command = Command { id: CommandId::new(0, 1, 0), kind: Kind::LeaseKeepAlive, payload };
        lessor.order(state, &command, 0).unwrap().result.unwrap_err()
    }

    /// What was noted must not shorten the life of a lease that is kept alive after it.
    #[test]
    fn a_keepalive_takes_back_what_was_noted() {
        let (mut lessor, mut state) = (Lessor::default(), state());
        lessor.set_term(Some(2), &state, 0, EXTENSION);
        lessor.grant(&mut state, request(&LeaseGrantRequest { id: 7, ttl: 1000 }), 0).unwrap();
        let left = order(&mut lessor, &state, Kind::LeaseLeft, Bytes::new(), 400_000).unwrap();
        let noted = LeaseCheckpointRequest::decode(left.clone()).unwrap();
        assert_eq!(noted.checkpoints, [LeaseCheckpoint { id: 7, remaining_ttl: 600 }]);
        lessor.note(&mut state, left).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 400_000), Some(NOTE_FIRST));
        let taken_back =
            LeaseCheckpointRequest { checkpoints: vec![LeaseCheckpoint { id: 7, remaining_ttl: 0 }] };
        lessor.note(&mut state, request(&taken_back)).unwrap();
        assert_eq!(keep_alive(&mut lessor, &state, 7, 400_000), seconds(1000));
        // A new leader, with and without a note.
        lessor.set_term(Some(3), &state, 500_000, EXTENSION);
        assert_eq!(lessor.deadlines.remaining(7, 500_000), Some(1001));
        lessor.note(&mut state, request(&noted)).unwrap();
        lessor.set_term(Some(4), &state, 600_000, EXTENSION);
        assert_eq!(lessor.deadlines.remaining(7, 600_000), Some(601));
    }
}
