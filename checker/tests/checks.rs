//! A right history passes, and each kind of spoilt history is found by the checks that should.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod world;

use std::collections::BTreeSet;

use revd_checker::{
    Call, Check, History, Hold, Jump, Outcome, Request, Response, Rules, Time, check, read, write,
};
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, HashKvRequest, PutRequest, RangeResponse, TxnRequest, WatchResponse,
};
use world::{SECOND, World, found_in, last, rules};

#[test]
fn a_right_history_passes_and_is_the_same_from_its_file() {
    for seed in 1..60 {
        let history = World::run(seed).history;
        let report = check(&history, &rules());
        let faults: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
        assert!(report.registers >= 3 && report.events > 100, "{} {}", report.registers, report.events);
        assert_eq!(read(&write(&history, &rules())).unwrap(), (history, rules()));
    }
}

#[test]
fn promises_are_the_same_from_their_file() {
    let jumps = vec![Jump { at: 3, by: 4 }, Jump { at: 5, by: 6 }];
    for errors in
        [None, Some(vec![]), Some(vec![String::new()]), Some(vec!["a b".to_owned(), "c".to_owned()])]
    {
        for others in [None, Some(""), Some("o/")] {
            let others = others.map(Into::into);
            let (errors, jumps) = (errors.clone(), jumps.clone());
            let calm = vec![(7, 8), (9, 10)];
            let rules = Rules { others, errors, jumps, calm, drift: 7, goes_on: true, ..Rules::default() };
            assert_eq!(read(&write(&History::default(), &rules)).unwrap(), (History::default(), rules));
        }
    }
}

/// Writes without an answer, done or not, are known by what others saw.
#[test]
fn unknown_outcomes_are_decided_by_what_others_saw() {
    for seed in 1..60 {
        let mut world = World::run(seed);
        for number in 0..world.history.calls.len() {
            if world.below(4) == 0 {
                let call = &mut world.history.calls[number];
                call.outcome = Outcome::Unknown("etcdserver: request timed out".to_owned());
            }
        }
        for number in 0..20 {
            let mut call = world.history.calls[number].clone();
            call.request = Request::Put(world::put("key/0", &format!("never {number}")));
            call.outcome = Outcome::Unknown("etcdserver: request timed out".to_owned());
            world.history.calls.push(call);
        }
        let faults = check(&world.history, &rules()).faults;
        assert!(faults.is_empty(), "seed {seed}: {faults:#?}");
    }
}

/// A deletion without an answer.
fn deletion(key: &str, range_end: &str, began: Time, returned: Time) -> Call {
    let range_end = range_end.to_owned().into();
    Call {
        client: 1,
        member: 0,
        life: 0,
        began,
        returned,
        request: Request::DeleteRange(DeleteRangeRequest { range_end, ..world::delete(key) }),
        outcome: Outcome::Unknown("etcdserver: request timed out".to_owned()),
    }
}

/// Of a deletion of one key and one of two, either explains that one key is gone, and only one that
/// both are. Each has deleted once at most.
#[test]
fn an_unknown_deletion_is_the_cause_of_one_revision() {
    let end = 9 * SECOND;
    let found = |deletions: &[(&str, &str)], times: usize| {
        let mut world = World::new(1);
        let calls = deletions.iter().map(|(key, range_end)| deletion(key, range_end, 0, end));
        world.history.calls.extend(calls);
        for time in 0..times {
            world.call(Request::Put(world::put("k1", &format!("v{time}"))));
            if time > 0 {
                world.call(Request::Put(world::put("k2", &format!("v{time}"))));
            }
            let at = world.model.revision();
            let all = deletion("k", "l", 0, 0).request;
            let (_, changes) = revd_checker::Attempt::run(&world.model, at, &all).unwrap();
            world.model.push(changes);
        }
        world.now = end + 1;
        world.watched();
        found_in(&world.history)
    };
    let replay = BTreeSet::from([Check::Replay]);
    assert_eq!(found(&[("k1", "")], 1), BTreeSet::new());
    assert_eq!(found(&[("k", "l"), ("k1", "")], 2), BTreeSet::new());
    assert_eq!(found(&[("k", "l")], 2), replay, "one deletion for two revisions");
    assert_eq!(found(&[("k1", ""), ("k2", "")], 2), replay, "both keys in one revision");
}

