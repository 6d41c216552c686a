//! A run over time: stalls of the disk beside those of the server, and how data and memory grow
//! from compaction to compaction; in lines of text, and as charts.

use crate::calm::STALL;
use crate::plan::{COMPACT_NAME, WATCH_NAME};
use crate::report::svg::{Axis, COLOURS, Chart, Mark, Scale, Series};
use crate::result::{CompactionMark, RoundResult, RunResult, ServerSample};
use crate::units::{amount, bytes, time};

/// Compactions that are listed; of more the last ones.
const LISTED_MAX: usize = 30;

pub(super) const TIME: Axis = Axis { label: "time", scale: Scale::Log, show: time };
pub(super) const SECONDS: Axis =
    Axis { label: "seconds into the run", scale: Scale::Linear, show: |at| format!("{at:.0} s") };
pub(super) const RATE: Axis = Axis { label: "per second", scale: Scale::Linear, show: amount };
const CORES: Axis = Axis { label: "cores", scale: Scale::Linear, show: |cores| format!("{cores:.1}") };
const BYTES: Axis = Axis { label: "bytes", scale: Scale::Linear, show: bytes };

/// The findings of a run with a probe of the disk or with compactions; none of other runs.
#[must_use]
pub fn lines(run: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, round) in run.rounds.iter().enumerate() {
        let which = if run.rounds.len() > 1 { format!("round {}: ", number + 1) } else { String::new() };
        let said = stalls(round).into_iter().chain(growth(round));
        lines.extend(said.map(|line| which.clone() + &line));
    }
    lines
}

/// The slowest calls, with and without seconds in which the disk itself stood still.
fn stalls(round: &RoundResult) -> Vec<String> {
    let probe = &round.disk_probe;
    if probe.is_empty() {
        return Vec::new();
    }
    let slowest = probe.iter().copied().fold(0.0, f64::max);
    let stalled = probe.iter().filter(|slowest| **slowest >= STALL).count();
    let mut lines = vec![format!(
        "raw fdatasync of 4 KiB beside the data: slowest {}; {} or more in {stalled} of {} seconds",
        time(slowest),
        time(STALL),
        probe.len()
    )];
    let callers = round.ops.iter().filter(|op| op.name != COMPACT_NAME && op.name != WATCH_NAME);
    for op in callers {
        let mut line =
            format!("{}: p99.9 {}, slowest {}", op.name, time(op.latency.p999), time(op.latency.max));
        if let Some(calm) = op.calm {
            line += &format!(
                "; p99.9 {}, slowest {} in the {} of {} seconds that have no such fdatasync, nor has the second before",
                time(calm.p999),
                time(calm.max),
                calm.seconds,
                op.seconds.len()
            );
        }
        lines.push(line);
    }
    lines
}

/// A figure right after a compaction, and the most before the next.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span {
    after: u64,
    most: u64,
}

/// A figure from each compaction to the next; none where there is no sample between.
fn spans(round: &RoundResult, of: impl Fn(&ServerSample) -> Option<u64>) -> Vec<Span> {
    let marks: Vec<&CompactionMark> = round.compactions.iter().filter(|mark| mark.error.is_none()).collect();
    let span = |(number, mark): (usize, &&CompactionMark)| {
        let (from, until) =
            (mark.at + mark.took / 1e6, marks.get(number + 1).map_or(f64::MAX, |next| next.at));
        let within = round.samples.iter().filter(|sample| (from..until).contains(&sample.at));
        let figures: Vec<u64> = within.filter_map(&of).collect();
        Some(Span { after: *figures.first()?, most: figures.iter().copied().max()? })
    };
    marks.iter().enumerate().filter_map(span).collect()
}

