//! One result against another: figures, ratios, and whether a difference is more than the noise
//! between rounds.

use std::fmt;
use std::str::FromStr;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::plan::Plan;
use crate::result::{RoundResult, RunResult, median};
use crate::units::{amount, bytes, time};

/// Samples of the bootstrap, and the share of them that an interval leaves out on each side.
const SAMPLES: usize = 4_000;
const TAIL: f64 = 0.025;
/// Fewer rounds say nothing of the noise.
const ROUNDS_MIN: usize = 3;

/// A figure of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Figure {
    /// How many a second.
    Rate,
    /// A latency, by its name.
    Latency(String),
    /// CPU of the server for an operation of the whole run.
    Cpu,
    /// Memory of the server.
    Memory,
    /// Bytes written for an operation.
    Written,
    /// Failures in a million.
    Failed,
}

impl FromStr for Figure {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        Ok(match text {
            "rate" | "throughput" => Self::Rate,
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "written" => Self::Written,
            "failed" | "errors" => Self::Failed,
            name if crate::result::LatencySummary::default().named(name).is_some() => {
                Self::Latency(name.to_owned())
            }
            _ => anyhow::bail!(
                "`{text}` is no figure: rate, mean, p50, p75, p90, p95, p99, p99.9, p99.99, p99.999, max, min, cpu, memory, \
                 written and failed are"
            ),
        })
    }
}

impl Figure {
    /// Its name in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Rate => "per second",
            Self::Latency(name) => name,
            Self::Cpu => "server CPU",
            Self::Memory => "memory",
            Self::Written => "written",
            Self::Failed => "failed",
        }
    }

    /// In words.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        match self {
            Self::Rate | Self::Failed => amount(value),
            Self::Latency(_) | Self::Cpu => time(value),
            Self::Memory | Self::Written => bytes(value),
        }
    }

    /// More of it is better.
    #[must_use]
    pub fn is_better_large(&self) -> bool {
        *self == Self::Rate
    }

    /// In one round.
    #[must_use]
    pub fn of(&self, round: &RoundResult, op: &str) -> Option<f64> {
        let cost = round.cost.as_ref();
        let op = round.ops.iter().find(|found| found.name == op)?;
        match self {
            Self::Rate => Some(op.rate),
            Self::Latency(name) => op.latency.named(name),
            Self::Cpu => Some(cost?.cpu_us_per_op),
            Self::Memory => Some(cost?.memory_bytes as f64),
            Self::Written => Some(cost?.written_bytes_per_op),
            Self::Failed => {
                let failed = op.errors.values().sum::<u64>() as f64;
                Some(failed / (failed + op.count as f64).max(1.0) * 1e6)
            }
        }
    }
}

/// A condition under which a comparison fails: `p99 > 1.10x`, `put.rate < 0.9x`, `failed > 0`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    text: String,
    /// Only this operation, or scenario.
    op: Option<String>,
    figure: Figure,
    is_above: bool,
    bound: f64,
    /// Of the base, not by itself.
    is_ratio: bool,
}

impl FromStr for Rule {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong =
            || anyhow::anyhow!("`{text}` is no rule: `p99 > 1.10x`, `put.rate < 0.9x` and `failed > 0` are");
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (what, bound) = (text[..at].trim(), text[at + 1..].trim());
        let (number, is_ratio) = bound.strip_suffix('x').map_or((bound, false), |number| (number, true));
        // Names may hold dots too: the figure is what is behind the last one that is none of a
        // percentile.
        let figures: Vec<usize> = what.match_indices('.').map(|(dot, _)| dot).collect();
        let split = figures.into_iter().find(|dot| what[dot + 1..].parse::<Figure>().is_ok());
        let (op, figure) = match (what.parse::<Figure>(), split) {
            (Ok(figure), _) => (None, figure),
            (Err(_), Some(dot)) => (Some(what[..dot].to_owned()), what[dot + 1..].parse()?),
            (Err(error), None) => return Err(error),
        };
        let bound = number.trim().parse().ok().filter(|bound: &f64| bound.is_finite() && *bound >= 0.0);
        Ok(Self {
            text: text.to_owned(),
            op,
            figure,
            is_above: text[at..].starts_with('>'),
            bound: bound.ok_or_else(wrong)?,
            is_ratio,
        })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Rule {
    fn is_about(&self, scenario: &str, op: &str) -> bool {
        self.op
            .as_ref()
            .is_none_or(|name| name == op || name == scenario || *name == format!("{scenario}/{op}"))
    }
}

/// Whether a rule holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleVerdict {
    /// It holds.
    Passed,
    /// It does not, though the noise is large enough to explain that.
    Unsure,
    /// It does not.
    Failed,
}