/// Two transactions without an answer delete the same keys in two orders; the events say which of
/// them it was. `HashKV` has the order too. Seed 1002421 of the simulator was such a history.
#[test]
fn an_unknown_write_changes_keys_in_the_order_that_watchers_were_told() {
    let both = |keys: [&str; 2]| {
        let success = keys.map(|key| world::op(Op::RequestDeleteRange(world::delete(key)))).to_vec();
        Request::Txn(TxnRequest { success, ..TxnRequest::default() })
    };
    for (first, second) in [(["k1", "k2"], ["k2", "k1"]), (["k2", "k1"], ["k1", "k2"])] {
        let mut world = World::new(1);
        for request in [both(first), both(second)] {
            world.history.calls.push(Call { request, ..deletion("", "", 0, 9 * SECOND) });
        }
        world.call(Request::Put(world::put("k1", "v")));
        world.call(Request::Put(world::put("k2", "v")));
        let (_, changes) =
            revd_checker::Attempt::run(&world.model, world.model.revision(), &both(second)).unwrap();
        world.model.push(changes);
        world.now = 10 * SECOND;
        world.call(Request::HashKv(HashKvRequest::default()));
        world.watched();
        assert_eq!(found_in(&world.history), BTreeSet::new());
    }
}

/// Two deletions without an answer, of which the one that gave up first began when the change was
/// known.
#[test]
fn an_unknown_write_is_not_the_cause_of_what_was_shown_before_it_began() {
    let (early, late) = (deletion("k", "", SECOND, 4 * SECOND), deletion("k", "", 3 * SECOND, 3_050_000));
    let mut world = World::new(1);
    world.call(Request::Put(world::put("k", "v")));
    let (_, changes) =
        revd_checker::Attempt::run(&world.model, world.model.revision(), &early.request).unwrap();
    world.model.push(changes);
    world.now = 1_600_000 - 1_000;
    world.call(Request::Range(world::get("k")));
    world.history.calls.push(late);
    let without = world.history.calls.len();
    world.history.calls.push(early);
    world.now = 5 * SECOND;
    world.watched();
    let faults = check(&world.history, &rules()).faults;
    assert!(faults.is_empty(), "{faults:#?}");
    world.history.calls.truncate(without);
    assert!(found_in(&world.history).contains(&Check::Replay), "nobody has deleted it");
}

type Spoil = fn(&mut World) -> Option<()>;

/// The number of the last call that this is true of.
fn put_of(call: &Call) -> Option<&PutRequest> {
    match (&call.request, call.answer()) {
        (Request::Put(put), Some(_)) => Some(put),
        _ => None,
    }
}

fn range_of(call: &mut Call) -> Option<&mut RangeResponse> {
    match &mut call.outcome {
        Outcome::Answered(Response::Range(response)) => Some(response),
        _ => None,
    }
}

fn is_plain_read(call: &Call) -> bool {
    let Request::Range(request) = &call.request else { return false };
    let is_found = matches!(call.answer(), Some(Response::Range(found)) if !found.kvs.is_empty());
    is_found && !request.serializable && request.range_end.is_empty()
}

/// A read of a time before a change that was acknowledged: its whole answer is older.
fn stale(world: &mut World, is_serializable: bool, place: Option<u32>) -> Option<()> {
    let at = world.model.revision() - 10;
    let mut read = world::get("key/1");
    read.serializable = is_serializable;
    let (mut response, _) = revd_checker::Attempt::run(&world.model, at, &Request::Range(read.clone()))?;
    response.header().get_or_insert_default().revision = at;
    let began = world.now + SECOND;
    let member = place.unwrap_or(7);
    world.history.calls.push(Call {
        client: 900,
        member,
        life: 0,
        began,
        returned: began + 1,
        request: Request::Range(read),
        outcome: Outcome::Answered(response),
    });
    Some(())
}

/// A read of this revision, at the end, is refused.
fn refused(world: &mut World, revision: i64, error: &str) -> Option<()> {
    let old = |call: &Call| matches!(&call.request, Request::Range(range) if range.revision > 0);
    let number = last(&world.history, old)?;
    let call = &mut world.history.calls[number];
    let Request::Range(request) = &mut call.request else { return None };
    request.revision = revision;
    (call.began, call.returned) = (world.now, world.now + 1);
    call.outcome = Outcome::Refused(error.to_owned());
    Some(())
}

