//! Changes of members, one step at a time.

use super::*;
use crate::cluster::membership::Member;

const OWN: Origin = Origin { member: 1, boot: 1 };
const STEADY: u64 = 50;

fn changes(members: u64) -> MemberChanges {
    let member = |id| Member { id, name: format!("m{id}"), ..Member::default() };
    let membership = Membership::new((1..=members).map(member), std::iter::empty());
    let rules = ChangeRules { is_strict: true, steady_ticks: STEADY, forced_until: None };
    MemberChanges::new(OWN, rules, membership, 0)
}

fn command(slot: usize, kind: Kind, payload: Bytes) -> Command {
    Command { id: CommandId::new(0, slot, 0), kind, payload }
}

fn add(slot: usize, id: u64, is_learner: bool) -> Command {
    let member = Member { id, is_learner, ..Member::default() };
    command(slot, Kind::MemberAdd, MemberChange::encode_add(&member, 1))
}

/// Member 2, which fits one byte.
fn promote(slot: usize) -> Command {
    command(slot, Kind::MemberPromote, Bytes::from_static(&[8, 2]))
}

fn entry(data: Bytes) -> CommittedEntry {
    CommittedEntry { index: 2, term: 1, data, change: None }
}

/// Commits a batch; the vote that changes, if one does, and the verdict.
fn commit(changes: &mut MemberChanges, data: Bytes) -> (Option<VoteChange>, Result<(), Error>) {
    let (mut entry, mut changed) = (entry(data), None);
    let set_vote = |change| {
        changed = Some(change);
        Ok::<_, ()>(ConfState::default())
    };
    changes.committed(&mut entry, ConfState::default(), set_vote).unwrap();
    (changed, entry.change.unwrap().verdict)
}

/// Commits all changes that wait; the votes that they change.
fn commit_all(changes: &mut MemberChanges) -> Vec<VoteChange> {
    let mut votes = Vec::new();
    while let Some(leaving) = changes.next(0, 0, |_| Some(6)) {
        let Leaving::Propose(change, batch) = leaving else { panic!("{leaving:?}") };
        assert_eq!(commit(changes, batch), (Some(change), Ok(())));
        votes.push(change);
    }
    votes
}

#[test]
fn a_change_is_admitted_where_the_others_are_connected() {
    let mut changes = changes(3);
    let put = command(1, Kind::Put, Bytes::new());
    let mut commands = vec![put.clone(), add(2, 9, false)];
    let refused = changes.submit(&mut commands, 100);
    assert_eq!(refused, [(CommandId::new(0, 2, 0), Error::Unhealthy)]);
    assert_eq!(commands, [put], "other commands go their way");
    changes.connected(2, 100);
    changes.connected(3, 100);
    assert_eq!(changes.submit(&mut vec![add(2, 9, false)], 99 + STEADY).len(), 1);
    assert_eq!(changes.submit(&mut vec![add(2, 9, false)], 100 + STEADY), []);
    changes.disconnected(3);
    changes.connected(3, 200); // anew
    assert_eq!(changes.submit(&mut vec![add(3, 9, false)], 201).len(), 1);
    assert_eq!(
        changes.submit(&mut vec![command(4, Kind::MemberRemove, Bytes::from_static(b"x"))], 0).len(),
        1
    );
}

/// A change is refused before its caller is judged only where no leader can tell who that is.
#[test]
fn a_change_that_may_be_judged_waits_for_a_leader() {
    let mut changes = changes(3);
    let take_in = add(2, 9, false).member_change().unwrap().unwrap();
    assert_eq!(changes.may_wait(&take_in, 100), Err(Error::Unhealthy));
    changes.connected(2, 100);
    assert_eq!(changes.may_wait(&take_in, 101), Ok(()), "two of three may have a leader");
    changes.disconnected(2);
    assert_eq!(changes.may_wait(&take_in, 102), Err(Error::Unhealthy));
    let away = command(3, Kind::MemberRemove, Bytes::from_static(&[8, 3]));
    assert_eq!(changes.may_wait(&away.member_change().unwrap().unwrap(), 102), Ok(()));
}

