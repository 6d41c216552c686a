//! `loadgen versus`: scenarios on two servers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::outputs::{Outputs, status};
use crate::cli::servers::PairArgs;
use crate::cli::values::{members, seconds};
use crate::plan::Plan;
use crate::report::over_time;
use crate::result::RunResult;
use crate::servers::Security;
use crate::suite::{Suite, Which};
use crate::{presets, ratios, versus};

/// Of scenarios that do not say.
const ROUNDS: usize = 5;
const SECONDS: f64 = 5.0;

/// `loadgen versus`.
#[derive(Args)]
pub(super) struct VersusArgs {
    /// Scenarios by name, instead of all that take seconds (may be given several times); `large`
    /// takes ten minutes on each server
    #[arg(long = "scenario", value_name = "NAME", value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Scenarios of a TOML file, instead of all
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Rounds of each scenario [default: the suite's, or 5; 1 of `large`]
    #[arg(long)]
    rounds: Option<usize>,
    /// How long each round lasts [default: the suite's, or 5s; 10m of `large`]
    #[arg(long, value_parser = seconds)]
    duration: Option<f64>,
    /// Members of each cluster; callers are spread over all of them, a single one calls the leader
    #[arg(long, default_value_t = 1, value_parser = members)]
    members: usize,
    /// Give both servers, or one, a certificate: calls go over TLS [default: the suite's]
    #[arg(long, value_name = "WHICH", num_args = 0..=1, default_missing_value = "both", help_heading = "Servers")]
    tls: Option<Which>,
    /// Give both, or one, users: calls are made by one that may read and write all keys
    #[arg(long, value_name = "WHICH", num_args = 0..=1, default_missing_value = "both", help_heading = "Servers")]
    auth: Option<Which>,
    #[command(flatten)]
    pair: PairArgs,
    #[command(flatten)]
    outputs: Outputs,
}

fn is_long(plan: &Plan) -> bool {
    presets::LONG.contains(&plan.name.as_str())
}

/// The scenarios: those of the suite, those that are named, or all that take seconds.
fn plans(args: &VersusArgs, suite: Option<&Suite>) -> anyhow::Result<Vec<Plan>> {
    let all = presets::NAMES.map(|(name, _)| name);
    let quick = all.iter().filter(|name| !presets::LONG.contains(name));
    let mut plans = match (suite, args.scenarios.as_slice()) {
        (Some(suite), _) => suite.plans()?,
        (None, []) => quick.map(|name| presets::preset(name)).collect::<anyhow::Result<Vec<_>>>()?,
        (None, names) => names.iter().map(|name| presets::preset(name)).collect::<anyhow::Result<_>>()?,
    };
    for plan in plans.iter_mut().filter(|plan| !plan.catches_up()) {
        let own = if suite.is_some() || is_long(plan) { plan.duration } else { SECONDS };
        plan.duration = args.duration.unwrap_or(own);
    }
    Ok(plans)
}

fn rounds(args: &VersusArgs, suite: Option<&Suite>, plan: &Plan) -> usize {
    let said = args.rounds.or(suite.and_then(|suite| suite.rounds));
    said.unwrap_or(if is_long(plan) { 1 } else { ROUNDS })
}

/// Measures two servers in turn.
pub(super) fn run(args: &VersusArgs) -> anyhow::Result<ExitCode> {
    let suite = args.suite.as_deref().map(Suite::read).transpose()?;
    let plans = plans(args, suite.as_ref())?;
    let [mut a, mut b] = args.pair.both(args.members)?;
    let tls = args.tls.or(suite.as_ref().and_then(|suite| suite.tls));
    let auth = args.auth.or(suite.as_ref().and_then(|suite| suite.auth));
    for (spec, own) in [(&mut a, Which::A), (&mut b, Which::B)] {
        let has = |which: Option<Which>| which.is_some_and(|which| which == own || which == Which::Both);
        spec.security = Security { tls: has(tls), auth: has(auth) };
    }
    args.pair.pin()?;
    let session = args.outputs.session()?;
    let labels = [a.program.name.as_str(), b.program.name.as_str()];
    let show = |first: &RunResult, second: &RunResult| {
        println!("{}", ratios::table(&ratios::compare((labels[0], labels[1]), first, second)));
        ratios::without((labels[0], labels[1]), first, second).iter().for_each(|text| println!("{text}"));
        for (label, run) in labels.iter().zip([first, second]) {
            let said: Vec<_> = run.plan.looks().into_iter().chain(over_time::lines(run)).collect();
            let wrong = run.violations.iter().chain(&run.stopped).chain(&run.warnings);
            said.iter().chain(wrong).for_each(|text| println!("{label}: {text}"));
        }
    };
    let (pairs, failure) =
        versus::run(&session, (&a, &b), &plans, |plan| rounds(args, suite.as_ref(), plan), show)?;
    let rows: Vec<_> = pairs
        .iter()
        .flat_map(|(first, second)| ratios::compare((labels[0], labels[1]), first, second))
        .collect();
    let without: Vec<_> = pairs
        .iter()
        .flat_map(|(first, second)| ratios::without((labels[0], labels[1]), first, second))
        .collect();
    let runs: Vec<RunResult> = pairs.into_iter().flat_map(|(first, second)| [first, second]).collect();
    print!("{}", ratios::summary(&rows));
    without.iter().for_each(|text| println!("\n{text}"));
    let title = format!("{} beside {}", labels[0], labels[1]);
    args.outputs.write(&title, &labels, &runs, &rows)?;
    failure.map_or_else(|| Ok(status(&runs)), Err)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(flatten)]
        versus: VersusArgs,
    }

    /// Name, seconds and rounds of each scenario.
    fn planned(words: &[&str], suite: Option<&Suite>) -> Vec<(String, f64, usize)> {
        let args = Words::parse_from([&["versus"], words].concat()).versus;
        let with_rounds = |plan: Plan| {
            let rounds = rounds(&args, suite, &plan);
            (plan.name, plan.duration, rounds)
        };
        plans(&args, suite).unwrap().into_iter().map(with_rounds).collect()
    }

    #[test]
    fn scenarios_that_take_long_are_run_when_they_are_named_and_once() {
        let all = planned(&[], None);
        assert_eq!(all.len(), presets::NAMES.len() - presets::LONG.len());
        assert!(all.iter().all(|(name, _, rounds)| name != "large" && *rounds == ROUNDS));
        assert!(all.contains(&("put".to_owned(), SECONDS, ROUNDS)));
        let large = |seconds, rounds| ("large".to_owned(), seconds, rounds);
        let put = ("put".to_owned(), SECONDS, ROUNDS);
        assert_eq!(planned(&["--scenario", "large,put"], None), [large(600.0, 1), put]);
        let words = ["--scenario", "large", "--duration", "20s", "--rounds", "3"];
        assert_eq!(planned(&words, None), [large(20.0, 3)]);
    }

    #[test]
    fn a_suite_says_how_long_and_how_often_unless_the_command_line_does() {
        let text = "rounds = 2\n[[scenario]]\npreset = \"put\"\nduration = 7.0\n";
        let suite: Suite = toml::from_str(text).unwrap();
        assert_eq!(planned(&[], Some(&suite)), [("put".to_owned(), 7.0, 2)]);
        let words = ["--duration", "1s", "--rounds", "4"];
        assert_eq!(planned(&words, Some(&suite)), [("put".to_owned(), 1.0, 4)]);
    }
}
