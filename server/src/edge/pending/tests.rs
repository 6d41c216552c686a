//! Outcomes reach their callers once, bounds hold, and who is gone leaves nothing behind.

use std::future::poll_fn;

use super::*;
use crate::edge::pending::keepalive_stream::KeepaliveStream;
use futures_lite::future::{block_on, poll_once};
use revd_member::apply::local::{DeadlineRequest, LeaseRequest};
use revd_member::apply::outcome::Rest;

pub(super) const LIMITS: ProposalLimits = ProposalLimits {
    inflight_max: 2,
    inflight_bytes_max: 100,
    reads_max: 2,
    keepalives_max: 2,
    alarms_max: 1,
    chores_max: 1,
};

/// The leader's id.
const LEADER: u64 = 7;

pub(super) const KEEP_ALIVE: DeadlineRequest = DeadlineRequest::KeepAlive { lease: 7 };

pub(super) fn outcome(revision: i64) -> Outcome {
    Outcome { revision, result: Ok(Bytes::new()), rest: Rest::NONE }
}

fn sweeps(request_max: u64) -> RequestSweeps {
    RequestSweeps { request_max, leader_lost: 0 }
}

fn put(proposals: &Rc<Proposals>, bytes: usize) -> Result<Proposal, Error> {
    proposals.submit(Kind::Put, Bytes::from(vec![0; bytes]), false)
}

#[test]
fn outcomes_reach_their_callers_in_any_order() {
    let proposals = Proposals::new(1, LIMITS);
    let (first, second) = (put(&proposals, 1).unwrap(), put(&proposals, 1).unwrap());
    let batch = proposals.take_batch();
    proposals.resolve(batch.commands[1].id, outcome(2));
    proposals.resolve(batch.commands[0].id, outcome(1));
    assert_eq!(block_on(first).unwrap().revision, 1);
    assert_eq!(block_on(second).unwrap().revision, 2);
    assert_eq!(proposals.inflight(), 0);
}

#[test]
fn commands_that_wait_and_those_that_failed_are_counted() {
    let (proposals, counters) = (Proposals::new(1, LIMITS), Arc::new(Counters::new(2)));
    proposals.count_in(&counters);
    let numbers = || {
        let published = counters.proposals_of(1);
        (published.pending.get(), published.failed.get())
    };
    let first = put(&proposals, 1).unwrap();
    drop(put(&proposals, 1).unwrap()); // it leaves the batch with its caller
    let keepalive = LocalKind::Lease(LeaseRequest::Deadline(KEEP_ALIVE));
    let _asked = proposals.submit_local(None, keepalive, false).unwrap();
    assert_eq!(numbers(), (2, 0));
    let batch = proposals.take_batch();
    assert_eq!(numbers(), (1, 0));
    proposals.resolve(batch.commands[0].id, outcome(1));
    drop(first);
    assert_eq!(numbers(), (0, 0));
    let (lost, late) = (put(&proposals, 1).unwrap(), put(&proposals, 1).unwrap());
    let batch = proposals.take_batch();
    (0..3).for_each(|_| proposals.sweep(LEADER, sweeps(2)));
    assert_eq!(numbers(), (2, 2), "both were told that their time is over");
    proposals.lost(batch.number, &Error::LeaderChanged);
    assert_eq!(numbers(), (0, 2));
    drop((lost, late));
    let lost = put(&proposals, 1).unwrap();
    proposals.lost(proposals.take_batch().number, &Error::LeaderChanged);
    drop(lost);
    assert_eq!(numbers(), (0, 3));
}

#[test]
fn bounds_refuse_and_recover() {
    let proposals = Proposals::new(0, LIMITS);
    let first = put(&proposals, 60).unwrap();
    assert_eq!(put(&proposals, 60).unwrap_err(), Error::TooManyRequests);
    let second = put(&proposals, 40).unwrap();
    assert_eq!(put(&proposals, 0).unwrap_err(), Error::TooManyRequests);
    for command in proposals.take_batch().commands {
        proposals.resolve(command.id, outcome(1));
    }
    drop((first, second));
    assert!(put(&proposals, 100).is_ok());
}