#[test]
fn a_leader_knows_whether_a_learner_is_ready() {
    let mut changes = changes(2);
    assert_eq!(changes.submit(&mut vec![promote(1)], 0), []);
    let matched = |id| if id == 1 { Some(10) } else { Some(8) };
    let refused = changes.next(0, 0, matched);
    assert!(matches!(refused, Some(Leaving::Refuse(1, _, Error::LearnerNotReady))), "{refused:?}");
    let sent = command::encode(Origin { member: 2, boot: 1 }, &[promote(7)]).into();
    assert_eq!(changes.forwarded(2, &sent, 0), Some(Ok(())));
    let Some(Leaving::Propose(VoteChange::Voter(2), batch)) = changes.next(0, 0, |_| Some(10)) else {
        panic!()
    };
    assert_eq!(batch, sent, "as it was received");
    assert!(changes.next(0, 0, matched).is_none());
    let puts = command::encode(OWN, &[command(1, Kind::Put, Bytes::new())]).into();
    assert_eq!(changes.forwarded(2, &puts, 0), None);
}

#[test]
fn a_change_comes_from_the_member_that_sends_it() {
    let mut changes = changes(2);
    let sent = Bytes::from(command::encode(Origin { member: 3, boot: 1 }, &[promote(7)]));
    assert!(matches!(changes.forwarded(2, &sent, 0), Some(Err((_, Error::Malformed(_))))));
    assert!(changes.is_empty());
}

#[test]
fn a_voter_that_lacks_what_was_known_at_the_start_does_not_count() {
    let membership = || changes(3).membership;
    let mut changes = MemberChanges::new(OWN, changes(3).rules, membership(), 7);
    let leaves = |changes: &mut MemberChanges, matched: u64| {
        changes.connected(2, 0);
        let remove = command(1, Kind::MemberRemove, Bytes::from_static(&[8, 3]));
        let sent = command::encode(Origin { member: 2, boot: 1 }, &[remove]).into();
        assert_eq!(changes.forwarded(2, &sent, 0), Some(Ok(())));
        // It came long before this member led.
        let is_known = matched >= changes.last_change;
        let mut next = |now| changes.next(now, 9, |_| Some(matched));
        assert!(is_known || next(50).is_none() && next(58).is_none());
        matches!(next(59), Some(Leaving::Propose(..)))
    };
    assert!(!leaves(&mut changes, 6) && leaves(&mut changes, 7));
    changes.begin_again(membership(), 20);
    assert!(!leaves(&mut changes, 19) && leaves(&mut changes, 20));
}

#[test]
fn a_forced_member_is_not_sent_away() {
    assert!(changes(3).is_sent_away(2) && changes(2).is_sent_away(2) && !changes(2).is_sent_away(3));
    let rules = ChangeRules { forced_until: Some(9), ..changes(3).rules };
    let mut forced = MemberChanges::new(OWN, rules, changes(3).membership, 0);
    assert!(!forced.is_sent_away(2));
    forced.handed_out(10, 0);
    assert!(!forced.is_sent_away(2), "also when the other members are being removed");
    commit_all(&mut forced);
    assert!(!forced.is_sent_away(2) && !forced.is_sent_away(3), "nor when they were removed");
    let batch = |command| Bytes::from(command::encode(OWN, &[command]));
    assert_eq!(commit(&mut forced, batch(add(1, 9, false))).1, Ok(()));
    assert!(forced.is_sent_away(9), "a member that came since then is believed");
    // One that was alone before has nobody to remove.
    let mut alone = MemberChanges::new(OWN, rules, changes(1).membership, 0);
    alone.handed_out(10, 0);
    assert_eq!(commit(&mut alone, batch(add(1, 9, false))).1, Ok(()));
    assert!(alone.is_sent_away(9));
}

