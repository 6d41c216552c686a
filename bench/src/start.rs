//! How long a store takes to open: `cargo run --release -p revd-bench --bin start -- KEYS [LATER]`.
//!
//! Loads so many keys, saves the index, puts as many later ones as it is told, which a start reads
//! as records, and opens the store several times. The file is in the cache of the system, as it is
//! behind a restart; the memory is that of the index before, where a process that starts has the
//! system give it page by page.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use revd_bench::{key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, KeyRange, Store};
use revd_engine::random::Random;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Records of a checkpoint.
const PUTS_PER_CHECKPOINT: u64 = 5_000;
const VALUE_BYTES: usize = 256;
const ROUNDS: usize = 9;

fn main() -> anyhow::Result<()> {
    // As the server does before anything else.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let keys = args.next().transpose()?.unwrap_or(1_000_000);
    let later = args.next().transpose()?.unwrap_or(0);
    let directory = tempfile::tempdir_in(std::env::var("REVD_BENCH_DIR").unwrap_or_else(|_| ".".to_owned()))?;
    let path = directory.path().join("tree");
    let live = load(&path, keys, later)?;
    let (mut took, mut used) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (begun, cpu) = (Instant::now(), process_time()?);
        let mut store = open(&path)?;
        took.push(begun.elapsed());
        used.push(process_time()? - cpu);
        anyhow::ensure!(store.view().reader().count(KeyRange::ALL, i64::MAX) == live);
    }
    took.sort();
    used.sort();
    println!(
        "{live} keys of 64 B, {later} records above the saved index: opened in {} ms ({} to {}), CPU {} ms, of {ROUNDS}",
        took[ROUNDS / 2].as_millis(),
        took[0].as_millis(),
        took[ROUNDS - 1].as_millis(),
        used[ROUNDS / 2].as_millis(),
    );
    Ok(())
}

/// Makes the file; how many keys it has.
fn load(path: &Path, keys: u64, later: u64) -> anyhow::Result<u64> {
    let mut store = open(path)?;
    let mut random = Random::new(1);
    for number in 0..keys {
        // In no order; each comes once where the number of keys is a power of ten.
        put(&mut store, number * 0x9E37_79B1 % keys)?;
    }
    checkpoint(&mut store, CheckpointKind::WithIndex)?;
    for _ in 0..later {
        put(&mut store, random.below(keys))?;
    }
    checkpoint(&mut store, CheckpointKind::WithoutIndex)?;
    Ok(store.view().reader().count(KeyRange::ALL, i64::MAX))
}

fn put(store: &mut Store, number: u64) -> anyhow::Result<()> {
    let index = store.applied().index + 1;
    let mut txn = store.begin();
    txn.put(&key(number), &value(VALUE_BYTES, number), 0);
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
    if index.is_multiple_of(PUTS_PER_CHECKPOINT) {
        checkpoint(store, CheckpointKind::WithoutIndex)?;
    }
    Ok(())
}

fn checkpoint(store: &mut Store, kind: CheckpointKind) -> anyhow::Result<()> {
    if let Some(checkpoint) = store.checkpoint(kind) {
        store.finish_checkpoint(checkpoint.write()?);
    }
    Ok(())
}

fn open(path: &Path) -> anyhow::Result<Store> {
    Ok(Store::open(Arc::new(MmapDisk::open(path)?), DbOptions::default())?)
}

/// CPU time of all threads up to now.
fn process_time() -> anyhow::Result<Duration> {
    Ok(rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into()?)
}