#[test]
fn an_abandoned_slot_is_not_reused_before_its_outcome() {
    let proposals = Proposals::new(0, LIMITS);
    let first = put(&proposals, 1).unwrap();
    let second = put(&proposals, 1).unwrap();
    let batch = proposals.take_batch();
    drop(first);
    assert!(put(&proposals, 1).is_err(), "the abandoned command still counts");
    proposals.resolve(batch.commands[0].id, outcome(1));
    assert_eq!(block_on(poll_once(second)), None);
    assert!(put(&proposals, 1).is_ok());
}

/// A call whose deadline has passed, or that its client has cancelled, changes
/// nothing if its command is still here.
#[test]
fn a_command_whose_caller_is_gone_does_not_leave_the_edge() {
    let proposals = Proposals::new(0, LIMITS);
    drop(put(&proposals, 60).unwrap());
    put(&proposals, 1).unwrap().detach();
    let batch = proposals.take_batch();
    assert_eq!(batch.commands.iter().map(|command| command.payload.len()).collect::<Vec<_>>(), [1]);
    assert_eq!(proposals.inflight(), 1);
    let third = put(&proposals, 99).unwrap();
    proposals.close();
    drop(third);
    assert_eq!(proposals.take_batch().commands.len(), 1, "after the end requests are sent as they are");
}

#[test]
fn writes_take_no_slot_of_requests_that_must_not_wait() {
    let proposals = Proposals::new(0, LIMITS);
    let submit = |kind| proposals.submit(kind, Bytes::from_static(b"payload"), false);
    let ask = |kind: LocalKind| proposals.submit_local(None, kind, false);
    let writes = [submit(Kind::Put).unwrap(), submit(Kind::LeaseGrant).unwrap()];
    for kind in [Kind::Put, Kind::Txn, Kind::LeaseRevoke] {
        assert_eq!(submit(kind).unwrap_err(), Error::TooManyRequests, "{kind:?}");
    }
    let all = LeaseRequest::TimeToLive { lease: 7, keys: true };
    for kind in [LeaseRequest::Deadline(DeadlineRequest::List), all] {
        assert_eq!(ask(kind.into()).unwrap_err(), Error::TooManyRequests, "{kind:?}");
    }
    let keepalives = [ask(KEEP_ALIVE.into()).unwrap(), submit(Kind::LeaseCheckpoint).unwrap()];
    assert_eq!(ask(KEEP_ALIVE.into()).unwrap_err(), Error::TooManyRequests);
    let others = [submit(Kind::Alarm).unwrap(), ask(LeaseRequest::Expired.into()).unwrap()];
    assert_eq!(submit(Kind::Alarm).unwrap_err(), Error::TooManyRequests);
    let Submitted { commands, local, .. } = proposals.take_batch();
    let ids = commands.iter().map(|command| command.id).chain(local.iter().map(|request| request.id));
    ids.for_each(|id| proposals.resolve(id, outcome(1)));
    drop((writes, keepalives, others));
    assert!(submit(Kind::LeaseExpire).is_ok());
}

#[test]
fn a_late_outcome_after_a_timeout_frees_the_slot_once() {
    let proposals = Proposals::new(0, LIMITS);
    let first = put(&proposals, 1).unwrap();
    let id = proposals.take_batch().commands[0].id;
    proposals.sweep(LEADER, sweeps(1));
    proposals.sweep(LEADER, sweeps(1));
    assert_eq!(block_on(first), Err(Error::Timeout));
    assert_eq!(proposals.inflight(), 1);
    proposals.resolve(id, outcome(1));
    proposals.resolve(id, outcome(1));
    assert_eq!(proposals.inflight(), 0);
    let second = put(&proposals, 1).unwrap();
    let id = proposals.take_batch().commands[0].id;
    proposals.sweep(LEADER, sweeps(0));
    proposals.resolve(id, outcome(1));
    assert_eq!(block_on(second), Err(Error::Timeout));
    assert_eq!(proposals.inflight(), 0);
}