/// How data and memory grow from compaction to compaction.
fn growth(round: &RoundResult) -> Vec<String> {
    if round.compactions.is_empty() {
        return Vec::new();
    }
    let failed = round.compactions.iter().filter(|mark| mark.error.is_some()).count();
    let mut lines = vec![format!("compactions: {}, of which {failed} failed", round.compactions.len())];
    let data = spans(round, |sample| sample.data_bytes);
    let longest = spans(round, |sample| sample.longest_file_bytes);
    let memory = spans(round, |sample| Some(sample.memory_bytes));
    for (what, spans) in [("data on disk", data), ("longest file", longest), ("memory", memory)] {
        if spans.is_empty() {
            continue;
        }
        let listed = spans.iter().skip(spans.len().saturating_sub(LISTED_MAX));
        let pairs = listed.map(|span| format!("{} - {}", bytes(span.after as f64), bytes(span.most as f64)));
        let pairs: Vec<_> = pairs.collect();
        lines.push(format!("{what}, after each compaction - most before the next: {}", pairs.join(", ")));
        lines.extend(growth_after_third(what, &spans));
    }
    lines
}

/// The most from the third compaction to the fourth, beside the most after that.
fn growth_after_third(what: &str, spans: &[Span]) -> Option<String> {
    let third = spans.get(2)?.most;
    let later = spans.get(3..)?.iter().map(|span| span.most).max()?;
    Some(format!(
        "{what}: most from the third compaction to the fourth {}, after that {} ({:+.1} %)",
        bytes(third as f64),
        bytes(later as f64),
        (later as f64 / third.max(1) as f64 - 1.0) * 100.0
    ))
}

/// Compactions, for charts over time.
pub(super) fn marks(rounds: &[(&str, &RoundResult)]) -> Vec<Mark> {
    let of = |(label, round): &(&str, &RoundResult)| {
        let mark = |mark: &CompactionMark| Mark { at: mark.at, word: format!("{label}: compaction") };
        round.compactions.iter().map(mark).collect::<Vec<_>>()
    };
    rounds.iter().flat_map(of).collect()
}

/// The slowest raw fdatasync of each second, beside calls of the same seconds: dashed, in the
/// colour of the server where there are several.
pub(super) fn probes(rounds: &[(&str, &RoundResult)]) -> Vec<Series> {
    let are_several = rounds.len() > 1;
    let probed = rounds.iter().enumerate().filter(|(_, (_, round))| !round.disk_probe.is_empty());
    let series = probed.map(|(number, (label, round))| {
        let points = round.disk_probe.iter().enumerate().map(|(at, slowest)| (at as f64 + 1.0, *slowest));
        Series {
            name: if are_several { format!("{label}: raw fdatasync") } else { "raw fdatasync".to_owned() },
            colour: if are_several { number } else { COLOURS - 1 },
            is_dashed: true,
            points: points.collect(),
        }
    });
    series.collect()
}

