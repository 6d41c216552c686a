//! Rate after rate, until the server cannot keep up: its knee.

use crate::cost::CostSource;
use crate::measure::Session;
use crate::plan::Plan;
use crate::result::{RunResult, median};
use crate::table;
use crate::units::{amount, time};

/// A server keeps up that does so many of the calls that were meant to be.
const KEPT_UP: f64 = 0.99;
/// Below this share the sweep ends.
const COLLAPSED: f64 = 0.9;
/// The knee is the last rate whose p99 is at most so many times that of the lowest rate ...
const KNEE: f64 = 5.0;
/// ... or at most this, in microseconds: what is this fast is not congested.
const FAST: f64 = 1_000.0;

/// Rates, from lowest to highest.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates(pub Vec<f64>);

impl std::str::FromStr for Rates {
    type Err = anyhow::Error;

    /// `1000..64000:7`, in even ratios.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let wrong =
            || anyhow::anyhow!("`{text}` is no sweep: 1000..64000 or 1000..64000:7 (seven rates) are");
        let (range, steps) = text.split_once(':').unwrap_or((text, "8"));
        let (from, to) = range.split_once("..").ok_or_else(wrong)?;
        let number =
            |text: &str| text.trim().parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
        let (from, to) = (number(from).ok_or_else(wrong)?, number(to).ok_or_else(wrong)?);
        let steps =
            steps.trim().parse::<i32>().ok().filter(|steps| (2..=100).contains(steps)).ok_or_else(wrong)?;
        anyhow::ensure!(from < to, "`{text}`: the first rate must be lower than the last");
        let ratio = (to / from).powf(1.0 / f64::from(steps - 1));
        Ok(Self((0..steps).map(|step| from * ratio.powi(step)).collect()))
    }
}

fn achieved(run: &RunResult) -> f64 {
    median(run.rounds.iter().map(|round| {
        round.ops.iter().filter(|op| op.name != crate::plan::WATCH_NAME).map(|op| op.rate).sum()
    }))
}

fn p99(run: &RunResult) -> f64 {
    let names = run.op_names();
    names.iter().map(|name| median(run.op(name).map(|op| op.latency.p99))).fold(0.0, f64::max)
}

/// The plan at one rate.
fn at(plan: &Plan, rate: f64) -> Plan {
    let name = format!("{} at {}/s", plan.name, amount(rate.round()));
    Plan { rate: Some(rate), total: None, name, ..plan.clone() }
}

/// Refuses a sweep of which any rate makes no sense with the plan.
///
/// # Errors
/// As those of [`Plan::check`].
pub fn check(plan: &Plan, rates: &Rates) -> anyhow::Result<()> {
    rates.0.iter().try_for_each(|rate| at(plan, *rate).check())
}

/// Runs the plan at each rate, lowest first, as far as the server comes.
///
/// # Errors
/// When it cannot begin.
pub fn run(
    session: &Session,
    plan: &Plan,
    rates: &Rates,
    rounds: usize,
    source: &CostSource,
) -> anyhow::Result<Vec<RunResult>> {
    let mut runs: Vec<RunResult> = Vec::new();
    for rate in &rates.0 {
        let at = Plan { preload: plan.preload && runs.is_empty(), ..at(plan, *rate) };
        let run = session.run(&at, rounds, source)?;
        let is_over = achieved(&run) < rate * COLLAPSED || run.stopped.is_some();
        runs.push(run);
        if is_over {
            break;
        }
    }
    Ok(runs)
}

/// The highest rate at which the server kept up and was about as fast as at the lowest.
#[must_use]
pub fn knee(runs: &[RunResult]) -> Option<f64> {
    let bound = (p99(runs.first()?) * KNEE).max(FAST);
    let good = runs
        .iter()
        .take_while(|run| achieved(run) >= run.plan.rate.unwrap_or(0.0) * KEPT_UP && p99(run) <= bound);
    good.last()?.plan.rate
}

/// As Markdown.
#[must_use]
pub fn table(runs: &[RunResult]) -> String {
    let rows = runs.iter().map(|run| {
        let cost = median(run.rounds.iter().filter_map(|round| Some(round.cost.as_ref()?.cpu_us_per_op)));
        vec![
            amount(run.plan.rate.unwrap_or(0.0).round()),
            amount(achieved(run).round()),
            time(median(run.rounds.iter().flat_map(|round| &round.ops).map(|op| op.latency.p50))),
            time(p99(run)),
            if cost > 0.0 { time(cost) } else { "-".to_owned() },
        ]
    });
    let mut out = table::plain(&["rate", "achieved", "p50", "p99", "server CPU"], rows.collect());
    out += &match knee(runs) {
        Some(rate) if runs.last().and_then(|run| run.plan.rate) == Some(rate) => {
            format!("no knee up to {} a second\n", amount(rate.round()))
        }
        Some(rate) => format!("knee: {} a second\n", amount(rate.round())),
        None => "the server did not keep up with the lowest rate\n".to_owned(),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_of_a_sweep_is_checked_before_the_first_one_runs() {
        let put = crate::presets::preset("put").unwrap();
        let sweep =
            |turn_every| check(&Plan { turn_every, ..put.clone() }, &"1000..64000:7".parse().unwrap());
        sweep(0.0).unwrap();
        sweep(0.000_25).unwrap();
        let error = sweep(0.001).unwrap_err().to_string();
        assert!(error.contains("put at 64,000/s: --clients 100 is too few"), "{error}");
    }

    #[test]
    fn rates_grow_in_even_ratios() {
        let Rates(rates) = "1000..64000:7".parse().unwrap();
        let rounded: Vec<f64> = rates.iter().map(|rate| rate.round()).collect();
        assert_eq!(rounded, [1000.0, 2000.0, 4000.0, 8000.0, 16000.0, 32000.0, 64000.0]);
        for text in ["1000", "5..4", "0..5", "1..2:1", "a..b"] {
            assert!(text.parse::<Rates>().is_err(), "{text}");
        }
    }
}