/// A leader is gone, and with it what was handed to it: callers are told at once, their slots
/// are free, and what comes all the same is not taken for the answer of another.
#[test]
fn lost_commands_free_their_slots_and_late_outcomes_reach_nobody() {
    let proposals = Proposals::new(0, LIMITS);
    let (first, second) = (put(&proposals, 60).unwrap(), put(&proposals, 1).unwrap());
    let batch = proposals.take_batch();
    assert_eq!(batch.number, 2);
    drop(second);
    proposals.lost(1, &Error::TimeoutLeaderFailed);
    assert_eq!(block_on(first), Err(Error::TimeoutLeaderFailed));
    assert_eq!(proposals.inflight(), 1, "the second came later than what is lost");
    proposals.lost(2, &Error::TimeoutLeaderFailed);
    assert_eq!(proposals.inflight(), 0, "nobody waits for the second any more");
    let mut others = [put(&proposals, 60).unwrap(), put(&proposals, 40).unwrap()];
    let again = proposals.take_batch();
    batch.commands.iter().for_each(|late| proposals.resolve(late.id, outcome(1)));
    proposals.lost(2, &Error::TimeoutLeaderFailed);
    assert!(others.iter_mut().all(|other| block_on(poll_once(other)).is_none()));
    again.commands.iter().zip(5..).for_each(|(command, at)| proposals.resolve(command.id, outcome(at)));
    assert_eq!(others.map(|other| block_on(other).unwrap().revision), [5, 6]);
    assert_eq!(proposals.inflight(), 0);
}

fn change(proposals: &Rc<Proposals>, user: Option<UserNumber>) -> Result<Proposal, Error> {
    let line = ChangeLine::new(Kind::RoleAdd, vec![("name", Some("role".into()))], Some("root"), "here");
    proposals.submit_told((SlotClass::of(Kind::RoleAdd), user), Kind::RoleAdd, Bytes::new(), line)
}

/// Lines of changes are bytes, too: there is room for them, or the change is refused. Requests that
/// take no bytes find their slots in any case, and a keepalive stream is not called for one that it
/// cannot have.
#[test]
fn changes_with_lines_leave_their_slots_to_requests_without_bytes() {
    for bytes in [0, 10, ChangeLine::BYTES, ChangeLine::BYTES + 10, 2 * ChangeLine::BYTES] {
        let limits = ProposalLimits { inflight_max: 9, inflight_bytes_max: bytes, chores_max: 2, ..LIMITS };
        let proposals = Proposals::new(0, limits);
        let user = Some(UserNumber::of("root"));
        let changes: Vec<_> = std::iter::from_fn(|| change(&proposals, user).ok()).collect();
        // Of two that fit, a user has one and leaves the other.
        assert_eq!(changes.len(), (bytes / ChangeLine::BYTES).min(1), "in {bytes} bytes");
        let others: Vec<_> = std::iter::from_fn(|| change(&proposals, None).ok()).collect();
        assert_eq!(changes.len() + others.len(), bytes / ChangeLine::BYTES);
        let taken = proposals.table.borrow().inflight_bytes;
        assert!(taken <= bytes && put(&proposals, bytes - taken + 1).is_err());
        let local = |kind| proposals.submit_local(None, kind, true).unwrap();
        let command = |kind| proposals.submit(kind, Bytes::from_static(b"payload"), true).unwrap();
        let mut stream = KeepaliveStream::new(&proposals);
        let mut keepalives = Vec::new();
        while block_on(poll_once(poll_fn(|context| stream.poll_slot(context)))).is_some() {
            let is_first = keepalives.is_empty();
            keepalives.push(if is_first { local(KEEP_ALIVE.into()) } else { command(Kind::LeaseCheckpoint) });
        }
        assert_eq!(keepalives.len(), LIMITS.keepalives_max);
        let _others = [
            command(Kind::Alarm),
            command(Kind::LeaseExpire),
            local(LeaseRequest::Expired.into()),
            local(LocalKind::MoveLeader { to: 2 }),
            local(LocalKind::Defragment),
        ];
    }
}

