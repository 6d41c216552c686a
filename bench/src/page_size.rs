//! The cost of page sizes: `cargo run --release -p revd-bench --bin page-size`.
//!
//! The same load for each size, on a real file: puts of 256 bytes over a fixed set of keys, a
//! checkpoint every thousand puts. Printed: bytes the checkpoints wrote per put, their time, the
//! file's size, and random reads.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use revd_bench::{CountingDisk, key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{Applied, CheckpointKind, Store};

const KEYS: u64 = 200_000;
const PUTS: u64 = 600_000;
const PUTS_PER_CHECKPOINT: u64 = 1_000;
const READS: u64 = 500_000;

fn main() -> anyhow::Result<()> {
    println!("| page | written per put | checkpoint of {PUTS_PER_CHECKPOINT} puts | file | random read |");
    println!("|---|---|---|---|---|");
    for page_bytes in [4096, 8192, 16384, 32768] {
        measure(page_bytes)?;
    }
    Ok(())
}

fn measure(page_bytes: u32) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in("target")?;
    let path = dir.path().join("tree");
    let written = Arc::new(AtomicU64::new(0));
    let disk = CountingDisk { disk: MmapDisk::open(&path)?, written: Arc::clone(&written), syncs: true };
    let mut store = Store::open(Arc::new(disk), DbOptions { page_bytes_if_new: page_bytes })?;
    let mut checkpoints = Duration::ZERO;
    for number in 0..PUTS {
        let mut txn = store.begin();
        txn.put(&key(number * 7919 % KEYS), &value(256, number), 0);
        txn.commit();
        store.set_applied(Applied { index: number + 1, term: 1 });
        if number % PUTS_PER_CHECKPOINT == PUTS_PER_CHECKPOINT - 1
            && let Some(checkpoint) = store.checkpoint(CheckpointKind::Auto)
        {
            let start = Instant::now();
            let durable = checkpoint.write()?;
            checkpoints += start.elapsed();
            store.finish_checkpoint(durable);
        }
    }
    let view = store.view();
    let reader = view.reader();
    let start = Instant::now();
    let mut bytes = 0;
    for number in 0..READS {
        let meta = reader.get(&key(number * 104_729 % KEYS), i64::MAX).expect("every key was put");
        bytes += reader.record(meta.modified)?.len();
    }
    let read = start.elapsed().div_f64(READS as f64);
    assert!(bytes > 0);
    println!(
        "| {} KiB | {:.0} B | {:.2} ms | {:.0} MB | {} ns |",
        page_bytes / 1024,
        written.load(Ordering::Relaxed) as f64 / PUTS as f64,
        checkpoints.as_secs_f64() * 1e3 / (PUTS / PUTS_PER_CHECKPOINT) as f64,
        std::fs::metadata(&path)?.len() as f64 / 1e6,
        read.as_nanos()
    );
    Ok(())
}
