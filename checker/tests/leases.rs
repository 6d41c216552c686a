//! Leases that a cluster counts wrong, and the locks of those who hold them, are found.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod world;

use std::collections::BTreeSet;

use revd_checker::{Call, Check, History, Hold, Jump, Outcome, Request, Response, Rules, Time, check};
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest,
};
use world::{SECOND, World, found_in, last, rules};

/// The time that is left of a lease, said twice.
#[test]
fn a_remaining_time_that_grows_by_itself_is_found() {
    let found_by = |rules: &Rules, first: i64, second: i64, is_kept_alive: bool| {
        let mut world = World::new(6);
        world.call(Request::LeaseGrant(LeaseGrantRequest { id: 9, ttl: 5 }));
        for left in [first, second] {
            world.now += SECOND / 2;
            world.call(Request::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 9, keys: false }));
            let outcome = &mut world.history.calls.last_mut().unwrap().outcome;
            let Outcome::Answered(Response::LeaseTimeToLive(response)) = outcome else { unreachable!() };
            response.ttl = left;
            world.now += SECOND / 2;
            if is_kept_alive && left == first {
                world.call(Request::LeaseKeepAlive(LeaseKeepAliveRequest { id: 9 }));
            }
        }
        world.watched();
        let report = check(&world.history, rules);
        (report.faults.iter().map(|fault| fault.check).collect(), report.leases.times)
    };
    let found = |first, second, is_kept_alive| -> BTreeSet<Check> {
        found_by(&rules(), first, second, is_kept_alive).0
    };
    let leases = BTreeSet::from([Check::Leases]);
    assert_eq!(found(4, 4, false), BTreeSet::new());
    assert_eq!(found(4, 5, true), BTreeSet::new());
    assert_eq!(found(4, 5, false), leases, "it grows");
    assert_eq!(found(9, 8, false), leases, "it exceeds what was granted and the slack");
    let calm = |calm: &[(Time, Time)]| Rules { calm_since: None, calm: calm.to_vec(), ..rules() };
    assert_eq!(found_by(&calm(&[(0, 90 * SECOND)]), 4, 5, false), (leases, 2));
    assert_eq!(found_by(&calm(&[]), 4, 5, false), (BTreeSet::new(), 0), "a leader may be new");
}

/// A put is told that its lease is not there, and a lock is held by two: some jumps of a clock
/// explain it, others do not.
#[test]
fn only_leases_that_were_under_way_end_by_a_jump_of_a_clock() {
    let granted = |id| Request::LeaseGrant(LeaseGrantRequest { id, ttl: 5 });
    let found = |jumps: &[(Time, Time)]| {
        let mut world = World::new(7);
        world.call(granted(9));
        world.now += 3 * SECOND;
        let put = Request::Put(PutRequest { lease: 9, ..world::put("leased", "v") });
        let refusal = Outcome::Refused("etcdserver: requested lease not found".to_owned());
        let at = world.now;
        world.history.calls.push(Call {
            request: put,
            outcome: refusal,
            client: 1,
            member: 0,
            life: 0,
            began: at,
            returned: at + 1,
        });
        world.call(granted(10));
        let from = world.now + 10_000;
        for (client, lease) in [(1, 10), (2, 11)] {
            if lease == 11 {
                world.call(granted(11));
            }
            world.history.holds.push(Hold { client, name: "lock".into(), lease, from, until: None });
        }
        world.watched();
        let jumps = jumps.iter().map(|(at, by)| Jump { at: *at, by: *by }).collect();
        let refused = Some(vec!["etcdserver: requested lease not found".to_owned()]);
        let rules = Rules { jumps, errors: refused, ..rules() };
        let faults = check(&world.history, &rules).faults;
        faults.iter().map(|fault| fault.check).collect::<BTreeSet<Check>>()
    };
    let (lease, lock) = (Check::Leases, Check::Locks);
    assert_eq!(found(&[]), BTreeSet::from([lease, lock]));
    assert_eq!(found(&[(SECOND, SECOND)]), BTreeSet::from([lease, lock]), "it lives another second");
    assert_eq!(found(&[(SECOND, 4 * SECOND)]), BTreeSet::from([lock]));
    assert_eq!(found(&[(30 * SECOND, 90 * SECOND)]), BTreeSet::from([lease, lock]), "behind their ends");
    assert_eq!(
        found(&[(3_500_000, 20 * SECOND)]),
        BTreeSet::from([lease, lock]),
        "one held the lock by then"
    );
}