#[test]
fn every_member_comes_to_the_same_verdict() {
    let mut changes = changes(1);
    let batch = |command| Bytes::from(command::encode(Origin { member: 5, boot: 1 }, &[command]));
    assert_eq!(commit(&mut changes, batch(add(1, 2, true))), (Some(VoteChange::Learner(2)), Ok(())));
    assert_eq!(commit(&mut changes, batch(add(1, 2, true))), (None, Err(Error::MemberExists)));
    assert_eq!(changes.peers().len(), 1);
    assert_eq!(commit(&mut changes, batch(promote(1))), (Some(VoteChange::Voter(2)), Ok(())));
    let remove = command(1, Kind::MemberRemove, Bytes::from_static(&[8, 1]));
    assert!(!changes.is_removed());
    assert_eq!(commit(&mut changes, batch(remove)), (Some(VoteChange::Gone(1)), Ok(())));
    assert!(changes.is_removed());
    // A damaged entry changes nothing, on any member, and nothing else is in it.
    assert!(commit(&mut changes, Bytes::from_static(b"damaged")).1.is_err());
    let mut cut: Vec<u8> = batch(add(1, 3, true)).to_vec();
    cut.pop();
    for data in [cut.into(), batch(command(1, Kind::Put, Bytes::new()))] {
        let mut entry = entry(data);
        let set_vote = |_| Err("no vote changes");
        changes.committed(&mut entry, ConfState::default(), set_vote).unwrap();
        assert!(entry.data.is_empty() && entry.change.unwrap().verdict.is_err());
    }
    assert!(commit(&mut changes, Bytes::new()).1.is_err());
}

#[test]
fn callers_are_told_when_a_leader_is_lost() {
    let mut changes = changes(1);
    let own = |slot| CommandId::new(0, slot, 0);
    assert_eq!(changes.submit(&mut vec![add(1, 2, true), add(2, 3, true), add(3, 4, true)], 7), []);
    let Some(Leaving::Propose(_, first)) = changes.next(0, 0, |_| Some(1)) else { panic!() };
    let Some(Leaving::Propose(..)) = changes.next(0, 0, |_| Some(1)) else { panic!() };
    assert_eq!(commit(&mut changes, first).1, Ok(()));
    assert_eq!(changes.lose(), [own(2)], "the first is answered when it is applied");
    let sent = command::encode(Origin { member: 2, boot: 1 }, &[promote(7)]).into();
    assert_eq!(changes.forwarded(2, &sent, 7), Some(Ok(())));
    assert_eq!(changes.expire(6), []);
    assert_eq!(changes.expire(7), [(1, own(3)), (2, own(7))]);
    assert!(changes.is_empty());
    let mut many: Vec<_> = (0..=limits::MEMBER_CHANGES_MAX).map(|slot| add(slot, 9, true)).collect();
    let refused = changes.submit(&mut many, 0);
    assert_eq!(refused, [(own(limits::MEMBER_CHANGES_MAX), Error::TooManyRequests)]);
    assert_eq!(changes.leave().len(), limits::MEMBER_CHANGES_MAX);
}

#[test]
fn a_member_that_starts_again_is_not_answered_for_the_process_before() {
    let mut changes = changes(1);
    let sent = command::encode(Origin { member: 2, boot: 1 }, &[promote(7)]).into();
    assert_eq!(changes.forwarded(2, &sent, 7), Some(Ok(())));
    changes.disconnected(3);
    assert!(!changes.is_empty());
    changes.disconnected(2);
    assert!(changes.is_empty());
}

/// Row 59 of the list of bugs: changes that were on their way when the cluster was lost.
#[test]
fn bug_059_a_forced_cluster_has_one_member() {
    let mut changes = changes(3);
    changes.membership.apply(MemberChange::Add {
        member: Member { id: 1, is_learner: true, ..Member::default() },
        learners_max: 1,
    });
    changes.rules.forced_until = Some(5);
    let batch = |command| Bytes::from(command::encode(Origin { member: 2, boot: 1 }, &[command]));
    // An addition that nobody knows to be committed.
    assert_eq!(commit(&mut changes, batch(add(1, 9, false))), (None, Ok(())), "no vote changes");
    changes.handed_out(5, 0);
    assert!(changes.is_empty());
    changes.handed_out(6, 0);
    assert_eq!(changes.expire(1000), [], "nobody waits for them, and they are needed");
    use VoteChange::{Gone, Voter};
    assert_eq!(commit_all(&mut changes), [Voter(1), Gone(2), Gone(3), Gone(9)]);
    let left: Vec<_> = changes.membership().members().map(|member| (member.id, member.is_learner)).collect();
    assert_eq!(left, [(1, false)]);
    assert!(changes.membership().is_removed(9) && changes.lose().is_empty());
}
