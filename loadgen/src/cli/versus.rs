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

/// Measures two servers in turn.
pub(super) fn run(args: &VersusArgs) -> anyhow::Result<ExitCode> {
    let suite = args.suite.as_deref().map(Suite::read).transpose()?;
    let mut plans = match (&suite, args.scenarios.as_slice()) {
        (Some(suite), _) => suite.plans()?,
        (None, []) => presets::NAMES
            .iter()
            .filter(|(name, _)| !presets::LONG.contains(name))
            .map(|(name, _)| presets::preset(name))
            .collect::<anyhow::Result<Vec<_>>>()?,
        (None, names) => {
            names.iter().map(|name| presets::preset(name)).collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    let is_long = |plan: &Plan| presets::LONG.contains(&plan.name.as_str());
    for plan in plans.iter_mut().filter(|plan| !plan.catches_up()) {
        let own = if suite.is_some() || is_long(plan) { plan.duration } else { SECONDS };
        plan.duration = args.duration.unwrap_or(own);
    }
    let rounds = args.rounds.or(suite.as_ref().and_then(|suite| suite.rounds));
    let rounds = |plan: &Plan| rounds.unwrap_or(if is_long(plan) { 1 } else { ROUNDS });
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
            let said = over_time::lines(run);
            let wrong = run.violations.iter().chain(&run.stopped).chain(&run.warnings);
            said.iter().chain(wrong).for_each(|text| println!("{label}: {text}"));
        }
    };
    let (pairs, failure) = versus::run(&session, (&a, &b), &plans, rounds, show)?;
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
