//! Whether loadgen shows what is there: a server with known faults, and what a run says of it.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fake::{Fake, Faults};
use revd_loadgen::clock;
use revd_loadgen::cost::CostSource;
use revd_loadgen::keys::SizeRange;
use revd_loadgen::measure::Session;
use revd_loadgen::plan::{OpKind, Plan, PlannedOp, WatchPlan};
use revd_loadgen::result::RunResult;
use revd_loadgen::wire::users::{Credentials, set_for};

fn run(faults: Faults, plan: Plan) -> RunResult {
    let fake = Fake::start(faults);
    let plan = Plan { name: "test".to_owned(), endpoints: vec![fake.endpoint.clone()], ..plan };
    let session = Session { is_quiet: true, interrupted: Arc::new(AtomicBool::new(false)) };
    session.run(&plan, 1, &CostSource::default()).unwrap()
}

fn puts() -> Plan {
    Plan {
        ops: vec![PlannedOp::new(OpKind::Put { prev_kv: false })],
        conns: 2,
        clients: 10,
        warmup: 0.0,
        ..Plan::default()
    }
}

/// Calls that took at least so many milliseconds.
fn slow(run: &RunResult, milliseconds: u64) -> u64 {
    let samples = run.op("put").next().unwrap().latency.samples().unwrap();
    samples.count_between(milliseconds * 1_000_000, u64::MAX)
}

/// A server that stands still for 400 ms under 1,000 calls a second keeps 400 of them waiting, half
/// of them for more than 200 ms: each that was meant to begin meanwhile counts from then. Slower
/// machines can only add to that.
#[test]
fn a_stall_is_seen_by_every_call_that_was_meant_to_begin_in_it() {
    let stall = Some((Duration::from_millis(700), Duration::from_millis(400)));
    for clients in [1, 10, 1_000] {
        let plan = Plan { rate: Some(1_000.0), duration: 2.0, clients, ..puts() };
        let run = run(Faults { stall, ..Faults::default() }, plan);
        let op = run.op("put").next().unwrap();
        // An overloaded machine may not get to the last calls: those are named as unsent.
        let ended = op.count + op.errors.values().sum::<u64>();
        assert_eq!(ended + run.rounds[0].generator.unsent, 2_000, "{:?}", op.errors);
        let halves = (slow(&run, 1), slow(&run, 200));
        assert!(halves.0 >= 380 && halves.1 >= 190, "{halves:?} waited 1 and 200 ms with {clients} callers");
        assert!(op.latency.max >= 390_000.0, "the longest wait was {} us", op.latency.max);
        // The one caller that was served last began so late that the server cannot be blamed for
        // its own wait: only what it was meant to do shows that. Both series are kept.
        let service = op.service.as_ref().unwrap().samples().unwrap();
        if clients == 1 {
            let waited = service.count_between(200_000_000, u64::MAX);
            assert!(waited < halves.1 / 2, "{waited} calls waited by the closed loop's measure");
        }
        let worst = op.seconds.iter().map(|second| second.max).fold(0.0, f64::max);
        assert!(worst >= 380_000.0, "no second shows the stall: {:?}", op.seconds);
    }
}

/// In a closed loop the same stall is seen once by each caller, and that is all: why the open loop
/// is there.
#[test]
fn a_closed_loop_sees_a_stall_once_for_each_caller() {
    let stall = Some((Duration::from_millis(500), Duration::from_millis(400)));
    let run = run(Faults { stall, ..Faults::default() }, Plan { duration: 1.5, clients: 4, ..puts() });
    let seen = slow(&run, 300);
    assert!((1..=8).contains(&seen), "{seen} calls saw the stall");
}

fn watched() -> Plan {
    let watch = WatchPlan { watchers: 20, streams: 5, conns: 2, ..WatchPlan::default() };
    Plan { watch: Some(watch), total: Some(200), rate: Some(500.0), ..puts() }
}

#[test]
fn events_are_counted_and_missing_ones_are_named() {
    let good = run(Faults::default(), watched());
    let events = good.rounds[0].events.unwrap();
    assert_eq!((events.delivered, events.expected), (200 * 20, 200 * 20));
    assert!(good.is_good(), "{:?}", good.violations);
    assert_eq!(good.op("watch").next().unwrap().count, 200 * 20);

    let bad = run(Faults { forgets_event: Some(1_000), ..Faults::default() }, watched());
    let events = bad.rounds[0].events.unwrap();
    assert_eq!((events.delivered, events.expected), (200 * 20 - 4, 200 * 20));
    assert!(!bad.is_good() && bad.violations[0].contains("3996 events arrived"), "{:?}", bad.violations);
}

