//! The command line.

mod benchmark;
mod canonical;
mod scenario;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use crate::compare::{self, Rule};
use crate::measure::Session;
use crate::plan::Plan;
use crate::report::html::{self, Labelled};
use crate::report::{files, table};
use crate::result::Run;
use crate::servers::{self, Servers, Spec};
use crate::suite::Suite;
use crate::{presets, versus};

/// Everything went well; it did not; a gate is closed (2 is a wrong command line).
const FAILED: u8 = 1;
const GATE_CLOSED: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  loadgen                                          the canonical workload on a server of its own
  loadgen put --endpoints 10.0.0.5:2379            peak rate of writes, 100 callers
  loadgen get --rate 20000 --duration 30s          open loop: times count from when a call was meant to begin
  loadgen put --sweep 1000..64000:7                rate after rate until the server cannot keep up
  loadgen watch-fanout --watchers 10000 --streams 500 --html report.html
  loadgen versus --a revd --b etcd --html report.html
  loadgen suite nightly.toml --server revd --json new.json
  loadgen compare base.json new.json --fail-if 'p99 > 1.10x' --junit gate.xml
  loadgen benchmark put --clients 100 --conns 10 --total 100000       flags and summary of etcd's benchmark
";

/// Load, latency and watch fan-out against any etcd v3 endpoint.
#[derive(Parser)]
#[command(name = "loadgen", version, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Scenario(Box<scenario::Scenario>),
    /// Scenarios of a TOML file
    Suite(SuiteArgs),
    /// Two servers side by side: started alike, measured in turns
    Versus(VersusArgs),
    /// One result against another, with a verdict
    Compare(CompareArgs),
    /// A report of results that were kept as JSON
    Report(ReportArgs),
    /// How figures went over results, oldest first
    History(HistoryArgs),
    /// Names of scenarios
    Scenarios,
    /// etcd's `benchmark`: its subcommands, flags and summary
    Benchmark(benchmark::Args),
    /// Completion for a shell
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
}

/// Where results go.
#[derive(Args, Clone, Default)]
pub(super) struct Outputs {
    /// Everything, for `compare`, `report` and `history`
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    json: Option<PathBuf>,
    /// A line for each operation and round
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    csv: Option<PathBuf>,
    /// A page with plots that needs no network
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// An interval log for HdrHistogram's tools
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    hlog: Option<PathBuf>,
    /// Say nothing while working
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

impl Outputs {
    fn session(&self) -> anyhow::Result<Session> {
        Session::new(self.quiet)
    }

