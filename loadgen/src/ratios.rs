//! Two results of one plan as ratios, round by round.

use crate::compare::Figure;
use crate::result::{RunResult, median};
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

/// Figures of two results of a plan.
#[must_use]
pub fn compare(labels: (&str, &str), a: &RunResult, b: &RunResult) -> Vec<RatioRow> {
    let figures = ["rate", "p50", "p99", "cpu", "memory", "written"];
    let mut rows = Vec::new();
    for op in a.op_names() {
        for name in figures {
            let Ok(figure) = name.parse::<Figure>() else { continue };
            // The server's CPU, memory and disk are not known by operation, and the rate of an open
            // loop is given.
            let is_servers = matches!(figure, Figure::Cpu | Figure::Memory | Figure::Written);
            let is_first = a.op_names().first() == Some(&op);
            if (is_servers && !is_first) || (figure == Figure::Rate && a.plan.rate.is_some()) {
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
