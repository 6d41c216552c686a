//! How figures went from result to result, as a line of bars each.

use crate::compare::Figure;
use crate::result::{RunResult, median};
use crate::table::plain;

/// From an eighth of a block to a whole one.
const BARS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];

/// Figures as bars, the largest the highest.
fn sparkline(figures: &[Option<f64>]) -> String {
    let most = figures.iter().flatten().copied().fold(0.0, f64::max);
    let bar = |figure: &Option<f64>| match figure {
        None => ' ',
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "one of eight")]
        Some(figure) => BARS[((figure / most.max(1e-12) * 7.0).round() as usize).min(7)],
    };
    figures.iter().map(bar).collect()
}

/// A line for each figure of each operation that the newest result has.
#[must_use]
pub fn table(results: &[Vec<RunResult>]) -> String {
    let figures = ["rate", "p50", "p99", "cpu"].map(|name| name.parse::<Figure>().expect("a figure"));
    let mut rows = Vec::new();
    for run in results.last().into_iter().flatten() {
        for op in run.op_names() {
            for figure in &figures {
                let of = |runs: &Vec<RunResult>| {
                    let found = runs.iter().find(|found| found.plan.name == run.plan.name)?;
                    let values: Vec<f64> =
                        found.rounds.iter().filter_map(|round| figure.of(round, op)).collect();
                    (!values.is_empty()).then(|| median(values))
                };
                let values: Vec<Option<f64>> = results.iter().map(of).collect();
                let Some(last) = values.last().copied().flatten() else { continue };
                let first = values.iter().flatten().next().copied().unwrap_or(last);
                let change = if first > 0.0 { format!("{:.2}x", last / first) } else { "-".to_owned() };
                let what = format!("{}/{op}", run.plan.name);
                rows.push(vec![
                    what,
                    figure.name().to_owned(),
                    sparkline(&values),
                    figure.show(last),
                    change,
                ]);
            }
        }
    }
    plain(&["", "figure", "history", "newest", "since the first"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_follow_figures() {
        assert_eq!(sparkline(&[Some(0.0), Some(4.0), None, Some(8.0)]), "\u{2581}\u{2585} \u{2588}");
    }
}
