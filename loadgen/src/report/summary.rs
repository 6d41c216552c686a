//! The summary that etcd's `benchmark` prints, for scripts that read it (etcd 3.7, pkg/report).

use std::fmt::Write as _;

use crate::result::OpResult;

/// Bars of the histogram, and how long the longest is.
const BARS: usize = 10;
const BAR_LEN: u64 = 40;
/// The character of bars: an "end of proof".
const BLOCK: &str = "\u{220e}";

/// A summary with four decimals, or with as many as there are.
#[must_use]
pub fn of(op: &OpResult, seconds: f64, is_precise: bool) -> String {
    let show = |us: f64| {
        let seconds = us / 1e6;
        if is_precise { format!("{seconds:e} secs") } else { format!("{seconds:.4} secs") }
    };
    let latency = &op.latency;
    let mut out = format!(
        "\nSummary:\n  Total:\t{}.\n  Slowest:\t{}.\n  Fastest:\t{}.\n  Average:\t{}.\n  Stddev:\t{}.\n  Requests/sec:\t{:.4}\n",
        show(seconds * 1e6),
        show(latency.max),
        show(latency.min),
        show(latency.mean),
        show(latency.stddev),
        op.rate
    );
    out += "\nResponse time histogram:\n";
    if let Ok(samples) = latency.samples() {
        let width = (latency.max - latency.min) / BARS as f64;
        let bounds: Vec<f64> = (0..=BARS).map(|bar| latency.min + width * bar as f64).collect();
        let mut counts = vec![0_u64; bounds.len()];
        for value in samples.iter_recorded() {
            let us = value.value_iterated_to() as f64 / 1e3;
            let bar = bounds.iter().position(|bound| us <= *bound * 1.001).unwrap_or(BARS);
            counts[bar] += value.count_since_last_iteration();
        }
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        for (bound, count) in bounds.iter().zip(&counts) {
            let bar = BLOCK.repeat(usize::try_from(count * BAR_LEN / most).unwrap_or(0));
            let _ = writeln!(out, "  {:.4} [{count}]\t|{bar}", bound / 1e6);
        }
        out += "\nLatency distribution:\n";
        for percentile in [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9] {
            let at = samples.value_at_percentile(percentile) as f64 / 1e3;
            let _ = writeln!(out, "  {percentile}% in {}.", show(at));
        }
    }
    if !op.errors.is_empty() {
        out += "\nError distribution:\n";
        for (what, times) in &op.errors {
            let _ = writeln!(out, "  [{times}]\t{what}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::OpRecord;

    #[test]
    fn every_sample_is_in_a_bar() {
        let mut record = OpRecord::new("put");
        (1..=1000_u64).for_each(|at| record.add(at * 1_000_000, at, 0));
        let text = of(&OpResult::of(&record, 2.0, false), 2.0, false);
        let counts =
            text.lines().filter_map(|line| line.split_once('[')?.1.split_once(']')?.0.parse::<u64>().ok());
        assert_eq!(counts.sum::<u64>(), 1000, "{text}");
        assert!(text.contains("Requests/sec:\t500.0000") && text.contains("  50% in 0.5"), "{text}");
    }
}