/// The change is made, lost, or leaves with its caller: its bytes are free then.
#[test]
fn a_line_that_waits_counts_as_bytes_of_its_change() {
    let limits = ProposalLimits { inflight_max: 9, inflight_bytes_max: ChangeLine::BYTES + 10, ..LIMITS };
    let proposals = Proposals::new(0, limits);
    let user = Some(UserNumber::of("root"));
    let change = || change(&proposals, user).unwrap();
    let bytes = || proposals.table.borrow().inflight_bytes;
    let ends: [&dyn Fn(CommandId); 2] =
        [&|id| proposals.resolve(id, outcome(1)), &|_| proposals.lost(u64::MAX, &Error::TimeoutLeaderFailed)];
    for end in ends {
        let change = change();
        assert!(bytes() == ChangeLine::BYTES && matches!(put(&proposals, 11), Err(Error::TooManyRequests)));
        end(proposals.take_batch().commands[0].id);
        assert!(bytes() == 0 && block_on(poll_once(change)).is_some());
    }
    drop(change());
    assert!(proposals.take_batch().is_empty());
    assert_eq!((bytes(), proposals.table.borrow().users.len()), (0, 0));
}

#[test]
fn only_commands_that_left_are_lost() {
    let proposals = Proposals::new(0, ProposalLimits { inflight_max: 3, ..LIMITS });
    let mut keepalive = proposals.submit_local(None, KEEP_ALIVE.into(), true).unwrap();
    let mut done = put(&proposals, 1).unwrap();
    let id = proposals.take_batch().commands[0].id;
    proposals.resolve(id, outcome(1));
    let mut change = proposals.submit(Kind::MemberRemove, Bytes::new(), false).unwrap();
    assert_eq!(proposals.take_batch().commands.len(), 1);
    let mut next = put(&proposals, 1).unwrap();
    proposals.lost(9, &Error::TimeoutConnectionLost);
    assert_eq!(block_on(poll_once(&mut keepalive)), None, "it is asked again");
    assert_eq!(block_on(poll_once(&mut change)), None, "it waits on its own way");
    assert_eq!(block_on(&mut done).unwrap().revision, 1, "it has its outcome");
    assert_eq!(block_on(poll_once(&mut next)), None, "it is still here");
}

#[test]
fn reads_leave_with_the_batch_of_their_turn() {
    let proposals = Proposals::new(0, LIMITS);
    assert_eq!(block_on(poll_once(proposals.wait_for_batch())), None);
    let mut reads = [proposals.read().unwrap(), proposals.read().unwrap()];
    assert_eq!(proposals.read().unwrap_err(), Error::TooManyRequests);
    assert_eq!(block_on(poll_once(proposals.wait_for_batch())), Some(true));
    let batch = proposals.take_batch();
    assert_eq!((batch.read, batch.number, batch.is_empty()), (Some(1), 0, false));
    assert_eq!(proposals.take_batch().read, None);
    assert!(reads.iter_mut().all(|read| block_on(poll_once(read)).is_none()));
    proposals.end_reads(1, &Ok(()));
    assert_eq!(reads.map(block_on), [Ok(()), Ok(())]);
    let read = proposals.read().unwrap();
    proposals.close();
    assert_eq!(block_on(read), Err(Error::Stopped));
    assert_eq!(proposals.read().unwrap_err(), Error::Stopped);
}

#[test]
fn requests_may_take_as_long_as_with_etcd() {
    let sweeps = RequestSweeps::new(std::time::Duration::from_secs(1));
    assert_eq!(sweeps, RequestSweeps { request_max: 15, leader_lost: 4 });
}

#[test]
fn close_answers_everyone() {
    let proposals = Proposals::new(0, LIMITS);
    let first = put(&proposals, 1).unwrap();
    proposals.close();
    assert_eq!(block_on(first), Err(Error::Stopped));
    assert_eq!(put(&proposals, 1).unwrap_err(), Error::Stopped);
}
