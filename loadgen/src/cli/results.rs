//! `loadgen compare`, `report` and `history`: results that were kept.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use crate::cli::outputs::FAILED;
use crate::compare::{self, Rule};
use crate::ratios;
use crate::report::history;
use crate::report::html::{self, Labelled};
use crate::result::RunResult;

/// The exit status of a rule that fails.
const GATE_CLOSED: u8 = 3;

/// When a comparison fails.
#[derive(Args, Clone, Default)]
pub(super) struct GateArgs {
    /// Exit with status 3 if this holds: 'p99 > 1.10x', 'put.rate < 0.9x', 'failed > 0' (may be
    /// given several times)
    #[arg(long, value_name = "RULE")]
    pub(super) fail_if: Vec<Rule>,
    /// Verdicts for CI
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
}

/// `loadgen compare`.
#[derive(Args)]
pub(super) struct CompareArgs {
    /// The earlier result
    base: PathBuf,
    /// The new result
    new: PathBuf,
    #[command(flatten)]
    gate: GateArgs,
}

/// `loadgen report`.
#[derive(Args)]
pub(super) struct ReportArgs {
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

/// `loadgen history`.
#[derive(Args)]
pub(super) struct HistoryArgs {
    /// Results, oldest first
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

/// Judges a result by rules, against an earlier one.
pub(super) fn gate(
    base: &[RunResult],
    new: &[RunResult],
    rules: &[Rule],
    junit: Option<&PathBuf>,
) -> anyhow::Result<ExitCode> {
    let rows = compare::compare(base, new, rules)?;
    print!("{}", compare::table(&rows));
    compare::differences(base, new).iter().for_each(|text| println!("warning: {text}"));
    if let Some(path) = junit {
        std::fs::write(path, compare::junit(&rows)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let is_good = new.iter().all(RunResult::is_good);
    Ok(match (compare::has_failed(&rows), is_good) {
        (true, _) => ExitCode::from(GATE_CLOSED),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::from(FAILED),
    })
}

/// Judges one result against another.
pub(super) fn compare_kept(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    gate(
        &RunResult::read(&args.base)?,
        &RunResult::read(&args.new)?,
        &args.gate.fail_if,
        args.gate.junit.as_ref(),
    )
}

/// Draws the page of kept results.
pub(super) fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let mut runs = Vec::new();
    for text in &args.results {
        let (label, path) = text.split_once('=').unwrap_or((text.as_str(), text.as_str()));
        runs.extend(RunResult::read(path.as_ref())?.into_iter().map(|run| (label.to_owned(), run)));
    }
    let (mut rows, mut without) = (Vec::new(), Vec::new());
    let mut title = "loadgen".to_owned();
    if let Some(pairs) = &args.pairs {
        let (a, b) =
            pairs.split_once(',').with_context(|| format!("--pairs {pairs}: two names, as revd,etcd"))?;
        for pair in runs.chunks_exact_mut(2) {
            (pair[0].0, pair[1].0) = (a.to_owned(), b.to_owned());
            rows.extend(ratios::compare((a, b), &pair[0].1, &pair[1].1));
            without.extend(ratios::without((a, b), &pair[0].1, &pair[1].1));
        }
        title = format!("{a} beside {b}");
        print!("{}", ratios::summary(&rows));
        without.iter().for_each(|text| println!("\n{text}"));
    }
    let labelled: Vec<_> = runs.iter().map(|(label, run)| Labelled { label, run }).collect();
    let page = html::page(&title, &labelled, &rows);
    std::fs::write(&args.output, page).with_context(|| format!("writing {}", args.output.display()))?;
    println!("{}", args.output.display());
    Ok(ExitCode::SUCCESS)
}

/// Shows figures over results.
pub(super) fn show_history(args: &HistoryArgs) -> anyhow::Result<ExitCode> {
    let results =
        args.results.iter().map(|path| RunResult::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    print!("{}", history::table(&results));
    Ok(ExitCode::SUCCESS)
}