/// However many threads share the work, everything is counted once.
#[test]
fn threads_share_callers_rates_and_watchers() {
    for threads in [2, 3] {
        let plan = Plan { threads, ..watched() };
        let run = run(Faults::default(), plan);
        let events = run.rounds[0].events.unwrap();
        assert_eq!((events.delivered, events.expected), (200 * 20, 200 * 20), "{threads} threads");
        assert!(run.is_good(), "{:?}", run.violations);
        assert_eq!(run.op("put").next().unwrap().count, 200);
    }
    let run = run(Faults::default(), Plan { threads: 3, rate: Some(3_000.0), duration: 1.0, ..puts() });
    // On a busy machine some begin too late, or end after the run.
    let (put, unsent) = (run.op("put").next().unwrap(), run.rounds[0].generator.unsent);
    let calls = put.count + put.errors.values().sum::<u64>() + unsent;
    assert!(calls.abs_diff(3_000) <= 3, "{calls}");
}

/// The last reply of one thread comes when time is up, and the other has had all of its own and all
/// events that are known by then: its watchers wait for the events of that write, too.
#[test]
fn watchers_of_a_thread_wait_for_the_last_replies_of_others() {
    let plan = Plan { threads: 2, total: None, duration: 0.4, clients: 200, ..watched() };
    let run = run(Faults { holds_put: Some(195), ..Faults::default() }, plan);
    let events = run.rounds[0].events.unwrap();
    assert!(events.expected >= 195 * 20 && events.delivered == events.expected, "{events:?}");
    assert!(run.is_good() && slow(&run, 250) >= 1, "{:?}", run.violations);
}

#[test]
fn a_server_that_goes_back_is_named() {
    let run =
        run(Faults { goes_back_after: Some(100), ..Faults::default() }, Plan { total: Some(300), ..puts() });
    assert!(run.violations.iter().any(|what| what.contains("revision 1")), "{:?}", run.violations);
}

#[test]
fn errors_are_counted_by_kind_and_are_no_latencies() {
    let run = run(Faults { refuses: Some(10), ..Faults::default() }, Plan { total: Some(1_000), ..puts() });
    let op = run.op("put").next().unwrap();
    assert_eq!(op.count, 900);
    let expected = [("RESOURCE_EXHAUSTED: etcdserver: mvcc: database space exceeded".to_owned(), 100)];
    assert_eq!(op.errors, expected.into_iter().collect());
}

/// Hundreds of calls are under way with a token that ends: one login for all of them.
#[test]
fn many_calls_that_are_refused_for_one_token_log_in_once() {
    for threads in [1, 3] {
        let fake = Fake::start(Faults { ends_tokens_after: Some(1_000), ..Faults::default() });
        let credentials = Credentials { name: "ann".to_owned(), password: "secret".to_owned() };
        set_for(&fake.endpoint, credentials);
        let endpoints = vec![fake.endpoint.clone()];
        let plan = Plan { endpoints, threads, total: Some(3_000), conns: 6, clients: 300, ..puts() };
        let session = Session { is_quiet: true, interrupted: Arc::new(AtomicBool::new(false)) };
        let run = session.run(&Plan { name: "test".to_owned(), ..plan }, 1, &CostSource::default()).unwrap();
        let op = run.op("put").next().unwrap();
        assert!(op.errors.is_empty() && op.count == 3_000, "{}: {:?}", op.count, op.errors);
        assert_eq!(fake.logins.load(Ordering::Relaxed), 2, "with {threads} threads");
    }
}

/// Measurements until then are kept, and marked.
#[test]
fn a_server_that_dies_leaves_a_partial_result() {
    let plan = Plan { duration: 30.0, rate: Some(1_000.0), ..puts() };
    let run = run(Faults { dies_after: Some(500), ..Faults::default() }, plan);
    let op = run.op("put").next().unwrap();
    assert!(op.count > 100, "{}", op.count);
    assert!(run.rounds[0].generator.unsent > 1_000, "{:?}", run.rounds[0].generator);
    assert!(run.warnings.iter().any(|what| what.contains("never began")), "{:?}", run.warnings);
    assert!(run.stopped.as_ref().unwrap().contains("refused"), "{:?}", run.stopped);
    assert!(!run.is_good() && run.rounds[0].seconds < 20.0, "{}", run.rounds[0].seconds);
}

