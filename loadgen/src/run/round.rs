//! A round: preparing the store, starting threads together, collecting their reports.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Context as _;

use crate::calm::CalmResult;
use crate::clock;
use crate::cost::{self, CostSource, ProcessUsage};
use crate::keys::KeyOrder;
use crate::plan::{COMPACT_NAME, OpKind, Plan, PlannedOp, WATCH_NAME};
use crate::probe;
use crate::record::{OpRecord, histogram};
use crate::result::{EventCounts, GeneratorCost, OpResult, RoundResult, ServerSample};
use crate::run::beside::Beside;
use crate::run::compactions::{self, Compactions};
use crate::run::disk_probe::{self, DiskProbe};
use crate::run::samples::Sampler;
use crate::run::shared::RunShared;
use crate::run::worker::Worker;
use crate::run::worker_report::WorkerReport;

/// Calls under way while the store is prepared.
const PRELOAD_CLIENTS: usize = 256;
const PRELOAD_CONNS: usize = 4;
/// Transactions under way, where each writes many keys.
const PRELOAD_BATCHES: usize = 32;
/// A busier generator thread may be the limit.
const BUSY_MAX: f64 = 0.9;
/// So late, in microseconds, an open loop is not open any more; the wait for a look, which the plan
/// has asked for, comes on top.
const LATE_MAX: f64 = 2_000.0;

/// How a run goes, for a progress line.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Of the time, or of the calls, that the run takes.
    pub share: f64,
    /// Calls that ended well, and those that failed.
    pub done: u64,
    /// Failures.
    pub failed: u64,
    /// Events that came.
    pub events: u64,
    /// Seconds since traffic began.
    pub seconds: f64,
}

/// Around a run.
pub struct Surroundings<'s> {
    /// Where it is seen what the run costs the servers.
    pub source: CostSource,
    /// Set to end the run early.
    pub interrupted: Arc<AtomicBool>,
    /// Called ten times a second.
    pub progress: &'s mut dyn FnMut(&str, Progress),
}

/// The results of a round.
pub struct RoundOutcome {
    /// The figures.
    pub round: RoundResult,
    /// Warnings that belong to the figures.
    pub warnings: Vec<String>,
    /// Violations of the server.
    pub violations: Vec<String>,
    /// Why it ended early.
    pub stopped: Option<String>,
}

/// Writes the keys that the plan reads, if it asks for that; returns the revision before.
///
/// # Errors
/// When the server cannot be reached, or refuses.
pub fn preload(plan: &Plan, around: &mut Surroundings<'_>) -> anyhow::Result<i64> {
    let revision = probe::status(&plan.endpoints[0])?.revision;
    if !plan.preload {
        return Ok(revision);
    }
    let mut key_sets = vec![(&plan.keys, plan.val_size)];
    key_sets.extend(
        plan.ops.iter().filter_map(|op| Some((op.keys.as_ref()?, op.val_size.unwrap_or(plan.val_size)))),
    );
    for (keys, val_size) in key_sets {
        let batch = keys.count.min(plan.preload_batch as u64).max(1);
        let kind = match usize::try_from(batch).unwrap_or(1) {
            1 => OpKind::Put { prev_kv: false },
            puts => OpKind::Txn { puts },
        };
        let mut filling = Plan {
            name: format!("{}: preload", plan.name),
            ops: vec![PlannedOp::new(kind)],
            conns: PRELOAD_CONNS,
            clients: if batch > 1 { PRELOAD_BATCHES } else { PRELOAD_CLIENTS },
            threads: 1,
            keys: keys.clone(),
            val_size,
            preload: false,
            rate: None,
            turn_every: 0.0,
            total: Some(keys.count.div_ceil(batch)),
            warmup: 0.0,
            compact_every: None,
            disk_probe: None,
            watch: None,
            ..plan.clone()
        };
        filling.keys.order = KeyOrder::Sequential;
        let outcome = execute(&filling, revision, "preload", around)?;
        if let Some(why) = outcome.stopped {
            anyhow::bail!("{}: {why}", filling.name);
        }
        for op in outcome.round.ops {
            anyhow::ensure!(op.errors.is_empty(), "{}: {:?}", filling.name, op.errors);
        }
    }
    Ok(revision)
}

/// Runs a plan once.
///
/// # Errors
/// When it cannot begin.
pub fn round(plan: &Plan, revision: i64, around: &mut Surroundings<'_>) -> anyhow::Result<RoundOutcome> {
    execute(plan, revision, &plan.name, around)
}

