//! Two results of one plan as ratios, round by round.

use crate::compare::Figure;
use crate::result::{RoundResult, RunResult, median};
use crate::table::plain;

/// A figure of both.
#[derive(Debug, Clone)]
pub struct RatioRow {
    /// Scenario and operation.
    pub what: String,
    /// Which figure.
    pub figure: Figure,
    /// The names of both servers.
    pub labels: (String, String),
    /// Median over the rounds of the first.
    pub a: f64,
    /// Median over the rounds of the second.
    pub b: f64,
    /// First by second: median over the rounds.
    pub ratio: f64,
    /// The least of all rounds.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl RatioRow {
    /// The first is better in every round.
    #[must_use]
    pub fn is_better(&self) -> bool {
        if self.figure.is_better_large() { self.least > 1.0 } else { self.most < 1.0 }
    }

    /// The first is worse in every round.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        if self.figure.is_better_large() { self.most < 1.0 } else { self.least > 1.0 }
    }
}

/// Calls of an operation in all rounds.
#[derive(Debug, Clone, Copy, Default)]
struct OpCalls {
    ended: u64,
    failed: u64,
}

impl OpCalls {
    fn of(run: &RunResult, op: &str) -> Self {
        run.op(op).fold(Self::default(), |calls, op| Self {
            ended: calls.ended + op.count,
            failed: calls.failed + op.errors.values().sum::<u64>(),
        })
    }
}

fn has_samples(round: &RoundResult, op: &str) -> bool {
    round.ops.iter().any(|found| found.name == op && found.count > 0)
}

/// Operations of either result.
fn all_ops<'r>(a: &'r RunResult, b: &'r RunResult) -> Vec<&'r str> {
    let mut ops = a.op_names();
    let others: Vec<_> = b.op_names().into_iter().filter(|op| !ops.contains(op)).collect();
    ops.extend(others);
    ops
}

/// Both servers did the work, so that a ratio says something: no call has failed, and no round of
/// one has calls that ended well where that of the other has none.
fn is_comparable(a: &RunResult, b: &RunResult, op: &str) -> bool {
    let [first, second] = [a, b].map(|run| OpCalls::of(run, op));
    let has_failed = first.failed + second.failed > 0;
    let differs = a.rounds.iter().zip(&b.rounds).any(|(a, b)| has_samples(a, op) != has_samples(b, op));
    !has_failed && !differs && first.ended > 0 && second.ended > 0
}

/// Operations that have no ratio, and how many of their calls have failed.
#[must_use]
pub fn without(labels: (&str, &str), a: &RunResult, b: &RunResult) -> Vec<String> {
    let ops = all_ops(a, b).into_iter().filter(|op| !is_comparable(a, b, op));
    let counts = |label: &str, run: &RunResult, op: &str| {
        let OpCalls { ended, failed } = OpCalls::of(run, op);
        format!("{failed} failed and {ended} ended well on {label}")
    };
    let scenario = &a.plan.name;
    ops.map(|op| {
        let what = if scenario == op { scenario.clone() } else { format!("{scenario}/{op}") };
        format!("{what}: no ratio: {}, {}", counts(labels.0, a, op), counts(labels.1, b, op))
    })
    .collect()
}

/// Figures of two results of a plan; none of operations that are [`without`] a ratio, and none of
/// the servers where there is such an operation.
#[must_use]
pub fn compare(labels: (&str, &str), a: &RunResult, b: &RunResult) -> Vec<RatioRow> {
    let figures = ["rate", "p50", "p99", "cpu", "memory", "written"];
    let mut rows = Vec::new();
    let is_whole = all_ops(a, b).into_iter().all(|op| is_comparable(a, b, op));
    for op in a.op_names().into_iter().filter(|op| is_comparable(a, b, op)) {
        for name in figures {
            let Ok(figure) = name.parse::<Figure>() else { continue };
            // The server's CPU, memory and disk are not known by operation, and the rate of an open
            // loop is given.
            let is_servers = matches!(figure, Figure::Cpu | Figure::Memory | Figure::Written);
            let is_first = a.op_names().first() == Some(&op);
            if (is_servers && !(is_first && is_whole)) || (figure == Figure::Rate && a.plan.rate.is_some()) {
                continue;
            }
            let pairs: Vec<(f64, f64)> = a
                .rounds
                .iter()
                .zip(&b.rounds)
                .filter_map(|(a, b)| Some((figure.of(a, op)?, figure.of(b, op)?)))
                .filter(|(_, b)| *b > 0.0)
                .collect();
            if pairs.is_empty() {
                continue;
            }
            let ratios = || pairs.iter().map(|(a, b)| a / b);
            let scenario = &a.plan.name;
            rows.push(RatioRow {
                what: if scenario == op || is_servers {
                    scenario.clone()
                } else {
                    format!("{scenario}/{op}")
                },
                labels: (labels.0.to_owned(), labels.1.to_owned()),
                a: median(pairs.iter().map(|pair| pair.0)),
                b: median(pairs.iter().map(|pair| pair.1)),
                ratio: median(ratios()),
                least: ratios().fold(f64::MAX, f64::min),
                most: ratios().fold(0.0, f64::max),
                figure,
            });
        }
    }
    rows
}