    /// Writes all files that were asked for.
    fn write(
        &self,
        title: &str,
        labels: &[&str],
        runs: &[Run],
        pairs: &[versus::Comparison],
    ) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            files::json(path, runs)?;
        }
        if let Some(path) = &self.csv {
            files::csv(path, runs)?;
        }
        if let Some(path) = &self.hlog {
            files::hlog(path, runs)?;
        }
        if let Some(path) = &self.html {
            let labelled: Vec<_> = runs
                .iter()
                .enumerate()
                .map(|(at, run)| Labelled {
                    label: labels.get(at % labels.len().max(1)).unwrap_or(&"server"),
                    run,
                })
                .collect();
            let page = html::page(title, &labelled, pairs);
            std::fs::write(path, page).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

/// A server that loadgen starts itself.
#[derive(Args, Clone, Default)]
pub(super) struct ServerArgs {
    /// Start this server on a fresh directory: revd, etcd, a path, or name=path
    #[arg(long, value_name = "PROGRAM", help_heading = "Server")]
    server: Option<String>,
    /// Flags for it, in one word
    #[arg(
        long,
        value_name = "FLAGS",
        allow_hyphen_values = true,
        default_value = "",
        help_heading = "Server"
    )]
    server_flags: String,
    /// A server that runs already: what does it cost? (may be given for each member)
    #[arg(long, value_name = "PID", help_heading = "Server")]
    server_pid: Vec<u32>,
    /// CPUs of the server, as 0-3
    #[arg(long, value_name = "LIST", help_heading = "Server")]
    server_cpus: Option<String>,
    /// CPUs of loadgen
    #[arg(long, value_name = "LIST", help_heading = "Server")]
    cpu_list: Option<String>,
    /// Where data goes: a folder on the disk to be measured
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    data_below: Option<PathBuf>,
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl ServerArgs {
    fn spec(&self, program: &str, flags: &str, members: usize) -> anyhow::Result<Spec> {
        let (name, program) = servers::find(program)?;
        Ok(Spec {
            name,
            program,
            flags: words(flags),
            members,
            cpus: self.server_cpus.as_deref().map(servers::cpus).transpose()?.unwrap_or_default(),
            below: self.data_below.clone(),
        })
    }

    fn start(&self) -> anyhow::Result<Option<Servers>> {
        let Some(program) = &self.server else { return Ok(None) };
        Ok(Some(Servers::start(&self.spec(program, &self.server_flags, 1)?)?))
    }

    /// Keeps loadgen to its CPUs, after servers were started.
    fn pin(&self) -> anyhow::Result<()> {
        if let Some(list) = &self.cpu_list {
            servers::pin(&servers::cpus(list)?)?;
        }
        Ok(())
    }

    fn pids(&self, started: Option<&Servers>) -> anyhow::Result<Vec<u32>> {
        self.server_pid.iter().try_for_each(|pid| crate::cost::check(*pid))?;
        Ok(started.map_or_else(|| self.server_pid.clone(), Servers::pids))
    }
}

#[derive(Args)]
struct SuiteArgs {
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
    gate: Gate,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    outputs: Outputs,
}

/// When a comparison fails.
#[derive(Args, Clone, Default)]
struct Gate {
    /// Exit with status 3 if this holds: 'p99 > 1.10x', 'put.rate < 0.9x', 'failed > 0' (may be given several times)
    #[arg(long, value_name = "RULE")]
    fail_if: Vec<Rule>,
    /// Verdicts for CI
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

#[derive(Args)]
struct VersusArgs {
    /// The first server: revd, etcd, a path, or name=path
    #[arg(long, value_name = "PROGRAM", default_value = "revd")]
    a: String,
    /// The second
    #[arg(long, value_name = "PROGRAM", default_value = "etcd")]
    b: String,
    /// Flags of the first, in one word
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    a_flags: String,
    /// Flags of the second
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true, default_value = "")]
    b_flags: String,
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
    #[arg(long, value_parser = scenario::seconds, default_value = "5s")]
    duration: f64,
    /// Members of each cluster: 1 or 3
    #[arg(long, default_value_t = 1)]
    members: usize,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    outputs: Outputs,
}

#[derive(Args)]
struct CompareArgs {
    /// What was before
    base: PathBuf,
    /// What is now
    new: PathBuf,
    #[command(flatten)]
    gate: Gate,
}

#[derive(Args)]
struct ReportArgs {
    /// Results, or name=result
    #[arg(required = true)]
    results: Vec<String>,
    /// The page
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The results are those of `versus`: what the two are called, as revd,etcd
    #[arg(long, value_name = "A,B")]
    pairs: Option<String>,
}