fn execute(
    plan: &Plan,
    revision: i64,
    what: &str,
    around: &mut Surroundings<'_>,
) -> anyhow::Result<RoundOutcome> {
    plan.check()?;
    let catches_up = plan.catches_up();
    // Watchers that catch up are what is measured, from the first moment on.
    let plan = &Plan { warmup: if catches_up { 0.0 } else { plan.warmup }, ..plan.clone() };
    let shared = Arc::new(RunShared::new(plan.threads));
    let compactor = compactions::start(plan, &shared)?;
    let probe = disk_probe::start(plan, around.source.data_folder.as_deref(), &shared)?;
    let mut threads = Vec::new();
    for thread in 0..plan.threads {
        // 0 is from now on.
        let worker = Worker::new(plan, thread, &shared, if catches_up { revision + 1 } else { 0 })?;
        let shared = Arc::clone(&shared);
        let body = move || {
            let _guard = StopsOnPanic(Arc::clone(&shared));
            let report = worker.run();
            if let Err(error) = &report {
                shared.stop(&format!("{error:#}"));
            }
            report
        };
        threads.push(std::thread::Builder::new().name(format!("loadgen-{thread}")).spawn(body)?);
    }
    let watched =
        follow(plan, what, &shared, around, || threads.iter().all(std::thread::JoinHandle::is_finished));
    let beside = WorkBeside {
        compactions: compactor.and_then(Beside::end).unwrap_or_else(Compactions::none),
        probe: probe.and_then(Beside::end).unwrap_or_default(),
    };
    let mut reports = Vec::new();
    for thread in threads {
        let report = thread.join().map_err(|_| anyhow::anyhow!("a generator thread has panicked"))?;
        match report {
            Ok(report) => reports.push(report),
            Err(error) if shared.why().is_none() => return Err(error),
            Err(_) => {}
        }
    }
    anyhow::ensure!(!reports.is_empty(), "{what}: {}", shared.why().unwrap_or_default());
    Ok(outcome(plan, &shared, reports, watched, beside))
}

/// Ends the run when its thread panics: others would wait for replies of that one.
struct StopsOnPanic(Arc<RunShared>);

impl Drop for StopsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop("a generator thread has panicked");
        }
    }
}

/// The results of threads beside the callers.
struct WorkBeside {
    compactions: Compactions,
    probe: DiskProbe,
}

/// The servers, as seen from outside.
struct ServerWatch {
    start: u64,
    samples: Vec<ServerSample>,
    before: ProcessUsage,
    after: ProcessUsage,
}

/// Starts the threads when all are ready, and watches until they are done.
fn follow(
    plan: &Plan,
    what: &str,
    shared: &RunShared,
    around: &mut Surroundings<'_>,
    are_done: impl Fn() -> bool,
) -> ServerWatch {
    while shared.ready.load(Relaxed) < plan.threads && !are_done() {
        if around.interrupted.load(Relaxed) {
            shared.stop("interrupted");
        }
        clock::rest(Duration::from_millis(1));
    }
    let usage = |pids: &[u32]| ProcessUsage::of(pids);
    let syncs = |pids: &[u32]| if pids.is_empty() { None } else { cost::syncs(&plan.endpoints) };
    // Making metrics costs a server something, which is not what is measured: they are asked for
    // outside of it.
    let before = |pids: &[u32]| ProcessUsage { syncs: syncs(pids), ..usage(pids) };
    let after = |pids: &[u32]| {
        let used = usage(pids);
        ProcessUsage { syncs: syncs(pids), ..used }
    };
    // A run without a warm-up may be over before metrics are there.
    let first = before(&around.source.pids);
    let start = clock::nanos() + 2_000_000;
    shared.start.store(start, Relaxed);
    let (from, length) = (
        start + clock::from_seconds(plan.warmup),
        clock::from_seconds(plan.warmup) + clock::from_seconds(plan.duration),
    );
    let mut watched =
        ServerWatch { start, samples: Vec::new(), before: first, after: ProcessUsage::default() };
    let mut sampler = (plan.warmup == 0.0).then(|| Sampler::new(from, from, watched.before));
    let mut ended = None;
    while !are_done() {
        let now = clock::nanos();
        if sampler.is_none() && now >= from {
            watched.before = before(&around.source.pids);
            sampler = Some(Sampler::new(from, now, watched.before));
        }
        if plan.total.is_none() && ended.is_none() && now >= start + length {
            ended = Some(after(&around.source.pids));
        }
        if let Some(sampler) = &mut sampler {
            sampler.turn(now, &around.source);
        }
        if around.interrupted.load(Relaxed) {
            shared.stop("interrupted");
        }
        let (done, failed) = (shared.done.load(Relaxed), shared.failed.load(Relaxed));
        let passed = now.saturating_sub(start);
        let share = match plan.total {
            Some(total) => (done + failed) as f64 / total.max(1) as f64,
            None => passed as f64 / length.max(1) as f64,
        };
        let events = shared.events.load(Relaxed);
        let seconds = passed as f64 / 1e9;
        (around.progress)(what, Progress { share: share.min(1.0), done, failed, events, seconds });
        clock::rest(Duration::from_millis(if sampler.is_some() { 50 } else { 5 }));
    }
    watched.after = ended.unwrap_or_else(|| after(&around.source.pids));
    watched.samples = sampler.map(Sampler::into_samples).unwrap_or_default();
    watched
}