/// A figure of two results.
#[derive(Debug, Clone)]
pub struct Checked {
    /// Scenario and operation.
    pub what: String,
    /// Which figure.
    pub figure: Figure,
    /// In the base, and now.
    pub base: f64,
    /// Now.
    pub new: f64,
    /// New by base, and the interval that holds it 95 times of 100.
    pub ratio: f64,
    /// Its lower end.
    pub least: f64,
    /// Its upper end.
    pub most: f64,
    /// The rule and whether it holds; none for a figure that is only shown.
    pub rule: Option<(String, RuleVerdict)>,
}

/// New by base; 0 by 0 is 1.
fn ratio_of(new: f64, base: f64) -> f64 {
    if base == 0.0 { if new == 0.0 { 1.0 } else { f64::INFINITY } } else { new / base }
}

/// The interval of the ratio of two medians, by drawing rounds again and again (percentile
/// bootstrap, Efron 1979).
fn interval(new: &[f64], base: &[f64]) -> (f64, f64) {
    let ratio = ratio_of(median(new.iter().copied()), median(base.iter().copied()));
    if new.len() < 2 || base.len() < 2 {
        return (ratio, ratio);
    }
    let mut random = SmallRng::seed_from_u64(42);
    let mut drawn = |from: &[f64]| {
        let draw: Vec<f64> = (0..from.len()).map(|_| from[random.random_range(0..from.len())]).collect();
        median(draw)
    };
    let mut ratios: Vec<f64> = (0..SAMPLES).map(|_| ratio_of(drawn(new), drawn(base))).collect();
    ratios.sort_by(f64::total_cmp);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let tail = (SAMPLES as f64 * TAIL) as usize;
    (ratios[tail], ratios[SAMPLES - 1 - tail])
}

fn figures(run: &RunResult, op: &str, figure: &Figure) -> Vec<f64> {
    run.rounds.iter().filter_map(|round| figure.of(round, op)).collect()
}

fn checked(base: &RunResult, new: &RunResult, op: &str, figure: &Figure) -> Option<Checked> {
    let (before, now) = (figures(base, op, figure), figures(new, op, figure));
    if before.is_empty() || now.is_empty() {
        return None;
    }
    let (least, most) = interval(&now, &before);
    let (base_value, new_value) = (median(before), median(now));
    let scenario = &new.plan.name;
    Some(Checked {
        what: if scenario == op { op.to_owned() } else { format!("{scenario}/{op}") },
        figure: figure.clone(),
        base: base_value,
        new: new_value,
        ratio: ratio_of(new_value, base_value),
        least,
        most,
        rule: None,
    })
}

fn verdict(rule: &Rule, row: &Checked, rounds: usize) -> RuleVerdict {
    let breaks = |value: f64| if rule.is_above { value > rule.bound } else { value < rule.bound };
    let value = if rule.is_ratio { row.ratio } else { row.new };
    if !breaks(value) {
        return RuleVerdict::Passed;
    }
    let surely = if rule.is_above { row.least } else { row.most };
    if rule.is_ratio && rounds >= ROUNDS_MIN && !breaks(surely) {
        RuleVerdict::Unsure
    } else {
        RuleVerdict::Failed
    }
}

/// Compares all scenarios that both have; every rule is applied to all operations it is about.
///
/// # Errors
/// When nothing can be compared, or a rule is about nothing.
pub fn compare(base: &[RunResult], new: &[RunResult], rules: &[Rule]) -> anyhow::Result<Vec<Checked>> {
    let shown = ["rate", "p50", "p99", "p99.9", "cpu"].map(|name| name.parse::<Figure>().expect("a figure"));
    let mut rows = Vec::new();
    let mut used = vec![false; rules.len()];
    for run in new {
        let Some(before) = base.iter().find(|base| base.plan.name == run.plan.name) else { continue };
        for op in run.op_names() {
            for figure in &shown {
                rows.extend(checked(before, run, op, figure));
            }
            for (number, rule) in
                rules.iter().enumerate().filter(|(_, rule)| rule.is_about(&run.plan.name, op))
            {
                let Some(mut row) = checked(before, run, op, &rule.figure) else { continue };
                used[number] = true;
                let rounds = run.rounds.len().min(before.rounds.len());
                row.rule = Some((rule.to_string(), verdict(rule, &row, rounds)));
                rows.push(row);
            }
        }
    }
    anyhow::ensure!(!rows.is_empty(), "the two results have no scenario in common");
    if let Some(unused) = used.iter().position(|used| !used) {
        anyhow::bail!("the rule `{}` is about nothing in these results", rules[unused]);
    }
    Ok(rows)
}

