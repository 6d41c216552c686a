//! Output files, and the exit status.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use crate::measure::Session;
use crate::ratios::RatioRow;
use crate::report::files;
use crate::report::html::{self, Labelled};
use crate::result::RunResult;

/// The exit status of an error, of an incomplete run, and of a server that did wrong (2 is a wrong
/// command line).
pub(super) const FAILED: u8 = 1;

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
    /// No progress line
    #[arg(long, short, help_heading = "Output")]
    quiet: bool,
}

impl Outputs {
    pub(super) fn session(&self) -> anyhow::Result<Session> {
        Session::new(self.quiet)
    }

    /// Writes all files that were asked for.
    pub(super) fn write(
        &self,
        title: &str,
        labels: &[&str],
        runs: &[RunResult],
        pairs: &[RatioRow],
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

/// The exit status of runs: not 0 when one was incomplete or the server did what it must not.
pub(super) fn status(runs: &[RunResult]) -> ExitCode {
    if runs.iter().all(RunResult::is_good) { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}
