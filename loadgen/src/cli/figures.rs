//! `loadgen figures`: the tables of README.md and docs/results.

use std::process::ExitCode;

use clap::Args;

use crate::cli::servers::{PairArgs, heading};
use crate::cli::values::members;
use crate::figures::{self, FigurePart, FigureSizes};

/// `loadgen figures`.
#[derive(Args)]
pub(super) struct FiguresArgs {
    /// Which, each on fresh servers
    #[arg(value_enum, default_values = ["calls", "transactions", "ranges"])]
    parts: Vec<FigurePart>,
    /// Rounds of each row
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Calls of h2load in a round
    #[arg(long, default_value_t = 20_000)]
    calls: u64,
    /// Keys of ranges and footprint [default: 1000000], and of growth [default: 10000000]
    #[arg(long)]
    keys: Option<u64>,
    /// Revisions of compaction
    #[arg(long, default_value_t = 10_000_000)]
    revisions: u64,
    /// Leases of expiry
    #[arg(long, default_value_t = 100_000)]
    leases: usize,
    /// Members of each cluster; callers are spread over all of them, watchers are on a follower
    #[arg(long, default_value_t = 1, value_parser = members)]
    members: usize,
    /// Kills of the leader
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Revisions that a member which was away has to catch up with
    #[arg(long, default_value_t = 2_000_000)]
    away: u64,
    #[command(flatten)]
    pair: PairArgs,
}

/// Measures, and prints Markdown.
pub(super) fn run(args: &FiguresArgs) -> anyhow::Result<ExitCode> {
    let specs = args.pair.both(args.members)?;
    args.pair.pin()?;
    let &FiguresArgs { rounds, calls, keys, revisions, leases, kills, away, .. } = args;
    let sizes = FigureSizes { rounds, calls, keys, revisions, leases, kills, away };
    println!("{}", heading(&specs));
    print!("{}", figures::run(&args.parts, (&specs[0], &specs[1]), &sizes)?);
    Ok(ExitCode::SUCCESS)
}
