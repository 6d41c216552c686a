//! What was measured, as a Markdown table.

use std::fmt::Write as _;
use std::time::Duration;

/// One round of one kind of work on one server.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    pub cpu_per_call: Duration,
    pub latency: Duration,
}

/// All rounds, in the order in which kinds of work came.
pub struct Table {
    rounds: usize,
    rows: Vec<Row>,
}

struct Row {
    label: String,
    revd: Vec<Measured>,
    etcd: Vec<Measured>,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Of one figure: both medians, the median of the ratios of neighbouring rounds, and their extremes.
fn compared(row: &Row, figure: fn(&Measured) -> Duration) -> String {
    let seconds = |measured: &Measured| figure(measured).as_secs_f64();
    let ratios: Vec<f64> =
        row.revd.iter().zip(&row.etcd).map(|(revd, etcd)| seconds(revd) / seconds(etcd)).collect();
    let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ratios.iter().copied().fold(0.0, f64::max);
    let shown_median =
        |of: &[Measured]| shown(Duration::from_secs_f64(median(of.iter().map(seconds)).max(0.0)));
    format!(
        "{} | {} | **{:.3}** ({low:.3}-{high:.3})",
        shown_median(&row.revd),
        shown_median(&row.etcd),
        median(ratios.iter().copied())
    )
}

impl Table {
    pub fn new(rounds: usize) -> Self {
        Self { rounds, rows: Vec::new() }
    }

    pub fn add(&mut self, label: &str, server: &str, measured: Measured) {
        let at = self.rows.iter().position(|row| row.label == label).unwrap_or(self.rows.len());
        if at == self.rows.len() {
            self.rows.push(Row { label: label.to_owned(), revd: Vec::new(), etcd: Vec::new() });
        }
        let row = &mut self.rows[at];
        if server == "revd" { &mut row.revd } else { &mut row.etcd }.push(measured);
    }

    /// Says on standard error that a row is done.
    pub fn progress(&self, label: &str) {
        let row = self.rows.iter().find(|row| row.label == label);
        eprintln!("{label}: cpu {}", row.map_or_else(String::new, |row| compared(row, |it| it.cpu_per_call)));
    }

    pub fn markdown(&self, machine: &str) -> String {
        let mut out = format!(
            "revd {} beside etcd 3.7.1, {} rounds, one after the other on {machine}.\n\n",
            env!("CARGO_PKG_VERSION"),
            self.rounds
        );
        out.push_str(
            "| work | CPU per call: revd | etcd | ratio (spread) | latency: revd | etcd | ratio (spread) |\n",
        );
        out.push_str("|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            let cpu = compared(row, |measured| measured.cpu_per_call);
            let latency = compared(row, |measured| measured.latency);
            writeln!(out, "| {} | {cpu} | {latency} |", row.label).expect("writing to a string");
        }
        out
    }
}

/// A duration in the unit that suits it.
pub fn shown(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    if micros < 100.0 {
        format!("{micros:.1} us")
    } else if micros < 10_000.0 {
        format!("{micros:.0} us")
    } else {
        format!("{:.1} ms", micros / 1e3)
    }
}

/// The machine, in words.
pub fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cpus} x {}, Linux {}", model.trim_start_matches([' ', '\t', ':']), kernel.trim())
}
