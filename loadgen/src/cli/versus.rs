//! `loadgen versus`: scenarios on two servers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::outputs::{Outputs, status};
use crate::cli::servers::PairArgs;
use crate::cli::values::{members, seconds};
use crate::result::RunResult;
use crate::servers::Security;
use crate::suite::{Suite, Which};
use crate::{presets, ratios, versus};

/// `loadgen versus`.
#[derive(Args)]
pub(super) struct VersusArgs {
    /// Scenarios by name, instead of all (may be given several times)
    #[arg(long = "scenario", value_name = "NAME", value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Scenarios of a TOML file, instead of all
    #[arg(long, value_name = "FILE")]
    suite: Option<PathBuf>,
    /// Rounds of each scenario
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each round lasts
    #[arg(long, value_parser = seconds, default_value = "5s")]
    duration: f64,
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
            .map(|(name, _)| presets::preset(name))
            .collect::<anyhow::Result<Vec<_>>>()?,
        (None, names) => {
            names.iter().map(|name| presets::preset(name)).collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    for plan in plans.iter_mut().filter(|_| suite.is_none()) {
        plan.duration = if plan.catches_up() { plan.duration } else { args.duration };
    }
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
            let wrong = run.violations.iter().chain(&run.stopped).chain(&run.warnings);
            wrong.for_each(|text| println!("{label}: {text}"));
        }
    };
    let (pairs, failure) = versus::run(&session, (&a, &b), &plans, args.rounds, show)?;
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
