//! The cost of a hot key: `cargo run --release -p revd-bench --bin hot -- PUTS`.
//!
//! Puts one key so many times beside a few others, with a checkpoint and a published View for every
//! so many puts, then reads all of its past as a watch with previous values does, saves the index
//! behind single puts, and compacts. Printed for each phase: bytes written, the longest checkpoint
//! and the longest turn of the state core, the freeing of old Views among them (both of CPU time).

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use revd_bench::{CountingDisk, cpu_time, key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Revision, Store, View};

const PUTS_PER_CHECKPOINT: u64 = 5_000;
/// Puts between two Views: a batch of the log.
const PUTS_PER_VIEW: u64 = 50;
const HOT: &[u8] = b"/hot";
const OTHERS: u64 = 1_000;

struct Bench {
    store: Store,
    view: View,
    written: Arc<AtomicU64>,
    /// When the phase began, and what was written by then.
    begun: (Instant, u64),
    longest_checkpoint: Duration,
    longest_turn: Duration,
}

fn main() -> anyhow::Result<()> {
    let puts = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse::<u64>())?;
    let directory = tempfile::tempdir_in(std::env::var("REVD_BENCH_DIR").unwrap_or_else(|_| ".".to_owned()))?;
    let path = directory.path().join("tree");
    println!("one key of {OTHERS} is put {puts} times, a checkpoint each {PUTS_PER_CHECKPOINT}");
    println!("| phase | CPU each | written | longest checkpoint | longest turn |");
    println!("|---|---|---|---|---|");
    let written = Arc::default();
    let mut store = open(&path, &written)?;
    let (view, longest) = (store.view(), Duration::ZERO);
    let begun = (Instant::now(), 0);
    let mut bench = Bench { store, view, written, begun, longest_checkpoint: longest, longest_turn: longest };
    let mut cpu = cpu_time()?;
    for number in 0..OTHERS {
        bench.put(&key(number), number)?;
    }
    for number in 0..puts {
        bench.put(HOT, number)?;
    }
    bench.report("puts", &mut cpu, puts)?;
    bench.read_all()?;
    bench.report("all events with what was before", &mut cpu, puts)?;
    for number in 0..20 {
        bench.put(HOT, number)?;
        bench.checkpoint(CheckpointKind::WithIndex)?;
    }
    bench.report("20 saves of the index, each behind a put", &mut cpu, 20)?;
    bench.compact(bench.store.revision() - i64::try_from(puts / 2)?)?;
    bench.report("compaction to the half", &mut cpu, 1)?;
    bench.compact(bench.store.revision())?;
    bench.report("compaction of all", &mut cpu, 1)?;
    for number in 0..puts / 4 {
        bench.put(HOT, number)?;
    }
    bench.report("puts", &mut cpu, puts / 4)?;
    let live = bench.store.view().reader().count(revd_engine::mvcc::KeyRange::ALL, i64::MAX);
    drop(bench);
    let store = open(&path, &Arc::default())?;
    println!("restart: {} ms of CPU", (cpu_time()? - cpu).as_millis());
    anyhow::ensure!(store.reader().count(revd_engine::mvcc::KeyRange::ALL, i64::MAX) == live);
    Ok(())
}

fn open(path: &std::path::Path, written: &Arc<AtomicU64>) -> anyhow::Result<Store> {
    let disk = CountingDisk { disk: MmapDisk::open(path)?, written: Arc::clone(written), syncs: false };
    Ok(Store::open(Arc::new(disk), DbOptions::default())?)
}

impl Bench {
    fn put(&mut self, key: &[u8], seed: u64) -> anyhow::Result<()> {
        let index = self.store.applied().index + 1;
        let mut txn = self.store.begin();
        txn.put(key, &value(32, seed), 0);
        txn.commit();
        self.store.set_applied(Applied { index, term: 1 });
        if index.is_multiple_of(PUTS_PER_VIEW) {
            self.take_view()?;
        }
        if index.is_multiple_of(PUTS_PER_CHECKPOINT) {
            self.checkpoint(CheckpointKind::Auto)?;
        }
        Ok(())
    }

    /// The newest View. Dropping the one before frees what only that one held.
    fn take_view(&mut self) -> anyhow::Result<()> {
        let begun = cpu_time()?;
        self.view = self.store.view();
        self.longest_turn = self.longest_turn.max(cpu_time()? - begun);
        Ok(())
    }

    fn checkpoint(&mut self, kind: CheckpointKind) -> anyhow::Result<()> {
        let begun = cpu_time()?;
        if let Some(checkpoint) = self.store.checkpoint(kind) {
            self.store.finish_checkpoint(checkpoint.write()?);
        }
        self.longest_checkpoint = self.longest_checkpoint.max(cpu_time()? - begun);
        Ok(())
    }

    /// Every record, and the one that it replaced.
    fn read_all(&mut self) -> anyhow::Result<()> {
        self.view = self.store.view();
        let reader = self.view.reader();
        let mut found = 0_u64;
        reader.each_record_after(Revision::default(), |at, _| {
            let before = reader.get(HOT, at.revision.main - 1);
            if let Some(before) = before {
                reader.record(before.modified)?;
                found += 1;
            }
            Ok(true)
        })?;
        anyhow::ensure!(found > 0, "nothing was before");
        Ok(())
    }

    /// Compacts, until its space is free.
    fn compact(&mut self, at: i64) -> anyhow::Result<()> {
        self.store.compact(at)?;
        let index = self.store.applied().index;
        self.store.set_applied(Applied { index, term: 1 });
        while self.store.compaction_pending() || self.store.is_sweeping() {
            self.take_view()?;
            self.checkpoint(CheckpointKind::Auto)?;
            loop {
                let begun = cpu_time()?;
                let has_more = self.store.forget_compacted(1);
                self.longest_turn = self.longest_turn.max(cpu_time()? - begun);
                if !has_more {
                    break;
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, phase: &str, cpu: &mut Duration, count: u64) -> anyhow::Result<()> {
        let (now, written) = (cpu_time()?, self.written.load(Ordering::Relaxed));
        println!(
            "| {phase} | {} ns | {} kB | {} us | {} us |",
            (now - *cpu).as_nanos() / u128::from(count.max(1)),
            (written - self.begun.1) / 1_000,
            self.longest_checkpoint.as_micros(),
            self.longest_turn.as_micros(),
        );
        self.begun = (Instant::now(), written);
        *cpu = cpu_time()?;
        (self.longest_checkpoint, self.longest_turn) = (Duration::ZERO, Duration::ZERO);
        Ok(())
    }
}
