//! The report: one page that holds everything it shows, opens without a network, and takes the
//! reader's light or dark.

use std::fmt::Write as _;

use crate::plan::{COMPACT_NAME, WATCH_NAME};
use crate::ratios::RatioRow;
use crate::report::over_time::{self, RATE, SECONDS, TIME};
use crate::report::svg::{Axis, Chart, Scale, Series, escaped};
use crate::result::{OpResult, RunResult, median};
use crate::units::{amount, time};

/// How it looks.
const STYLE: &str = include_str!("page.css");
/// Percentiles that are drawn, as shares.
const STEPS_PER_NINE: i32 = 12;

/// A result and its label, where several are shown.
#[derive(Clone, Copy)]
pub struct Labelled<'r> {
    /// The server's name.
    pub label: &'r str,
    /// Its result.
    pub run: &'r RunResult,
}

const PERCENTILE: Axis = Axis { label: "percentile", scale: Scale::Percentile, show: percentile };

fn percentile(share: f64) -> String {
    let text = format!("{:.5}", share * 100.0);
    format!("p{}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The whole page.
#[must_use]
pub fn page(title: &str, runs: &[Labelled<'_>], comparisons: &[RatioRow]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{0}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escaped(title)
    );
    if let Some(first) = runs.first() {
        let _ =
            writeln!(out, "<p>{} &middot; {}</p>", escaped(&first.run.machine), escaped(&first.run.started));
    }
    if !comparisons.is_empty() {
        out += &compared(comparisons);
    }
    let mut names: Vec<&str> = Vec::new();
    for labelled in runs {
        let name = labelled.run.plan.name.as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let group: Vec<_> = runs.iter().filter(|labelled| labelled.run.plan.name == name).copied().collect();
        out += &scenario(name, &group);
    }
    out += "</body></html>\n";
    out
}

/// Half of the room for a bar of a ratio, and the ratio that fills it.
const HALF: f64 = 90.0;
const FULL: f64 = 100.0;

/// A ratio as a bar: to the left less, to the right more, by its logarithm.
fn bar(ratio: f64, class: &str) -> String {
    let length = (ratio.max(1e-9).log10() / FULL.log10()).clamp(-1.0, 1.0) * HALF;
    let (left, width) = if length < 0.0 { (HALF + length, -length) } else { (HALF, length) };
    let (all, middle) = (2.0 * HALF, HALF);
    format!(
        "<svg class=\"ratio\" viewBox=\"0 0 {all} 12\" width=\"{all}\" height=\"12\" aria-hidden=\"true\">\
         <rect class=\"{class}\" x=\"{left:.1}\" y=\"1\" width=\"{width:.1}\" height=\"10\" rx=\"2\"/>\
         <line class=\"axis\" x1=\"{middle}\" y1=\"0\" x2=\"{middle}\" y2=\"12\"/></svg>"
    )
}

/// The table of ratios, a block for each scenario.
fn compared(comparisons: &[RatioRow]) -> String {
    let labels = &comparisons[0].labels;
    let (a, b) = (escaped(&labels.0), escaped(&labels.1));
    let mut out = format!(
        "<p>Ratio: {a} by {b}, median over the rounds. Coloured where all rounds agree: \
         <b class=\"good\">{a} is better</b>, <b class=\"bad\">{b} is better</b>.</p>\n<div class=\"wide\"><table>\
         <tr><th></th><th></th><th>{a}</th><th>{b}</th><th>ratio</th><th>less &#9474; more</th><th>spread</th></tr>"
    );
    let mut last = "";
    for row in comparisons {
        let class = match (row.is_better(), row.is_worse()) {
            (true, _) => "good",
            (_, true) => "bad",
            _ => "same",
        };
        let what = if row.what == last { String::new() } else { escaped(&row.what) };
        let group = if what.is_empty() { "" } else { " class=\"group\"" };
        last = &row.what;
        let _ = writeln!(
            out,
            "<tr{group}><td>{what}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{:.3}</td><td>{}</td>\
             <td>{:.3} to {:.3}</td></tr>",
            escaped(row.figure.name()),
            row.figure.show(row.a),
            row.figure.show(row.b),
            row.ratio,
            bar(row.ratio, class),
            row.least,
            row.most
        );
    }
    out += "</table></div>\n";
    out
}

fn scenario(name: &str, group: &[Labelled<'_>]) -> String {
    let mut out = format!("<h2>{}</h2>\n", escaped(name));
    let plan = &group[0].run.plan;
    let load = match (plan.rate, plan.total) {
        (Some(rate), _) => {
            format!("open loop, {} a second ({:?})", amount(rate), plan.arrivals).to_lowercase()
        }
        (None, Some(total)) => format!("closed loop, {} calls", amount(total as f64)),
        (None, None) => format!("closed loop, {} s", plan.duration),
    };
    let _ = writeln!(
        out,
        "<p>{load} &middot; {} callers on {} connections &middot; values of {} bytes &middot; {} keys, {}</p>",
        plan.clients,
        plan.conns,
        plan.val_size,
        amount(plan.keys.count as f64),
        escaped(&String::from(plan.keys.order))
    );
    for labelled in group {
        let run = labelled.run;
        for text in run.violations.iter().chain(&run.stopped) {
            let _ = writeln!(out, "<p class=\"wrong\">{}: {}</p>", escaped(labelled.label), escaped(text));
        }
        for text in run.plan.looks().into_iter().chain(over_time::lines(run)) {
            let _ = writeln!(out, "<p>{}: {}</p>", escaped(labelled.label), escaped(&text));
        }
        for text in &run.warnings {
            let _ = writeln!(out, "<p>{}: {}</p>", escaped(labelled.label), escaped(text));
        }
    }
    out += &table(group);
    out += "<div class=\"charts\">\n";
    charts(group).iter().for_each(|chart| out += &chart.draw());
    out += "</div>\n";
    let text = toml::to_string(plan).unwrap_or_default();
    let _ = writeln!(out, "<details><summary>the plan</summary><pre>{}</pre></details>", escaped(&text));
    out
}

fn table(group: &[Labelled<'_>]) -> String {
    let head = [
        "",
        "server",
        "count",
        "per second",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "failed",
        "server CPU",
    ];
    let mut out = "<div class=\"wide\"><table><tr>".to_owned();
    head.iter().for_each(|word| out += &format!("<th>{word}</th>"));
    out += "</tr>\n";
    for labelled in group {
        let run = labelled.run;
        let costs: Vec<f64> =
            run.rounds.iter().filter_map(|round| Some(round.cost.as_ref()?.cpu_us_per_op)).collect();
        for name in run.op_names() {
            let middle = |of: fn(&OpResult) -> f64| median(run.op(name).map(of));
            let failed: u64 = run.op(name).flat_map(|op| op.errors.values()).sum();
            let cost = if costs.is_empty() { "-".to_owned() } else { time(median(costs.iter().copied())) };
            let figures = [
                amount(run.op(name).map(|op| op.count).sum::<u64>() as f64),
                amount(middle(|op| op.rate)),
                time(middle(|op| op.latency.p50)),
                time(middle(|op| op.latency.p90)),
                time(middle(|op| op.latency.p99)),
                time(middle(|op| op.latency.p999)),
                time(middle(|op| op.latency.p9999)),
                time(middle(|op| op.latency.max)),
                failed.to_string(),
                cost,
            ];
            let server = format!("{} ({})", labelled.label, run.server);
            let _ = write!(out, "<tr><td>{}</td><td>{}</td>", escaped(name), escaped(&server));
            figures.iter().for_each(|figure| out += &format!("<td>{figure}</td>"));
            out += "</tr>\n";
        }
    }
    out += "</table></div>\n";
    out
}

/// The charts of a scenario: several servers are told apart by colour, several operations have
/// charts of their own then.
fn charts(group: &[Labelled<'_>]) -> Vec<Chart> {
    // A handful of compactions makes no line.
    let names: Vec<_> = group[0].run.op_names().into_iter().filter(|name| *name != COMPACT_NAME).collect();
    let last = group.iter().filter_map(|labelled| Some((labelled.label, labelled.run.rounds.last()?)));
    let rounds: Vec<_> = last.collect();
    let mut charts = Vec::new();
    let together = group.len() == 1;
    let sets: Vec<Vec<&str>> =
        if together { vec![names.clone()] } else { names.iter().map(|name| vec![*name]).collect() };
    for set in &sets {
        let title = if together { String::new() } else { format!("{}: ", set[0]) };
        let draw = |what: &str, x: Axis, y: Axis, of: &dyn Fn(&OpResult) -> Vec<(f64, f64)>| {
            let mut series = Vec::new();
            for (number, labelled) in group.iter().enumerate() {
                for (op_number, name) in set.iter().enumerate() {
                    let Some(op) = labelled.run.op(name).last() else { continue };
                    let colour = if together { op_number } else { number };
                    let name = if together { (*name).to_owned() } else { labelled.label.to_owned() };
                    series.push(Series { name, colour, is_dashed: colour >= 6, points: of(op) });
                }
            }
            let marks = if x.label == SECONDS.label { over_time::marks(&rounds) } else { Vec::new() };
            Chart { title: format!("{title}{what}"), x, y, series, are_bars: false, marks }
        };
        charts.push(draw("latency by percentile", PERCENTILE, TIME, &percentiles));
        charts.push(draw("p50 over time", SECONDS, TIME, &|op| by_second(op, |second| second.p50)));
        charts.push(draw("p99 over time", SECONDS, TIME, &|op| by_second(op, |second| second.p99)));
        charts.push(draw("p99.9 over time", SECONDS, TIME, &|op| by_second(op, |second| second.p999)));
        let mut slowest =
            draw("slowest each second", SECONDS, TIME, &|op| by_second(op, |second| second.max));
        slowest.series.extend(over_time::probes(&rounds));
        charts.push(slowest);
        charts.push(draw("per second", SECONDS, RATE, &|op| by_second(op, |second| second.count as f64)));
        if set.contains(&WATCH_NAME) {
            charts.push(delays(group));
        }
    }
    charts.extend(over_time::charts(&rounds));
    charts
}

fn percentiles(op: &OpResult) -> Vec<(f64, f64)> {
    let Ok(samples) = op.latency.samples() else { return Vec::new() };
    if samples.is_empty() {
        return Vec::new();
    }
    let nines = (samples.len() as f64).log10().min(6.0);
    let steps =
        (0..).map(|step| f64::from(step) / f64::from(STEPS_PER_NINE)).take_while(|nine| *nine <= nines);
    let shares = steps.map(|nine| 1.0 - 10_f64.powf(-nine));
    shares.map(|share| (share, samples.value_at_quantile(share) as f64 / 1e3)).collect()
}

fn by_second(op: &OpResult, of: fn(&crate::result::SecondResult) -> f64) -> Vec<(f64, f64)> {
    // The last second is not whole.
    let whole = op.seconds.len().saturating_sub(1).max(1);
    op.seconds.iter().take(whole).enumerate().map(|(at, second)| (at as f64 + 1.0, of(second))).collect()
}

/// How delays of watchers are spread.
fn delays(group: &[Labelled<'_>]) -> Chart {
    let mut series = Vec::new();
    for (number, labelled) in group.iter().enumerate() {
        let Some(samples) = labelled.run.op(WATCH_NAME).last().and_then(|op| op.latency.samples().ok())
        else {
            continue;
        };
        let all = samples.len().max(1) as f64;
        let first = samples.min().max(1_000) as f64;
        let mut points = Vec::new();
        let (mut last, mut at) = (0, first);
        // Ten bars for each power of ten.
        while last < samples.len() && points.len() < 200 {
            let next = at * 10_f64.powf(0.1);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive time")]
            let upto = samples.count_between(0, next as u64);
            points.push((at / 1e3, upto.saturating_sub(last) as f64 / all * 100.0));
            (last, at) = (upto.max(last), next);
        }
        points.push((at / 1e3, 0.0));
        series.push(Series { name: labelled.label.to_owned(), colour: number, is_dashed: false, points });
    }
    let share = Axis { label: "% of events", scale: Scale::Linear, show: |share| format!("{share:.0} %") };
    let delay = Axis { label: "from the write to the event", scale: Scale::Log, show: time };
    Chart {
        title: "delay of events".to_owned(),
        x: delay,
        y: share,
        series,
        are_bars: true,
        marks: Vec::new(),
    }
}