const SPOILS: &[(&str, Spoil, &[Check])] = &[
    (
        "a linearizable read of the past",
        |world| stale(world, false, None),
        &[Check::StaleRead, Check::Registers],
    ),
    ("a serializable read of the past on another member", |world| stale(world, true, None), &[]),
    ("a member that goes back", |world| stale(world, true, Some(1)), &[Check::GoesBack]),
    (
        "an acknowledged write that is not there",
        |world| {
            let mut call = world.history.calls.iter().rfind(|call| put_of(call).is_some())?.clone();
            call.request = Request::Put(world::put("key/9", "lost"));
            world.history.calls.push(call);
            Some(())
        },
        &[Check::Replay],
    ),
    (
        "a write that was carried out twice",
        |world| {
            let again = world.history.calls.iter().rfind(|call| put_of(call).is_some())?.request.clone();
            let at = world.model.revision();
            let (_, changes) = revd_checker::Attempt::run(&world.model, at, &again)?;
            world.model.push(changes);
            world.history.watches.clear();
            world.watched();
            Some(())
        },
        &[Check::Replay],
    ),
    (
        "a refused write that was carried out",
        |world| {
            let number = last(&world.history, |call| put_of(call).is_some_and(|put| put.lease == 0))?;
            world.history.calls[number].outcome =
                Outcome::Refused("etcdserver: request timed out".to_owned());
            Some(())
        },
        &[Check::Replay],
    ),
    (
        "a previous value that was not",
        |world| {
            let with =
                |call: &Call| matches!(call.answer(), Some(Response::Put(put)) if put.prev_kv.is_some());
            let number = last(&world.history, with)?;
            if let Outcome::Answered(Response::Put(put)) = &mut world.history.calls[number].outcome {
                put.prev_kv.as_mut()?.version += 1;
            }
            Some(())
        },
        &[Check::Replay],
    ),
    (
        "a transaction that took the other branch",
        |world| {
            let is_txn = |call: &Call| matches!(call.answer(), Some(Response::Txn(txn)) if !txn.succeeded);
            let number = last(&world.history, is_txn)?;
            if let Request::Txn(txn) = &mut world.history.calls[number].request {
                txn.compare.clear();
            }
            Some(())
        },
        &[Check::Reads],
    ),
    (
        "a value that nobody wrote",
        |world| {
            let number = last(&world.history, is_plain_read)?;
            range_of(&mut world.history.calls[number])?.kvs[0].value = "other".into();
            Some(())
        },
        &[Check::Reads, Check::Registers],
    ),
    (
        "a count that is wrong",
        |world| {
            let number = last(&world.history, is_plain_read)?;
            range_of(&mut world.history.calls[number])?.count += 1;
            Some(())
        },
        &[Check::Reads],
    ),
    (
        "a write behind a revision that was shown before it began",
        |world| {
            let number = last(&world.history, |call| put_of(call).is_some())?;
            let end = world.now + SECOND;
            let call = &mut world.history.calls[number];
            (call.member, call.began, call.returned) = (7, end, end + 1);
            Some(())
        },
        &[Check::Order],
    ),
    (
        "an error that no fault explains",
        |world| {
            let number = last(&world.history, is_plain_read)?;
            world.history.calls[number].outcome = Outcome::Unknown("panicked".to_owned());
            Some(())
        },
        &[Check::Errors],
    ),
    (
        "a refusal of a revision that is there",
        |world| refused(world, 100, "etcdserver: mvcc: required revision is a future revision"),
        &[Check::Reads, Check::Errors],
    ),
    (
        "a refusal of a revision that nobody compacted",
        |world| {
            let newest = world.model.revision();
            refused(world, newest, "etcdserver: mvcc: required revision has been compacted")
        },
        &[Check::Reads, Check::Errors],
    ),
    (
        "a read of a revision that is compacted",
        |world| {
            let began = world.now + SECOND;
            let mut read = world::get("key/1");
            read.revision = 2;
            let (mut response, _) = revd_checker::Attempt::run(
                &world.model,
                world.model.revision(),
                &Request::Range(read.clone()),
            )?;
            response.header().get_or_insert_default().revision = world.model.revision();
            world.history.calls.push(Call {
                client: 900,
                member: 0,
                life: 0,
                began,
                returned: began + 1,
                request: Request::Range(read),
                outcome: Outcome::Answered(response),
            });
            Some(())
        },
        &[Check::Reads],
    ),
    (
        "a put without a lease that is refused for one",
        |world| {
            let number = last(&world.history, is_plain_read)?;
            let call = &mut world.history.calls[number];
            call.request = Request::Put(world::put("key/1", "refused"));
            call.outcome = Outcome::Refused("etcdserver: requested lease not found".to_owned());
            Some(())
        },
        &[Check::Errors],
    ),
    (
        "a hash of another state",
        |world| {
            let is_hash = |call: &Call| matches!(call.request, Request::HashKv(_));
            let number = last(&world.history, is_hash)?;
            if let Outcome::Answered(Response::HashKv(hash)) = &mut world.history.calls[number].outcome {
                hash.hash ^= 1;
            }
            Some(())
        },
        &[Check::HashKv],
    ),
    (
        "members that differ",
        |world| {
            world.history.states[4].digest = "other".into();
            Some(())
        },
        &[Check::Members],
    ),
    (
        "a lock with two holders",
        |world| {
            let Hold { from, until, .. } = world.history.holds[0];
            let hold = Hold { client: 5, from: from + 1, until, ..world.history.holds[0].clone() };
            world.history.holds.push(hold);
            Some(())
        },
        &[Check::Locks],
    ),
];

