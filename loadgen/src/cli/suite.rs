//! `loadgen suite`: scenarios of a TOML file.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::outputs::{Outputs, status};
use crate::cli::results::{GateArgs, gate};
use crate::cli::servers::ServerArgs;
use crate::report::terminal;
use crate::result::RunResult;
use crate::suite::Suite;

/// `loadgen suite`.
#[derive(Args)]
pub(super) struct SuiteArgs {
    /// The file; see docs/LOADGEN.md for what it may say
    file: PathBuf,
    /// Rounds of each scenario, instead of the file's
    #[arg(long)]
    rounds: Option<usize>,
    /// Where the server is, instead of the file's
    #[arg(long, value_delimiter = ',')]
    endpoints: Vec<String>,
    /// An earlier result to compare with
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    #[command(flatten)]
    gate: GateArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the scenarios of a suite.
pub(super) fn run(args: &SuiteArgs) -> anyhow::Result<ExitCode> {
    let suite = Suite::read(&args.file)?;
    let mut plans = suite.plans()?;
    let base = args.against.as_ref().map(|path| RunResult::read(path)).transpose()?;
    let mut rules = args.gate.fail_if.clone();
    for text in &suite.fail_if {
        rules.push(text.parse()?);
    }
    let mut server = args.server.clone();
    server.secure(&suite);
    let started = server.start()?;
    server.pin()?;
    let source = server.cost_source(started.as_ref())?;
    let session = args.outputs.session()?;
    let rounds = args.rounds.or(suite.rounds).unwrap_or(1);
    let mut runs = Vec::new();
    let mut failure = None;
    for plan in &mut plans {
        let endpoints = started.as_ref().map_or(&args.endpoints, |servers| &servers.endpoints);
        if !endpoints.is_empty() {
            plan.endpoints.clone_from(endpoints);
        }
        match session.run(plan, rounds, &source) {
            Ok(run) => {
                println!("{}\n{}", plan.name, terminal::of(&run));
                runs.push(run);
            }
            Err(error) => failure = Some(error.context(format!("scenario {}", plan.name))),
        }
        if failure.is_some() || session.is_interrupted() {
            break;
        }
    }
    let label = started.as_ref().map_or("server", |servers| &servers.name);
    args.outputs.write(&suite.name, &[label], &runs, &[])?;
    if let Some(error) = failure {
        return Err(error);
    }
    match base {
        Some(base) => gate(&base, &runs, &rules, args.gate.junit.as_ref()),
        None => Ok(status(&runs)),
    }
}
