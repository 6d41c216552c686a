//! The cost of a large store: `cargo run --release -p revd-bench --bin large -- KEYS [PUTS]`.
//!
//! Loads so many keys, then puts uniformly at random, with a checkpoint for every so many puts as
//! a server that is busy would take them, then compacts; then the steady state: rounds of puts,
//! each with a compaction of the round before beside them. Printed for each phase: bytes written
//! per put, the longest checkpoint (of CPU time), CPU, and memory (at its end, and the most of it);
//! at the end the time of a restart.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use revd_bench::{CountingDisk, cpu_time, key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Store};
use revd_engine::random::Random;

/// A tenth of a second of 50,000 puts a second.
const PUTS_PER_CHECKPOINT: u64 = 5_000;
const VALUE_BYTES: usize = 256;
/// Rounds of the steady state, and the part of the puts that each has.
const ROUNDS: u64 = 6;
const ROUND_PART: u64 = 4;
/// Keys that forget, as a turn of the state core has them do.
const FORGET_KEYS: usize = 5_000;

/// A store, and what its phases have cost.
struct Bench {
    store: Store,
    written: Arc<AtomicU64>,
    /// As the phase began: the time, what was written, and CPU.
    begun: (Instant, u64, Duration),
    longest: Duration,
    checkpoints: u64,
    /// The most memory since, in kB.
    peak: Arc<AtomicU64>,
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let keys = args.next().transpose()?.unwrap_or(1_000_000);
    let puts = args.next().transpose()?.unwrap_or(keys);
    let directory = tempfile::tempdir_in(std::env::var("REVD_BENCH_DIR").unwrap_or_else(|_| ".".to_owned()))?;
    let path = directory.path().join("tree");
    println!(
        "{keys} keys of 64 B, values of {VALUE_BYTES} B, {puts} random puts, a checkpoint each {PUTS_PER_CHECKPOINT}"
    );
    println!("| phase | seconds | CPU | written per put | checkpoints | longest | memory | peak | file |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut bench = Bench::open(&path)?;
    let mut random = Random::new(1);
    for number in 0..keys {
        // In no order; each comes once where the number of keys is a power of ten.
        bench.put(number * 0x9E37_79B1 % keys, number)?;
    }
    bench.report("load", keys)?;
    for part in 1..=2 {
        for number in 0..puts {
            bench.put(random.below(keys), number)?;
        }
        bench.report(&format!("random puts {part}"), puts)?;
    }
    bench.compact()?;
    bench.report("compaction", 0)?;
    for number in 0..puts / 4 {
        bench.put(random.below(keys), number)?;
    }
    bench.report("random puts 3", puts / 4)?;
    bench.compact()?;
    bench.report("compaction", 0)?;
    for round in 1..=ROUNDS {
        bench.put(random.below(keys), 0)?;
        bench.store.compact(bench.store.revision())?;
        let (mut ended, first) = (None, bench.checkpoints);
        for number in 0..puts / ROUND_PART {
            bench.put(random.below(keys), number)?;
            if ended.is_none() && !bench.store.compaction_pending() {
                ended = Some(bench.checkpoints - first);
            }
        }
        let ended = ended.map_or_else(|| "not ended".to_owned(), |steps| format!("{steps} checkpoints"));
        bench.report(&format!("steady {round}, compaction: {ended}"), puts / ROUND_PART)?;
    }
    let live = bench.store.view().reader().count(revd_engine::mvcc::KeyRange::ALL, i64::MAX);
    drop(bench);
    let begun = Instant::now();
    let mut store = open(&path, &Arc::default())?;
    println!("restart: {:.2} s", begun.elapsed().as_secs_f64());
    anyhow::ensure!(store.view().reader().count(revd_engine::mvcc::KeyRange::ALL, i64::MAX) == live);
    Ok(())
}

fn open(path: &std::path::Path, written: &Arc<AtomicU64>) -> anyhow::Result<Store> {
    let disk = CountingDisk { disk: MmapDisk::open(path)?, written: Arc::clone(written), syncs: false };
    Ok(Store::open(Arc::new(disk), DbOptions::default())?)
}

impl Bench {
    fn open(path: &std::path::Path) -> anyhow::Result<Self> {
        let written = Arc::default();
        let store = open(path, &written)?;
        let (begun, peak) = ((Instant::now(), 0, cpu_time()?), Arc::<AtomicU64>::default());
        let sampled = Arc::clone(&peak);
        std::thread::spawn(move || {
            loop {
                sampled.fetch_max(memory().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Ok(Self { store, written, begun, longest: Duration::ZERO, checkpoints: 0, peak })
    }

    fn put(&mut self, number: u64, seed: u64) -> anyhow::Result<()> {
        let index = self.store.applied().index + 1;
        let mut txn = self.store.begin();
        txn.put(&key(number), &value(VALUE_BYTES, seed), 0);
        txn.commit();
        self.store.set_applied(Applied { index, term: 1 });
        if index.is_multiple_of(PUTS_PER_CHECKPOINT) {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> anyhow::Result<()> {
        let begun = cpu_time()?;
        if let Some(checkpoint) = self.store.checkpoint(CheckpointKind::Auto) {
            self.store.finish_checkpoint(checkpoint.write()?);
            self.checkpoints += 1;
        }
        self.longest = self.longest.max(cpu_time()? - begun);
        while self.store.forget_compacted(FORGET_KEYS) {}
        Ok(())
    }

    /// Compacts at the newest revision, until its space is free.
    fn compact(&mut self) -> anyhow::Result<()> {
        self.store.compact(self.store.revision())?;
        let index = self.store.applied().index;
        self.store.set_applied(Applied { index, term: 1 });
        while self.store.compaction_pending() || self.store.is_sweeping() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn report(&mut self, phase: &str, puts: u64) -> anyhow::Result<()> {
        let (since, before, cpu) = self.begun;
        let (seconds, written) = (since.elapsed().as_secs_f64(), self.written.load(Ordering::Relaxed));
        let all = written - before;
        let each = match puts {
            0 => format!("{} MB in all", all / 1_000_000),
            _ => format!("{} B", all / puts),
        };
        let sizes = self.store.sizes();
        println!(
            "| {phase} | {seconds:.1} | {:.1} s | {each} | {} | {} ms | {} MB | {} MB | {} of {} MB |",
            (cpu_time()? - cpu).as_secs_f64(),
            self.checkpoints,
            self.longest.as_millis(),
            memory()? / 1_000,
            self.peak.swap(0, Ordering::Relaxed) / 1_000,
            sizes.in_use / 1_000_000,
            sizes.file / 1_000_000,
        );
        self.begun = (Instant::now(), written, cpu_time()?);
        (self.longest, self.checkpoints) = (Duration::ZERO, 0);
        Ok(())
    }
}

/// Memory of the process without mapped files, in kB.
fn memory() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let found = status.lines().find_map(|text| text.strip_prefix("RssAnon:"));
    Ok(found.unwrap_or("0").trim().trim_end_matches(" kB").parse()?)
}