/// CPU, memory and disk of the servers.
pub(super) fn charts(rounds: &[(&str, &RoundResult)]) -> Vec<Chart> {
    let line = |name: &str, is_dashed: bool, of: fn(&ServerSample) -> Option<u64>| {
        let series = rounds.iter().enumerate().map(|(colour, (label, round))| {
            let points = round.samples.iter().filter_map(|sample| Some((sample.at, of(sample)? as f64)));
            Series { name: format!("{label}{name}"), colour, is_dashed, points: points.collect() }
        });
        series.collect::<Vec<_>>()
    };
    let cores = rounds.iter().enumerate().map(|(colour, (label, round))| {
        let points = round.samples.iter().map(|sample| (sample.at, sample.cores)).collect();
        Series { name: (*label).to_owned(), colour, is_dashed: false, points }
    });
    let mut data = line("", false, |sample| sample.data_bytes);
    data.extend(line(": longest file", true, |sample| sample.longest_file_bytes));
    let charts = [
        ("CPU of the server", CORES, cores.collect()),
        ("memory of the server", BYTES, line("", false, |sample| Some(sample.memory_bytes))),
        ("data of the server on disk", BYTES, data),
        ("written by the server", BYTES, line("", false, |sample| Some(sample.written_bytes))),
    ];
    let drawn = charts.into_iter().filter_map(|(title, y, mut series)| {
        series.retain(|series: &Series| series.points.len() > 1);
        let marks = marks(rounds);
        let chart = Chart { title: title.to_owned(), x: SECONDS, y, series, are_bars: false, marks };
        (!chart.series.is_empty()).then_some(chart)
    });
    drawn.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calm::CalmResult;
    use crate::result::{LatencySummary, OpResult, SecondResult};

    fn second(max: f64) -> SecondResult {
        SecondResult { count: 1, errors: 0, p50: max, p99: max, p999: max, max }
    }

    fn round(maxima: &[f64], probe: &[f64]) -> RoundResult {
        let latency = LatencySummary { p999: 7_000.0, max: 900_000.0, ..LatencySummary::default() };
        RoundResult {
            seconds: maxima.len() as f64,
            ops: vec![OpResult {
                name: "put".to_owned(),
                count: 1,
                rate: 1.0,
                errors: std::collections::BTreeMap::new(),
                conflicts: 0,
                latency,
                service: None,
                seconds: maxima.iter().map(|max| second(*max)).collect(),
                calm: (!probe.is_empty()).then_some(CalmResult { seconds: 2, p999: 3_000.0, max: 42_000.0 }),
            }],
            events: None,
            cost: None,
            generator: crate::result::GeneratorCost::default(),
            samples: Vec::new(),
            disk_probe: probe.to_vec(),
            compactions: Vec::new(),
        }
    }

    #[test]
    fn calls_outside_stalls_are_told_beside_all_of_them() {
        let maxima = [1_000.0, 900_000.0, 800_000.0, 42_000.0, 700_000.0];
        let said = stalls(&round(&maxima, &[500.0, 850_000.0, 600.0, 700.0]));
        assert!(said[0].contains("slowest 850 ms") && said[0].contains("in 1 of 4 seconds"), "{said:?}");
        assert!(
            said[1].starts_with(
                "put: p99.9 7.00 ms, slowest 900 ms; p99.9 3.00 ms, slowest 42.0 ms in the 2 of 5"
            ),
            "{said:?}"
        );
        assert!(stalls(&round(&maxima, &[])).is_empty());
    }

    #[test]
    fn growth_is_told_from_compaction_to_compaction() {
        let mut round = round(&[], &[]);
        let mark = |at: f64| CompactionMark { at, revision: 1, took: 500_000.0, error: None };
        round.compactions = [10.0, 20.0, 30.0, 40.0].map(mark).to_vec();
        round.compactions.push(CompactionMark { error: Some("no".to_owned()), ..mark(45.0) });
        let sizes =
            [(5.0, 9), (10.2, 99), (11.0, 10), (19.0, 20), (21.0, 12), (29.0, 25), (31.0, 13), (39.0, 50)];
        round.samples = sizes
            .iter()
            .chain(&[(41.0, 14), (49.0, 55)])
            .map(|(at, data)| ServerSample { at: *at, data_bytes: Some(*data), ..ServerSample::default() })
            .collect();
        let said = growth(&round);
        assert_eq!(said[0], "compactions: 5, of which 1 failed");
        assert!(
            said[1].ends_with("the next: 10 B - 20 B, 12 B - 25 B, 13 B - 50 B, 14 B - 55 B"),
            "{said:?}"
        );
        assert!(said[2].starts_with("data on disk") && said[2].ends_with("50 B, after that 55 B (+10.0 %)"));
        assert!(!said.iter().any(|line| line.contains("longest")), "nothing is known of files: {said:?}");
    }

    #[test]
    fn charts_have_a_line_for_what_is_known_and_marks_for_compactions() {
        let mut round = round(&[1.0, 1.0], &[300.0, 400.0]);
        round.compactions = vec![CompactionMark { at: 1.5, revision: 1, took: 1.0, error: None }];
        round.samples =
            [1.0, 2.0].map(|at| ServerSample { at, memory_bytes: 5, ..ServerSample::default() }).to_vec();
        let all = charts(&[("revd", &round)]);
        let titles: Vec<_> = all.iter().map(|chart| chart.title.as_str()).collect();
        assert_eq!(titles, ["CPU of the server", "memory of the server", "written by the server"]);
        assert!(all[1].draw().contains("revd: compaction at 2 s"), "{}", all[1].draw());
        assert_eq!(probes(&[("revd", &round)])[0].points, [(1.0, 300.0), (2.0, 400.0)]);
    }
}
