//! `loadgen versus`: scenarios on two servers.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::outputs::{Outputs, status};
use crate::cli::servers::PairArgs;
use crate::cli::values::{members, seconds};
use crate::result::RunResult;
use crate::suite::Suite;
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
    #[command(flatten)]
    pair: PairArgs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Measures two servers in turn.
pub(super) fn run(args: &VersusArgs) -> anyhow::Result<ExitCode> {
    let mut plans = match (&args.suite, args.scenarios.as_slice()) {
        (Some(path), _) => Suite::read(path)?.plans()?,
        (None, []) => presets::NAMES
            .iter()
            .map(|(name, _)| presets::preset(name))
            .collect::<anyhow::Result<Vec<_>>>()?,
        (None, names) => {
            names.iter().map(|name| presets::preset(name)).collect::<anyhow::Result<Vec<_>>>()?
        }
    };
    for plan in plans.iter_mut().filter(|_| args.suite.is_none()) {
        plan.duration = if plan.catches_up() { plan.duration } else { args.duration };
    }
    let [a, b] = args.pair.both(args.members)?;
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
