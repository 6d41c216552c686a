//! A run in the terminal.

use crate::report::over_time;
use crate::result::{OpResult, RunResult, median};
use crate::table;
use crate::units::{amount, bytes, time};

fn middle(run: &RunResult, name: &str, of: impl Fn(&OpResult) -> f64) -> f64 {
    median(run.op(name).map(of))
}

/// Everything about a run.
#[must_use]
pub fn of(run: &RunResult) -> String {
    let mut out = String::new();
    let mut rows = Vec::new();
    for name in run.op_names() {
        let at = |of: fn(&OpResult) -> f64| time(middle(run, name, of));
        let failed: u64 = run.op(name).flat_map(|op| op.errors.values()).sum();
        rows.push(vec![
            name.to_owned(),
            amount(run.op(name).map(|op| op.count).sum::<u64>() as f64),
            amount(middle(run, name, |op| op.rate)),
            at(|op| op.latency.p50),
            at(|op| op.latency.p90),
            at(|op| op.latency.p99),
            at(|op| op.latency.p999),
            at(|op| op.latency.p9999),
            at(|op| op.latency.max),
            failed.to_string(),
        ]);
    }
    let head = ["", "count", "per second", "p50", "p90", "p99", "p99.9", "p99.99", "max", "failed"];
    out += &table::plain(&head, rows);
    out += &notes(run);
    out
}

fn notes(run: &RunResult) -> String {
    let mut lines = Vec::new();
    let rounds = run.rounds.len();
    if rounds > 1 {
        lines.push(format!("median of {rounds} rounds; spread of p99: {}", spread(run)));
    }
    if run.plan.rate.is_some() {
        lines.push("open loop: times count from when a call was meant to begin".to_owned());
    }
    lines.extend(run.plan.looks());
    if let Some(events) = run.rounds.last().and_then(|round| round.events)
        && events.expected > 0
    {
        lines.push(format!("events: {} of {} came", events.delivered, events.expected));
    }
    for name in run.op_names() {
        let conflicts: u64 = run.op(name).map(|op| op.conflicts).sum();
        if conflicts > 0 {
            lines.push(format!("{name}: {conflicts} compare and swap conflicts, tried again"));
        }
        for (what, times) in run.op(name).flat_map(|op| &op.errors) {
            lines.push(format!("{name}: {times} x {what}"));
        }
    }
    lines.extend(over_time::lines(run));
    lines.extend(cost(run));
    lines.extend(run.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.extend(run.violations.iter().map(|violation| format!("WRONG: {violation}")));
    lines.extend(run.stopped.iter().map(|why| format!("INCOMPLETE: {why}")));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn spread(run: &RunResult) -> String {
    let shown = run.op_names().into_iter().map(|name| {
        let figures: Vec<f64> = run.op(name).map(|op| op.latency.p99).collect();
        let (least, most) =
            figures.iter().fold((f64::MAX, 0.0_f64), |(a, b), p99| (a.min(*p99), b.max(*p99)));
        format!("{name} {} to {}", time(least), time(most))
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn cost(run: &RunResult) -> Vec<String> {
    let generator = |of: fn(&crate::result::GeneratorCost) -> f64| {
        median(run.rounds.iter().map(|round| of(&round.generator)))
    };
    let calls: f64 =
        median(run.rounds.iter().map(|round| round.ops.iter().map(|op| op.count).sum::<u64>() as f64));
    let mut lines = vec![format!(
        "generator: {:.2} CPU s, {} a call, busiest thread {:.0} %{}",
        generator(|it| it.cpu_seconds),
        time(generator(|it| it.cpu_seconds) * 1e6 / calls.max(1.0)),
        generator(|it| it.busy) * 100.0,
        if run.plan.rate.is_some() {
            format!(", calls late by {} (p99)", time(generator(|it| it.late_p99)))
        } else {
            String::new()
        },
    )];
    let costs: Vec<_> = run.rounds.iter().filter_map(|round| round.cost.as_ref()).collect();
    if let Some(last) = costs.last() {
        let middle = |of: fn(&crate::cost::Cost) -> f64| median(costs.iter().map(|cost| of(cost)));
        let syncs =
            last.syncs_per_million.map_or(String::new(), |syncs| format!(", {} syncs", amount(syncs)));
        lines.push(format!(
            "server: {} CPU an operation, {} memory, {} written an operation; in a million operations {} context switches{syncs}",
            time(middle(|cost| cost.cpu_us_per_op)),
            bytes(last.memory_bytes as f64),
            bytes(middle(|cost| cost.written_bytes_per_op)),
            amount(middle(|cost| cost.switches_per_million)),
        ));
    }
    lines
}