fn outcome(
    plan: &Plan,
    shared: &RunShared,
    reports: Vec<WorkerReport>,
    watched: ServerWatch,
    beside: WorkBeside,
) -> RoundOutcome {
    let names = plan.ops.iter().map(|op| op.name()).chain([WATCH_NAME]);
    let mut records: Vec<OpRecord> = names.map(OpRecord::new).collect();
    let mut late = histogram();
    let mut violations = Vec::new();
    let (mut busy, mut cpu, mut ended, mut missing, mut unsent) = (0.0_f64, 0, 0, 0, 0);
    let mut events = EventCounts { delivered: 0, expected: 0, uncertain: 0 };
    for report in reports {
        records.iter_mut().zip(&report.records).for_each(|(all, own)| all.merge(own));
        late += report.late;
        violations.extend(report.violations);
        busy = busy.max(report.busy);
        cpu += report.cpu;
        ended = ended.max(report.ended);
        missing += report.missing;
        unsent += report.unsent;
        events.delivered += report.delivered;
        events.expected += report.expected;
        events.uncertain += report.unknown;
    }
    // Behind the operations of callers, and before the delays of watchers.
    records.insert(plan.ops.len(), beside.compactions.record);
    let from = watched.start + clock::from_seconds(plan.warmup);
    let stopped = shared.why();
    let is_timed = plan.total.is_none() && stopped.is_none() && !plan.ops.is_empty();
    let seconds = if is_timed { plan.duration } else { ended.saturating_sub(from) as f64 / 1e9 };
    let ops: Vec<OpResult> = records
        .iter()
        .filter(|record| !record.latency.is_empty() || record.failed() > 0)
        .map(|record| OpResult {
            calm: CalmResult::of(record, &beside.probe.seconds),
            ..OpResult::of(record, seconds, plan.rate.is_some() && !is_beside(&record.name))
        })
        .collect();
    let generator = GeneratorCost {
        cpu_seconds: cpu as f64 / 1e9,
        busy,
        unsent,
        late_p99: late.value_at_percentile(99.0) as f64 / 1e3,
    };
    let mut warnings = generator_warnings(&generator, plan.turn_every);
    warnings.extend(beside.probe.error);
    if let Some(watch) = plan.watch.as_ref().filter(|watch| !watch.from_start) {
        let least = events.expected;
        let most = least + events.uncertain * watch.watchers as u64;
        if !(least..=most).contains(&events.delivered) && stopped.is_none() {
            violations.push(format!("{} events arrived, {least} were expected", events.delivered));
        }
    }
    if missing > 0 && stopped.is_none() {
        violations.push(format!("{missing} keys or watchers were still missing when the run ended"));
    }
    if ops.is_empty() && stopped.is_none() {
        warnings.push("nothing was measured: the run was too short".to_owned());
    }
    let count = ops.iter().filter(|op| !is_beside(&op.name) || plan.ops.is_empty()).map(|op| op.count).sum();
    let has_pids = watched.after.memory > 0;
    let has_watch = plan.watch.is_some();
    let round = RoundResult {
        seconds,
        ops,
        events: has_watch.then_some(events),
        cost: has_pids.then(|| watched.after.since(&watched.before, count)),
        generator,
        samples: watched.samples,
        disk_probe: beside.probe.seconds,
        compactions: beside.compactions.marks,
    };
    RoundOutcome { round, warnings, violations, stopped }
}

/// Whether an operation is none of the callers.
fn is_beside(name: &str) -> bool {
    name == WATCH_NAME || name == COMPACT_NAME
}

fn generator_warnings(generator: &GeneratorCost, turn_every: f64) -> Vec<String> {
    let mut warnings = Vec::new();
    if generator.unsent > 0 {
        warnings.push(format!(
            "{} calls never began, because all callers were waiting: the rate was not kept, and latencies are worse than \
             shown{}",
            generator.unsent,
            if turn_every > 0.0 { " (each waits for looks: more --clients, or a shorter --turn-every)" } else { "" }
        ));
    }
    if generator.busy > BUSY_MAX {
        warnings.push(format!(
            "a generator thread was busy {:.0} % of the time: the generator may be the limit, not the server \
             (give it --threads, or fewer --clients)",
            generator.busy * 100.0
        ));
    }
    if generator.late_p99 > LATE_MAX + turn_every * 1e6 {
        warnings.push(format!(
            "calls were sent up to {:.1} ms late (p99) though a caller was free: the generator was \
             kept from its CPU",
            generator.late_p99 / 1e3
        ));
    }
    warnings
}

/// Checks that every endpoint answers; returns their names and versions.
///
/// # Errors
/// The first that does not, with its address.
pub fn greet(plan: &Plan) -> anyhow::Result<String> {
    let mut version = String::new();
    for endpoint in &plan.endpoints {
        let status = probe::status(endpoint).with_context(|| format!("{endpoint} does not answer"))?;
        version = status.version;
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_late_beyond_the_wait_for_a_look() {
        let late = |late_p99, turn_every| {
            let warnings =
                generator_warnings(&GeneratorCost { late_p99, ..GeneratorCost::default() }, turn_every);
            warnings.iter().any(|what| what.contains("kept from its CPU"))
        };
        assert!(late(2_100.0, 0.0) && !late(1_900.0, 0.0));
        assert!(late(22_100.0, 0.02) && !late(21_900.0, 0.02), "a look each 20 ms");
    }
}