#[derive(Args)]
struct HistoryArgs {
    /// Results, oldest first
    #[arg(required = true)]
    results: Vec<PathBuf>,
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
    let result = match cli.command {
        None => canonical::run(),
        Some(Command::Scenario(scenario)) => scenario::run(*scenario),
        Some(Command::Suite(args)) => suite(&args),
        Some(Command::Versus(args)) => compare_servers(&args),
        Some(Command::Compare(args)) => compare_results(&args),
        Some(Command::Report(args)) => report(&args),
        Some(Command::History(args)) => history(&args),
        Some(Command::Scenarios) => {
            presets::NAMES.iter().for_each(|(name, what)| println!("{name:18} {what}"));
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Benchmark(args)) => benchmark::run(args),
        Some(Command::Completions { shell }) => {
            clap_complete::generate(shell, &mut Cli::command(), "loadgen", &mut std::io::stdout());
            Ok(ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("loadgen: {error:#}");
        ExitCode::from(FAILED)
    })
}

/// The exit status of runs: not 0 when one was incomplete or the server did what it must not.
fn status(runs: &[Run]) -> ExitCode {
    if runs.iter().all(Run::is_good) { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

fn suite(args: &SuiteArgs) -> anyhow::Result<ExitCode> {
    let suite = Suite::read(&args.file)?;
    let mut plans = suite.plans()?;
    let base = args.against.as_ref().map(|path| Run::read(path)).transpose()?;
    let mut rules = args.gate.fail_if.clone();
    for text in &suite.fail_if {
        rules.push(text.parse()?);
    }
    let started = args.server.start()?;
    args.server.pin()?;
    let pids = args.server.pids(started.as_ref())?;
    let session = args.outputs.session()?;
    let rounds = args.rounds.or(suite.rounds).unwrap_or(1);
    let mut runs = Vec::new();
    let mut failure = None;
    for plan in &mut plans {
        let endpoints = started.as_ref().map_or(&args.endpoints, |servers| &servers.endpoints);
        if !endpoints.is_empty() {
            plan.endpoints.clone_from(endpoints);
        }
        match session.run(plan, rounds, &pids) {
            Ok(run) => {
                println!("{}\n{}", plan.name, table::of(&run));
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

fn gate(base: &[Run], new: &[Run], rules: &[Rule], junit: Option<&PathBuf>) -> anyhow::Result<ExitCode> {
    let rows = compare::compare(base, new, rules)?;
    print!("{}", compare::table(&rows));
    if let Some(path) = junit {
        std::fs::write(path, compare::junit(&rows)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let is_good = new.iter().all(Run::is_good);
    Ok(match (compare::has_failed(&rows), is_good) {
        (true, _) => ExitCode::from(GATE_CLOSED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(FAILED),
    })
}

fn compare_results(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    gate(&Run::read(&args.base)?, &Run::read(&args.new)?, &args.gate.fail_if, args.gate.junit.as_ref())
}

fn compare_servers(args: &VersusArgs) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.members == 1 || args.members == 3, "--members {}: 1 or 3", args.members);
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
    let a = args.server.spec(&args.a, &args.a_flags, args.members)?;
    let b = args.server.spec(&args.b, &args.b_flags, args.members)?;
    args.server.pin()?;
    let session = args.outputs.session()?;
    let labels = [a.name.as_str(), b.name.as_str()];
    let show = |first: &Run, second: &Run| {
        println!("{}", versus::table(&versus::compare((labels[0], labels[1]), first, second)));
        for (label, run) in labels.iter().zip([first, second]) {
            let wrong = run.violations.iter().chain(&run.stopped).chain(&run.warnings);
            wrong.for_each(|text| println!("{label}: {text}"));
        }
    };
    let (pairs, failure) = versus::run(&session, (&a, &b), &plans, args.rounds, show)?;
    let rows: Vec<_> = pairs
        .iter()
        .flat_map(|(first, second)| versus::compare((labels[0], labels[1]), first, second))
        .collect();
    let runs: Vec<Run> = pairs.into_iter().flat_map(|(first, second)| [first, second]).collect();
    print!("{}", versus::summary(&rows));
    let title = format!("{} beside {}", labels[0], labels[1]);
    args.outputs.write(&title, &labels, &runs, &rows)?;
    failure.map_or_else(|| Ok(status(&runs)), Err)
}

fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let mut runs = Vec::new();
    for text in &args.results {
        let (label, path) = text.split_once('=').unwrap_or((text.as_str(), text.as_str()));
        runs.extend(Run::read(path.as_ref())?.into_iter().map(|run| (label.to_owned(), run)));
    }
    let mut rows = Vec::new();
    let mut title = "loadgen".to_owned();
    if let Some(pairs) = &args.pairs {
        let (a, b) =
            pairs.split_once(',').with_context(|| format!("--pairs {pairs}: two names, as revd,etcd"))?;
        for pair in runs.chunks_exact_mut(2) {
            (pair[0].0, pair[1].0) = (a.to_owned(), b.to_owned());
            rows.extend(versus::compare((a, b), &pair[0].1, &pair[1].1));
        }
        title = format!("{a} beside {b}");
        print!("{}", versus::summary(&rows));
    }
    let labelled: Vec<_> = runs.iter().map(|(label, run)| Labelled { label, run }).collect();
    let page = html::page(&title, &labelled, &rows);
    std::fs::write(&args.output, page).with_context(|| format!("writing {}", args.output.display()))?;
    println!("{}", args.output.display());
    Ok(ExitCode::SUCCESS)
}

fn history(args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let results = args.results.iter().map(|path| Run::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    print!("{}", crate::report::history::table(&results));
    Ok(ExitCode::SUCCESS)
}

/// Runs a plan as it stands, and shows it.
pub(super) fn run_plan(
    plan: &Plan,
    rounds: usize,
    server: &ServerArgs,
    outputs: &Outputs,
) -> anyhow::Result<ExitCode> {
    plan.check()?;
    let started = server.start()?;
    server.pin()?;
    let pids = server.pids(started.as_ref())?;
    let mut plan = plan.clone();
    if let Some(servers) = &started {
        plan.endpoints.clone_from(&servers.endpoints);
    }
    let run = outputs.session()?.run(&plan, rounds, &pids)?;
    print!("{}", table::of(&run));
    let label = started.as_ref().map_or("server", |servers| &servers.name);
    outputs.write(&plan.name, &[label], std::slice::from_ref(&run), &[])?;
    Ok(status(&[run]))
}