/// Leases in the hands of a cluster that counts their time wrong.
#[test]
fn leases_that_end_early_or_never_are_found() {
    let time_of = |history: &History, is_it: fn(&Call) -> bool| -> Time {
        history.calls[last(history, is_it).unwrap()].began
    };
    let is_keepalive = |call: &Call| matches!(call.request, Request::LeaseKeepAlive(_));
    let leases = BTreeSet::from([Check::Leases]);

    let mut early = World::run(1).history;
    let at = time_of(&early, is_keepalive);
    for call in early.calls.iter_mut().filter(|call| call.began >= at) {
        call.began -= 3 * SECOND; // the last keepalive finds no lease
        call.returned -= 3 * SECOND;
    }
    assert_eq!(found_in(&early), leases, "early by its keepalive");

    let mut short = World::run(2).history;
    let is_alive =
        |call: &Call| matches!(call.answer(), Some(Response::LeaseKeepAlive(response)) if response.ttl > 0);
    let number = last(&short, is_alive).unwrap();
    if let Outcome::Answered(Response::LeaseKeepAlive(response)) = &mut short.calls[number].outcome {
        response.ttl = 4;
    }
    assert_eq!(found_in(&short), leases, "another time to live than granted");

    let mut world = World::new(3);
    (0..30).for_each(|_| world.step());
    world.call(Request::LeaseGrant(LeaseGrantRequest { id: 9, ttl: 5 }));
    world.call(Request::Put(PutRequest { lease: 9, ..world::put("leased", "v") }));
    world.now += 4 * SECOND;
    world.ends(9);
    world.step();
    let mut late = World::new(3);
    late.watched();
    world.watched();
    let gone = found_in(&world.history);
    assert_eq!(gone, leases, "its key is gone a second early");

    let mut world = World::new(4);
    (0..30).for_each(|_| world.step());
    world.call(Request::LeaseGrant(LeaseGrantRequest { id: 9, ttl: 5 }));
    world.call(Request::Put(PutRequest { lease: 9, ..world::put("leased", "v") }));
    world.now += 60 * SECOND;
    world.call(Request::Range(world::get("leased")));
    world.watched();
    assert_eq!(found_in(&world.history), leases, "its key is there a minute late");
    let in_storm = |calm: &[(Time, Time)]| {
        let calm = calm.iter().map(|(from, to)| (from * SECOND, to * SECOND)).collect();
        let rules = Rules { calm_since: None, calm, ..rules() };
        check(&world.history, &rules).faults.iter().map(|fault| fault.check).collect::<BTreeSet<Check>>()
    };
    assert_eq!(in_storm(&[(0, 10), (20, 90)]), leases, "in a calm time of a storm");
    assert_eq!(in_storm(&[(0, 10), (55, 90)]), BTreeSet::new(), "the storm was over a moment before");
    assert_eq!(in_storm(&[(0, 10)]), BTreeSet::new());

    let mut world = World::new(5);
    (0..30).for_each(|_| world.step());
    world.call(Request::LeaseGrant(LeaseGrantRequest { id: 9, ttl: 5 }));
    world.call(Request::Put(PutRequest { lease: 9, ..world::put("leased", "v") }));
    let revoke = Request::LeaseRevoke(LeaseRevokeRequest { id: 9 });
    world.call(revoke);
    world.call(Request::Put(PutRequest { lease: 9, ..world::put("leased", "w") }));
    world.watched();
    assert_eq!(found_in(&world.history), leases, "a key of a lease that was revoked");
}

/// Leases that could have been found beyond their end.
#[test]
fn leases_that_are_looked_for_behind_their_end_are_counted() {
    let ended = |to: Time, count_only: bool| {
        let mut world = World::new(4);
        world.call(Request::LeaseGrant(LeaseGrantRequest { id: 9, ttl: 5 }));
        world.call(Request::Put(PutRequest { lease: 9, ..world::put("leased", "v") }));
        world.now += 6 * SECOND;
        world.ends(9);
        world.now += 54 * SECOND;
        world.call(Request::Range(RangeRequest { count_only, ..world::get("leased") }));
        world.call(Request::Range(world::get("another")));
        world.watched();
        let report = check(&world.history, &Rules { calm_since: None, calm: vec![(0, to)], ..rules() });
        assert_eq!(report.faults, []);
        report.leases.ended
    };
    assert_eq!(ended(90 * SECOND, false), 1);
    assert_eq!(ended(50 * SECOND, false), 0, "nobody looked for it in a calm time");
    assert_eq!(ended(90 * SECOND, true), 0, "a count shows no lease");
}
