//! What the loaded keys cost in memory and on disk, and how long a restart with them takes.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use revd_bench::calls;
use revd_bench::servers::Server;

/// How long both are left alone before memory is looked at.
const SETTLE: Duration = Duration::from_secs(5);

/// One server's figures.
struct Footprint {
    loaded: u64,
    disk: u64,
    restart: Duration,
    restarted: u64,
}

async fn measure(server: &mut Server) -> anyhow::Result<Footprint> {
    let (loaded, disk) = (server.anonymous_memory(), server.disk_bytes());
    let start = Instant::now();
    server.restart()?;
    while calls::read(server, calls::Read::One, 1).await.is_err() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let restart = start.elapsed();
    tokio::time::sleep(SETTLE).await;
    Ok(Footprint { loaded, disk, restart, restarted: server.anonymous_memory() })
}

/// Measures both, as a Markdown table.
pub async fn table(revd: &mut Server, etcd: &mut Server, keys: u64) -> anyhow::Result<String> {
    tokio::time::sleep(SETTLE).await;
    let (revd, etcd) = (measure(revd).await?, measure(etcd).await?);
    let mut out = format!(
        "| with {keys} keys of 64 B and values of 256 B | revd | etcd | ratio |\n|---|---|---|---|\n"
    );
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    for (label, ours, theirs) in [
        ("anonymous memory after loading, MB", megabytes(revd.loaded), megabytes(etcd.loaded)),
        ("anonymous memory after a restart, MB", megabytes(revd.restarted), megabytes(etcd.restarted)),
        ("data directory, MB", megabytes(revd.disk), megabytes(etcd.disk)),
        ("SIGTERM, start, first read, s", revd.restart.as_secs_f64(), etcd.restart.as_secs_f64()),
    ] {
        writeln!(out, "| {label} | {ours:.2} | {theirs:.2} | **{:.2}** |", ours / theirs)?;
    }
    Ok(out)
}
