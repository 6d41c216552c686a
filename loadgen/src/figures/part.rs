//! Which figures there are, and one after the other.

use std::fmt::Write as _;

use clap::ValueEnum;

use crate::disk;
use crate::figures::sizes::FigureSizes;
use crate::figures::table::{Labels, RatioTable};
use crate::figures::{
    away, calls, expiry, failover, fan_out, footprint, growth, h2load, ranges, watch_memory,
};
use crate::servers::{ServerSpec, Servers};

/// One question to two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FigurePart {
    /// Puts and gets of one key: 1, 100 and 1,000 callers (sent by h2load)
    Calls,
    /// Compare and swap, transactions of 100 puts (sent by h2load)
    Transactions,
    /// A range of 10,000 keys, a count and a page out of --keys
    Ranges,
    /// Bytes written to disk for each put (sent by h2load)
    Written,
    /// Memory, disk and restart with --keys
    Footprint,
    /// An event to each of 1,000 and of 10,000 watchers
    FanOut,
    /// Puts while 10,000 watchers wait for other keys (sent by h2load)
    PutsBesideWatchers,
    /// Memory of idle watchers and streams; catching up over 200,000 revisions
    WatchMemory,
    /// --leases with a key each, all due at once
    Expiry,
    /// Latency, memory, disk and restart on the way to --keys
    Growth,
    /// --revisions, compacted and defragmented under load
    Compaction,
    /// The leader is killed --kills times: until writes are accepted again (needs --members 3)
    Failover,
    /// A member that was away for --away revisions comes back, and the log is kept for it (needs
    /// --members 3)
    BackByLog,
    /// The same, and the log is not kept: it gets a snapshot (needs --members 3)
    BackBySnapshot,
}

impl FigurePart {
    fn needs_h2load(self) -> bool {
        matches!(self, Self::Calls | Self::Transactions | Self::Written | Self::PutsBesideWatchers)
    }

    fn needs_a_majority_of_others(self) -> bool {
        matches!(self, Self::Failover | Self::BackByLog | Self::BackBySnapshot)
    }

    /// The servers that it needs.
    fn spec(self, spec: &ServerSpec) -> ServerSpec {
        let mut spec = spec.clone();
        if self == Self::BackByLog {
            let flags = ["--snapshot-count=1000000000", "--snapshot-catchup-entries=1000000000"];
            spec.flags.extend(flags.map(str::to_owned));
        }
        spec
    }
}

/// Measures parts, each on fresh servers; tables as Markdown. Parts that give rows of the same
/// table share one.
///
/// # Errors
/// When a server does not start or fails; tables that are complete by then are printed.
pub fn run(
    parts: &[FigurePart],
    specs: (&ServerSpec, &ServerSpec),
    sizes: &FigureSizes,
) -> anyhow::Result<String> {
    if parts.iter().any(|part| part.needs_h2load()) {
        h2load::check()?;
    }
    for part in parts {
        let is_enough = specs.0.members >= 3 || !part.needs_a_majority_of_others();
        anyhow::ensure!(is_enough, "figures of {part:?} need --members 3 or more");
    }
    let labels = Labels::of(specs);
    let mut rows = RatioTable::new(labels.clone());
    let mut out = String::new();
    for part in parts {
        if *part != parts[0] {
            disk::settle(&specs.0.data_folder())?;
        }
        let mut both = [Servers::start(&part.spec(specs.0))?, Servers::start(&part.spec(specs.1))?];
        let done = measure(*part, &mut both, &labels, sizes, &mut rows);
        drop(both);
        match done {
            Ok(text) if text.is_empty() => {}
            Ok(text) => writeln!(out, "{text}").expect("writing to a string"),
            Err(error) => {
                print!("{}{out}", rows.markdown());
                return Err(error.context(format!("figures of {part:?}")));
            }
        }
    }
    Ok(format!("{}{out}", rows.markdown()))
}

/// One part: rows for the common table, or a table of its own.
fn measure(
    part: FigurePart,
    both: &mut [Servers; 2],
    labels: &Labels,
    sizes: &FigureSizes,
    rows: &mut RatioTable,
) -> anyhow::Result<String> {
    match part {
        FigurePart::Calls => calls::single_keys(sizes, both, rows)?,
        FigurePart::Transactions => calls::transactions(sizes, both, rows)?,
        FigurePart::Ranges => ranges::measure(sizes.rounds, sizes.keys(1_000_000), both, rows)?,
        FigurePart::FanOut => fan_out::events(sizes.rounds, both, rows)?,
        FigurePart::PutsBesideWatchers => fan_out::puts_beside_watchers(sizes, both, rows)?,
        FigurePart::Written => return calls::written(sizes, both, labels),
        FigurePart::Footprint => return footprint::table(both, labels, sizes.keys(1_000_000)),
        FigurePart::WatchMemory => return watch_memory::table(both, labels),
        FigurePart::Expiry => return expiry::table(both, labels, sizes.leases),
        FigurePart::Growth => return growth::by_keys(both, sizes.keys(10_000_000)),
        FigurePart::Compaction => return growth::by_revisions(both, sizes.revisions),
        FigurePart::Failover => return failover::table(both, labels, sizes.kills),
        FigurePart::BackByLog => return away::table(both, labels, sizes.away, "by log"),
        FigurePart::BackBySnapshot => return away::table(both, labels, sizes.away, "by snapshot"),
    }
    Ok(String::new())
}