#[test]
fn each_spoilt_history_is_found_by_the_checks_that_should_find_it() {
    for (name, spoil, expected) in SPOILS {
        let mut spoilt = 0;
        for seed in 1..30 {
            let mut world = World::run(seed);
            if spoil(&mut world).is_none() {
                continue;
            }
            spoilt += 1;
            let report = check(&world.history, &rules());
            let found: BTreeSet<Check> = report.faults.iter().map(|fault| fault.check).collect();
            // A stale value may be the newest one by chance; then only its revision tells.
            let by_chance = BTreeSet::from([Check::Registers]);
            let expected: BTreeSet<Check> = expected.iter().copied().collect();
            let differs: BTreeSet<Check> = found.symmetric_difference(&expected).copied().collect();
            assert!(
                differs.is_subset(&by_chance) && (found.is_empty() == expected.is_empty()),
                "{name}, seed {seed}: found {found:?}, expected {expected:?}: {:#?}",
                report.faults
            );
        }
        assert!(spoilt > 10, "{name}: only {spoilt} histories could be spoilt so");
    }
}

/// The transcript of the watcher, spoilt in each of the ways that there are.
#[test]
fn spoilt_transcripts_are_found() {
    let mut ways = BTreeSet::new();
    for seed in 1..20 {
        let world = World::run(seed);
        let watch = &world.history.watches[0];
        for (name, transcript) in revd_checker::mutants(&watch.transcript, world.model.revision()) {
            let mut history = world.history.clone();
            history.watches[0].transcript = transcript.clone();
            let mut other = watch.clone();
            other.transcript = transcript;
            history.watches = vec![watch.clone(), other];
            assert_eq!(found_in(&history), BTreeSet::from([Check::Watches]), "{name}");
            ways.insert(name);
        }
    }
    assert_eq!(ways.len(), 6, "{ways:?}");
}

/// A watcher that has been told of a revision is not behind a compaction at it.
#[test]
fn a_cancel_for_a_compaction_that_the_watcher_had_passed_is_found() {
    let world = World::run(1);
    let compaction = world.history.calls.iter().find_map(|call| match &call.request {
        Request::Compact(request) => Some(request.revision),
        _ => None,
    });
    let compacted = compaction.unwrap();
    let watch = &world.history.watches[0].transcript;
    let newest = |response: &WatchResponse| {
        response.events.last().map_or(0, |event| event.kv.as_ref().unwrap().mod_revision)
    };
    let passed = watch.responses.iter().position(|response| newest(response) >= compacted).unwrap();
    let cancel =
        WatchResponse { canceled: true, compact_revision: compacted, ..watch.responses[passed].clone() };
    let cancel = WatchResponse { events: Vec::new(), ..cancel };
    let canceled_behind = |told: usize| {
        let mut history = world.history.clone();
        let mut other = history.watches[0].clone();
        other.transcript.responses.truncate(told);
        other.transcript.responses.push(cancel.clone());
        other.transcript.complete_to = None;
        history.watches.push(other);
        found_in(&history)
    };
    assert_eq!(canceled_behind(passed), BTreeSet::new(), "it was behind");
    assert_eq!(canceled_behind(passed + 1), BTreeSet::from([Check::Watches]));
}
