//! Figures of two servers as tables, with the ratio of the first to the second.

use std::time::Duration;

use crate::result::median;
use crate::servers::{ServerSpec, Servers};
use crate::table;
use crate::units::time;

/// The names of both servers.
#[derive(Debug, Clone)]
pub(super) struct Labels([String; 2]);

impl Labels {
    pub(super) fn of(specs: (&ServerSpec, &ServerSpec)) -> Self {
        Self([specs.0.program.name.clone(), specs.1.program.name.clone()])
    }

    /// A table of single figures: each row is a label, what is shown of both, and both as numbers.
    pub(super) fn table(&self, what: &str, rows: &[Compared]) -> String {
        let lines = rows.iter().map(|row| {
            let [a, b] = row.figures;
            vec![row.label.clone(), (row.show)(a), (row.show)(b), format!("{:.3}", a / b)]
        });
        table::plain(&[what, &self.0[0], &self.0[1], "ratio"], lines.collect())
    }
}

/// One figure of both servers.
pub(super) struct Compared {
    pub(super) label: String,
    pub(super) figures: [f64; 2],
    pub(super) show: fn(f64) -> String,
}

impl Compared {
    pub(super) fn new(label: impl Into<String>, figures: [f64; 2], show: fn(f64) -> String) -> Self {
        Self { label: label.into(), figures, show }
    }
}

/// One round of one kind of work on one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredCalls {
    pub(super) cpu_per_call: Duration,
    pub(super) latency: Duration,
}

/// All rounds, in the order in which kinds of work came.
pub(super) struct RatioTable {
    labels: Labels,
    rows: Vec<Row>,
}

struct Row {
    label: String,
    /// Of each server, round by round.
    rounds: [Vec<MeasuredCalls>; 2],
}

impl Row {
    /// Of one figure: both medians, the median of the ratios round by round, and their extremes.
    fn compared(&self, figure: fn(&MeasuredCalls) -> Duration) -> [String; 3] {
        let micros = |measured: &MeasuredCalls| figure(measured).as_secs_f64() * 1e6;
        let [a, b] = &self.rounds;
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| micros(a) / micros(b)).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let middle = |rounds: &[MeasuredCalls]| time(median(rounds.iter().map(micros)));
        [middle(a), middle(b), format!("{:.3} ({low:.3}-{high:.3})", median(ratios))]
    }
}

impl RatioTable {
    pub(super) fn new(labels: Labels) -> Self {
        Self { labels, rows: Vec::new() }
    }

    /// Measures rows on both servers, and prints them to standard error when they are done. The
    /// server that is first changes from round to round.
    pub(super) fn measure(
        &mut self,
        labels: &[&str],
        rounds: usize,
        both: &[Servers; 2],
        mut once: impl FnMut(&Servers) -> anyhow::Result<Vec<MeasuredCalls>>,
    ) -> anyhow::Result<()> {
        let row = |label: &&str| Row { label: (*label).to_owned(), rounds: [Vec::new(), Vec::new()] };
        let mut rows: Vec<Row> = labels.iter().map(row).collect();
        for round in 0..rounds.max(1) {
            for turn in 0..2 {
                let slot = (round + turn) % 2;
                for (row, measured) in rows.iter_mut().zip(once(&both[slot])?) {
                    row.rounds[slot].push(measured);
                }
            }
        }
        for row in &rows {
            eprintln!("{}: CPU {}", row.label, row.compared(|measured| measured.cpu_per_call).join(", "));
        }
        // Rows of a server that failed are not there at all.
        self.rows.extend(rows);
        Ok(())
    }

    /// Nothing without rows.
    pub(super) fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let [a, b] = &self.labels.0;
        let cpu = format!("CPU per call or event: {a}");
        let latency = format!("latency: {a}");
        let head = ["work", &cpu, b, "ratio (spread)", &latency, b, "ratio (spread)"];
        let lines = self.rows.iter().map(|row| {
            let mut line = vec![row.label.clone()];
            line.extend(row.compared(|measured| measured.cpu_per_call));
            line.extend(row.compared(|measured| measured.latency));
            line
        });
        format!("{}\n", table::plain(&head, lines.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_and_the_spread_of_its_ratios() {
        let rounds = |times: [u64; 3]| {
            times.map(|us| {
                let time = Duration::from_micros(us);
                MeasuredCalls { cpu_per_call: time, latency: time * 2 }
            })
        };
        let row = Row {
            label: "put".to_owned(),
            rounds: [rounds([10, 20, 30]).into(), rounds([20, 20, 20]).into()],
        };
        let table = RatioTable { labels: Labels(["new".to_owned(), "old".to_owned()]), rows: vec![row] };
        let text = table.markdown();
        for part in ["CPU per call or event: new", "20.0 us", "40.0 us", "1.000 (0.500-1.500)"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}