/// Scenarios whose figures differ for what the generator did: it looked at its sockets more seldom
/// in one of the two, or had the disk write for its probe more often.
#[must_use]
pub fn differences(base: &[RunResult], new: &[RunResult]) -> Vec<String> {
    let pairs =
        new.iter().filter_map(|run| Some((base.iter().find(|base| base.plan.name == run.plan.name)?, run)));
    pairs
        .flat_map(|(before, run)| {
            [looks_differ(&before.plan, &run.plan), probes_differ(&before.plan, &run.plan)]
        })
        .flatten()
        .collect()
}

fn looks_differ(before: &Plan, plan: &Plan) -> Option<String> {
    let looks = |plan: &Plan| match plan.turn_every {
        0.0 => "for each call".to_owned(),
        every => format!("every {}", time(every * 1e6)),
    };
    (before.turn_every != plan.turn_every).then(|| {
        format!(
            "{}: turn-every differs: the generator looked {} in the base, and {} in the new result; times and CPU are \
             not to be compared",
            plan.name,
            looks(before),
            looks(plan)
        )
    })
}

fn probes_differ(before: &Plan, plan: &Plan) -> Option<String> {
    let probes = |plan: &Plan| match plan.disk_probe {
        None => "at no time".to_owned(),
        Some(every) => format!("every {}", time(every * 1e6)),
    };
    (before.disk_probe != plan.disk_probe).then(|| {
        format!(
            "{}: disk-probe differs: the disk was probed {} in the base, and {} in the new result; each probe is a flush, \
             behind which writes of the server wait, and the more often they come the shorter stalls are seen",
            plan.name,
            probes(before),
            probes(plan)
        )
    })
}

/// As Markdown; rules first.
#[must_use]
pub fn table(rows: &[Checked]) -> String {
    let head = ["", "figure", "base", "new", "ratio", "95 % interval", "rule"];
    let (ruled, plain): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.rule.is_some());
    let lines = ruled.into_iter().chain(plain).map(|row| {
        let rule = match &row.rule {
            None => String::new(),
            Some((text, RuleVerdict::Passed)) => format!("passed: not {text}"),
            Some((text, RuleVerdict::Unsure)) => format!("unsure: {text}, within the noise"),
            Some((text, RuleVerdict::Failed)) => format!("FAILED: {text}"),
        };
        vec![
            row.what.clone(),
            row.figure.name().to_owned(),
            row.figure.show(row.base),
            row.figure.show(row.new),
            format!("{:.3}", row.ratio),
            format!("{:.3} to {:.3}", row.least, row.most),
            rule,
        ]
    });
    crate::table::plain(&head, lines.collect())
}

/// Whether any rule failed.
#[must_use]
pub fn has_failed(rows: &[Checked]) -> bool {
    rows.iter().any(|row| matches!(row.rule, Some((_, RuleVerdict::Failed))))
}

