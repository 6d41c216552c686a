//! The command line: one file for each command; servers, outputs and values of flags are shared.

mod attacks;
mod benchmark;
mod canonical;
mod figures;
mod outputs;
mod results;
mod scenario;
mod servers;
mod suite;
mod values;
mod versus;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::presets;
use crate::started;
use crate::wire::tls::{self, TlsArgs};
use crate::wire::users::{self, UserArgs};

const EXAMPLES: &str = "\
Examples:
  loadgen                                          the canonical workload on a server of its own
  loadgen put --endpoints 10.0.0.5:2379            peak rate of writes, 100 callers
  loadgen get --rate 20000 --duration 30s          open loop: times count from when a call was meant to begin
  loadgen put --sweep 1000..64000:7                rate after rate until the server cannot keep up
  loadgen watch-fanout --watchers 10000 --streams 500 --html report.html
  loadgen versus --a revd --b etcd --html report.html
  loadgen figures ranges footprint --a old=/tmp/revd-old --b new=target/release/revd
  loadgen attacks --rounds 2 --only txn            latency of honest callers beside attacks
  loadgen suite nightly.toml --server revd --json new.json
  loadgen compare base.json new.json --fail-if 'p99 > 1.10x' --junit gate.xml
  loadgen benchmark put --clients 100 --conns 10 --total 100000       flags and summary of etcd's benchmark
";

/// Load, latency and watch fan-out against any etcd v3 endpoint.
#[derive(Parser)]
#[command(name = "loadgen", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<LoadgenCommand>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    user: UserArgs,
}

#[derive(Subcommand)]
enum LoadgenCommand {
    #[command(flatten)]
    Scenario(Box<scenario::Scenario>),
    /// Scenarios of a TOML file
    Suite(suite::SuiteArgs),
    /// Scenarios on two servers: started alike, measured in turns
    Versus(versus::VersusArgs),
    /// Latency, memory, disk, restart, watches and leases of two servers: the tables of README.md
    /// and docs/results
    Figures(figures::FiguresArgs),
    /// Latency of honest callers beside attacks, on two servers
    Attacks(attacks::AttacksArgs),
    /// One result against another, with a verdict
    Compare(results::CompareArgs),
    /// A report of results that were kept as JSON
    Report(results::ReportArgs),
    /// Figures over results, oldest first
    History(results::HistoryArgs),
    /// Names of scenarios
    Scenarios,
    /// etcd's `benchmark`: its subcommands, flags and summary
    Benchmark(benchmark::BenchmarkArgs),
    /// Completion for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    // As `benchmark` in a script's PATH it is that program.
    let mut args: Vec<String> = std::env::args().collect();
    let is_benchmark = args.first().is_some_and(|name| name.rsplit('/').next() == Some("benchmark"));
    if is_benchmark {
        args.insert(1, "benchmark".to_owned());
    }
    let cli = Cli::parse_from(args);
    if let Err(error) = tls::set(&cli.tls).and_then(|()| users::set(&cli.user)) {
        eprintln!("loadgen: {error:#}");
        return ExitCode::from(outputs::FAILED);
    }
    let result = match cli.command {
        None => canonical::run(),
        Some(LoadgenCommand::Scenario(scenario)) => scenario::run(*scenario),
        Some(LoadgenCommand::Suite(args)) => suite::run(&args),
        Some(LoadgenCommand::Versus(args)) => versus::run(&args),
        Some(LoadgenCommand::Figures(args)) => figures::run(&args),
        Some(LoadgenCommand::Attacks(args)) => attacks::run(&args),
        Some(LoadgenCommand::Compare(args)) => results::compare_kept(&args),
        Some(LoadgenCommand::Report(args)) => results::report(&args),
        Some(LoadgenCommand::History(args)) => results::show_history(&args),
        Some(LoadgenCommand::Scenarios) => {
            presets::NAMES.iter().for_each(|(name, what)| println!("{name:18} {what}"));
            Ok(ExitCode::SUCCESS)
        }
        Some(LoadgenCommand::Benchmark(args)) => benchmark::run(args),
        Some(LoadgenCommand::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "loadgen", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    let code = result.unwrap_or_else(|error| {
        eprintln!("loadgen: {error:#}");
        ExitCode::from(outputs::FAILED)
    });
    // Results of an interrupted run are kept by now.
    let interrupted = started::signal().and_then(|signal| u8::try_from(started::status_of(signal)).ok());
    interrupted.map_or(code, ExitCode::from)
}