#[test]
fn an_open_loop_keeps_its_rate_and_total() {
    let run = run(Faults::default(), Plan { rate: Some(2_000.0), duration: 1.0, ..puts() });
    let (op, generator) = (run.op("put").next().unwrap(), run.rounds[0].generator);
    assert!((op.count + generator.unsent).abs_diff(2_000) <= 1, "{}, {generator:?}", op.count);
    let again = self::run(Faults::default(), Plan { total: Some(777), ..puts() });
    assert_eq!(again.op("put").next().unwrap().count, 777);
    assert_eq!(again.rounds[0].ops.len(), 1);
}

/// All calls of an open loop whose thread looks at clock and sockets every 20 ms begin, the last
/// ones at the end, and their times have the wait for a look in them.
#[test]
fn looks_that_are_far_apart_are_a_part_of_latencies() {
    let plan = Plan { rate: Some(2_000.0), duration: 1.0, turn_every: 0.02, clients: 2_000, ..puts() };
    let run = run(Faults::default(), plan);
    let (op, generator) = (run.op("put").next().unwrap(), run.rounds[0].generator);
    assert_eq!((op.count, generator.unsent), (2_000, 0), "{:?}", op.errors);
    // Each takes 20 ms but for the time from a look to the calls that begin behind it, which is
    // long where the thread waits for its CPU.
    assert!(slow(&run, 10) > 1_500, "{} of 2,000 took 10 ms or more", slow(&run, 10));
}

/// A put of 8 MiB goes out in pieces, as the server has room for them: the first one waits for a
/// look, and its reply for another one.
#[test]
fn the_rest_of_a_request_waits_for_no_look() {
    let val_size = SizeRange { min: 8 << 20, max: 8 << 20 };
    let plan = Plan { rate: Some(4.0), duration: 1.0, turn_every: 0.05, val_size, ..puts() };
    let run = run(Faults::default(), plan);
    let op = run.op("put").next().unwrap();
    assert!(op.count >= 3 && op.latency.min < 250_000.0, "{:?}", op.latency);
}

/// Calls that became due since the last look before a signal found no look, and not no caller.
#[test]
fn an_interrupted_run_names_no_calls_that_its_last_look_did_not_see() {
    let fake = Fake::start(Faults::default());
    let plan = Plan { rate: Some(1_000.0), duration: 30.0, turn_every: 0.05, clients: 1_000, ..puts() };
    let plan = Plan { name: "test".to_owned(), endpoints: vec![fake.endpoint.clone()], ..plan };
    let interrupted = Arc::new(AtomicBool::new(false));
    let session = Session { is_quiet: true, interrupted: Arc::clone(&interrupted) };
    let run = std::thread::scope(|scope| {
        let run = scope.spawn(|| session.run(&plan, 1, &CostSource::default()).unwrap());
        clock::rest(Duration::from_millis(500));
        interrupted.store(true, Ordering::Relaxed);
        run.join().unwrap()
    });
    assert_eq!(run.stopped.as_deref(), Some("interrupted"));
    assert!(run.op("put").next().unwrap().count > 50);
    assert_eq!(run.rounds[0].generator.unsent, 0, "{:?}", run.warnings);
}

/// A server without users is asked for a token once, and again once it wants one.
#[test]
fn a_server_that_asks_for_no_rights_is_remembered_until_it_does() {
    for threads in [1, 3] {
        let fake = Fake::start(Faults { is_open_until: Some(1_000), ..Faults::default() });
        let credentials = Credentials { name: "ann".to_owned(), password: "secret".to_owned() };
        set_for(&fake.endpoint, credentials);
        let plan = |total| {
            let endpoints = vec![fake.endpoint.clone()];
            let name = "test".to_owned();
            Plan { name, endpoints, threads, total: Some(total), conns: 6, clients: 30, ..puts() }
        };
        let session = Session { is_quiet: true, interrupted: Arc::new(AtomicBool::new(false)) };
        for (total, logins) in [(400, 1), (500, 1), (2_000, 2)] {
            let run = session.run(&plan(total), 1, &CostSource::default()).unwrap();
            let op = run.op("put").next().unwrap();
            assert!(op.errors.is_empty() && op.count == total, "{}: {:?}", op.count, op.errors);
            assert_eq!(fake.logins.load(Ordering::Relaxed), logins, "with {threads} threads");
        }
    }
}