/// One line for each operation, ratios only, as Markdown.
#[must_use]
pub fn summary(rows: &[RatioRow]) -> String {
    let names = ["rate", "p50", "p99", "cpu", "memory", "written"];
    let figures: Vec<Figure> = names.iter().filter_map(|name| name.parse().ok()).collect();
    let mut lines: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let at = lines.iter().position(|line| line[0] == row.what).unwrap_or_else(|| {
            lines.push(
                std::iter::once(row.what.clone()).chain(figures.iter().map(|_| String::new())).collect(),
            );
            lines.len() - 1
        });
        if let Some(column) = figures.iter().position(|figure| *figure == row.figure) {
            let mark = if row.is_worse() { " (!)" } else { "" };
            lines[at][column + 1] = format!("{:.3}{mark}", row.ratio);
        }
    }
    let head: Vec<&str> = std::iter::once("").chain(figures.iter().map(Figure::name)).collect();
    plain(&head, lines)
}

/// As Markdown.
#[must_use]
pub fn table(rows: &[RatioRow]) -> String {
    let Some(first) = rows.first() else { return "nothing was measured on both\n".to_owned() };
    let head = ["", "figure", &first.labels.0, &first.labels.1, "ratio", "spread"];
    let lines = rows.iter().map(|row| {
        vec![
            row.what.clone(),
            row.figure.name().to_owned(),
            row.figure.show(row.a),
            row.figure.show(row.b),
            format!("{:.3}", row.ratio),
            format!("{:.3} to {:.3}", row.least, row.most),
        ]
    });
    plain(&head, lines.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::record::OpRecord;
    use crate::result::{GeneratorCost, OpResult};

    /// A run of rounds with so many calls that ended well, and so many that failed.
    fn run(rounds: &[(u64, u64)]) -> RunResult {
        let rounds = rounds.iter().map(|(ended, failed)| {
            let mut record = OpRecord::new("put");
            (0..*ended).for_each(|_| record.add(1_000, 1_000, 0));
            let mut op = OpResult::of(&record, 1.0, false);
            op.errors.extend((*failed > 0).then(|| ("refused".to_owned(), *failed)));
            RoundResult {
                seconds: 1.0,
                ops: vec![op],
                events: None,
                cost: Some(Cost { cpu_us_per_op: 1.0, ..Cost::default() }),
                generator: GeneratorCost::default(),
                samples: Vec::new(),
                disk_probe: Vec::new(),
                compactions: Vec::new(),
            }
        });
        RunResult::of_rounds(rounds.collect())
    }

    #[test]
    fn operations_that_failed_or_were_not_done_have_no_ratio() {
        let labels = ("revd", "etcd");
        let good = run(&[(10, 0), (10, 0)]);
        assert!(compare(labels, &good, &good).iter().any(|row| row.figure == Figure::Cpu));
        assert!(without(labels, &good, &good).is_empty());
        for (bad, what) in [
            (run(&[(10, 0), (7, 3)]), "3 failed and 17 ended well on revd"),
            (run(&[(10, 0), (0, 0)]), "0 failed and 10 ended well on revd"),
            (run(&[]), "0 failed and 0 ended well on revd"),
        ] {
            assert!(compare(labels, &bad, &good).is_empty() && compare(labels, &good, &bad).is_empty());
            let said = without(labels, &bad, &good);
            assert_eq!(said, [format!("put: no ratio: {what}, 0 failed and 20 ended well on etcd")]);
        }
    }
}
