//! A raw probe of the disk beside a run: small durable writes on the file system of the server's
//! data, which show when the disk itself stands still.
//!
//! It shares the disk with the server, so it waits behind the server's own writes too, and those
//! wait for its flushes. It writes in place, so that the file system has nothing to note but the
//! data: a stall of the file system's journal alone is not seen.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use crate::clock;
use crate::clock::SECOND;
use crate::plan::Plan;
use crate::run::beside::{Beside, RunTime};
use crate::run::shared::RunShared;

/// Bytes of a write.
const BLOCK: [u8; 4096] = [0x5a; 4096];
/// Blocks of the file: each is written in turn.
const BLOCKS: u64 = 256;
/// Longer runs have their last second here, as those of operations.
const SECONDS_MAX: usize = 1_000_000;

/// The slowest write of each second, in microseconds, and why the probe ended early.
#[derive(Debug, Default)]
pub(super) struct DiskProbe {
    pub(super) seconds: Vec<f64>,
    pub(super) error: Option<String>,
}

/// Starts it, if the plan has one.
///
/// # Errors
/// When no file can be made beside the data.
pub(super) fn start(
    plan: &Plan,
    data_folder: Option<&Path>,
    shared: &Arc<RunShared>,
) -> anyhow::Result<Option<Beside<DiskProbe>>> {
    let (Some(every), Some(folder)) = (plan.disk_probe, data_folder) else { return Ok(None) };
    // Beside the data, not in it: its size is measured.
    let folder = folder.parent().unwrap_or(folder);
    let file = tempfile::tempfile_in(folder).and_then(|file| filled(&file).map(|()| file));
    let file = file.with_context(|| format!("making a file to probe the disk in {}", folder.display()))?;
    let work = move |time: &RunTime| probe(&file, clock::from_seconds(every), time);
    Ok(Some(Beside::start("loadgen-probe", plan, shared, work)?))
}

/// Writes all blocks of the file once.
fn filled(file: &File) -> io::Result<()> {
    (0..BLOCKS).try_for_each(|block| written(file, block))?;
    file.sync_all()
}

/// Writes a block of the file again, with a flush.
fn rewritten(file: &File, block: u64) -> io::Result<()> {
    written(file, block)?;
    file.sync_data()
}

fn written(file: &File, block: u64) -> io::Result<()> {
    file.write_all_at(&BLOCK, block % BLOCKS * BLOCK.len() as u64)
}

fn probe(file: &File, every: u64, time: &RunTime) -> DiskProbe {
    let mut probe = DiskProbe::default();
    let (mut next, mut block) = (clock::nanos(), 0);
    while time.rest_until(next) {
        let begun = clock::nanos();
        let written = rewritten(file, block);
        let now = clock::nanos();
        if let Err(error) = written {
            probe.error = Some(format!("the probe of the disk ended early: {error}"));
            break;
        }
        probe.add(begun, now, time.from);
        block += 1;
        next = (next + every).max(now);
    }
    probe
}

impl DiskProbe {
    /// A write counts in every second in which it was under way.
    fn add(&mut self, begun: u64, ended: u64, from: u64) {
        if ended < from {
            return;
        }
        let second = |at: u64| usize::try_from(at.saturating_sub(from) / SECOND).unwrap_or(SECONDS_MAX);
        let (first, last) = (second(begun).min(SECONDS_MAX), second(ended).min(SECONDS_MAX));
        if self.seconds.len() <= last {
            self.seconds.resize(last + 1, 0.0);
        }
        let took = (ended - begun) as f64 / 1e3;
        self.seconds[first..=last].iter_mut().for_each(|slowest| *slowest = slowest.max(took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_as_long_as_it_was_at_first() {
        let file = tempfile::tempfile().unwrap();
        filled(&file).unwrap();
        (BLOCKS - 2..BLOCKS + 3).for_each(|block| rewritten(&file, block).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_write_counts_in_all_seconds_in_which_it_was_under_way() {
        let mut probe = DiskProbe::default();
        let from = 10 * SECOND;
        probe.add(8 * SECOND, 9 * SECOND, from); // in the warm-up
        assert!(probe.seconds.is_empty());
        probe.add(9 * SECOND, from + 1_000, from);
        probe.add(from + SECOND / 2, from + SECOND / 2 + 5_000, from);
        probe.add(from + 2 * SECOND + SECOND / 2, from + 4 * SECOND, from);
        let stall = 1.5e6;
        assert_eq!(probe.seconds, [1e6 + 1.0, 0.0, stall, stall, stall]);
    }
}