/// As JUnit XML: a test case for each rule and operation.
///
/// # Errors
/// When it cannot be written.
pub fn junit(rows: &[Checked]) -> anyhow::Result<String> {
    use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
    let mut suite = TestSuite::new("loadgen compare");
    for row in rows {
        let Some((rule, verdict)) = &row.rule else { continue };
        let status = if *verdict == RuleVerdict::Failed {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(format!(
                "{} {} is {}, was {}: {:.3}x ({:.3} to {:.3})",
                row.what,
                row.figure.name(),
                row.figure.show(row.new),
                row.figure.show(row.base),
                row.ratio,
                row.least,
                row.most
            ));
            status
        } else {
            TestCaseStatus::success()
        };
        suite.add_test_case(TestCase::new(format!("{}: not {rule}", row.what), status));
    }
    let mut report = Report::new("loadgen");
    report.add_test_suite(suite);
    Ok(report.to_string()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::OpRecord;
    use crate::result::{GeneratorCost, OpResult};

    /// A run whose rounds take these times, in microseconds.
    fn run(rounds: &[u64]) -> RunResult {
        let rounds = rounds.iter().map(|us| {
            let mut record = OpRecord::new("put");
            (0..100).for_each(|_| record.add(us * 1000, us * 1000, 0));
            RoundResult {
                seconds: 1.0,
                ops: vec![OpResult::of(&record, 1.0, false)],
                events: None,
                cost: None,
                generator: GeneratorCost::default(),
                samples: Vec::new(),
                disk_probe: Vec::new(),
                compactions: Vec::new(),
            }
        });
        RunResult::of_rounds(rounds.collect())
    }

    fn verdict_of(base: &[u64], new: &[u64], rule: &str) -> RuleVerdict {
        let rows = compare(&[run(base)], &[run(new)], &[rule.parse().unwrap()]).unwrap();
        rows.iter().find_map(|row| row.rule.as_ref().map(|(_, verdict)| *verdict)).unwrap()
    }

    #[test]
    fn a_rule_fails_only_beyond_the_noise() {
        let base = [100, 101, 99, 100, 102];
        assert_eq!(verdict_of(&base, &[100, 103, 98, 101, 100], "p99 > 1.10x"), RuleVerdict::Passed);
        assert_eq!(verdict_of(&base, &[130, 131, 129, 132, 130], "p99 > 1.10x"), RuleVerdict::Failed);
        assert_eq!(verdict_of(&base, &[90, 200, 95, 115, 130], "put.p99 > 1.10x"), RuleVerdict::Unsure);
        assert_eq!(verdict_of(&[100], &[120], "put/put.p99 > 1.10x"), RuleVerdict::Failed);
        assert_eq!(verdict_of(&base, &base, "p99 > 50"), RuleVerdict::Failed);
        assert_eq!(verdict_of(&base, &base, "rate < 0.9x"), RuleVerdict::Passed);
    }

    #[test]
    fn rules_are_read_and_what_is_none_is_named() {
        let rule: Rule = "update pod.p99.9 > 2x".parse().unwrap();
        assert_eq!((rule.op.as_deref(), rule.figure.name(), rule.bound), (Some("update pod"), "p99.9", 2.0));
        for text in ["p99", "p98 > 1x", "p99 > ax", "> 1x", "p99 > -1x"] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
        let nothing = compare(&[run(&[1])], &[run(&[1])], &["lock.p99 > 1x".parse().unwrap()]);
        assert!(nothing.unwrap_err().to_string().contains("about nothing"));
    }

    #[test]
    fn looks_that_differ_are_named() {
        let (often, mut seldom) = (run(&[100]), run(&[100]));
        assert!(differences(std::slice::from_ref(&often), std::slice::from_ref(&seldom)).is_empty());
        seldom.plan.turn_every = 0.000_25;
        let said = differences(&[often], &[seldom]);
        assert!(
            said.len() == 1 && said[0].contains("for each call in the base, and every 250 us"),
            "{said:?}"
        );
    }

    #[test]
    fn probes_of_the_disk_that_differ_are_named() {
        let (mut base, mut new) = (run(&[100]), run(&[100]));
        (base.plan.disk_probe, new.plan.disk_probe) = (Some(0.1), Some(0.02));
        let said = differences(&[base], std::slice::from_ref(&new));
        assert!(
            said.len() == 1 && said[0].contains("every 100 ms in the base, and every 20.0 ms in the new"),
            "{said:?}"
        );
        let said = differences(&[run(&[100])], &[new]);
        assert!(said.len() == 1 && said[0].contains("at no time in the base"), "{said:?}");
    }

    #[test]
    fn verdicts_reach_ci() {
        let rows = compare(&[run(&[100])], &[run(&[200])], &["p99 > 1.1x".parse().unwrap()]).unwrap();
        assert!(has_failed(&rows));
        let xml = junit(&rows).unwrap();
        assert!(xml.contains("failures=\"1\"") && xml.contains("put: not p99 &gt; 1.1x"), "{xml}");
        assert!(table(&rows).contains("FAILED: p99 > 1.1x"));
    }
}
