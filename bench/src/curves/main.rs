//! revd and etcd 3.7.1 as they grow: by keys, and by revisions of a fixed set of keys.
//!
//! ```text
//! cargo run --release -p revd-bench --bin curves -- [--only keys|revisions] [--keys 10000000] [--revisions 10000000]
//! ```
//!
//! Prints Markdown tables. `keys`: memory, disk, latency and restart at each size on the way. `revisions`: then all
//! revisions but the newest of each key are compacted away, and the store is defragmented, while callers go on putting:
//! how long that takes and what it does to their latency.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(unreachable_pub, reason = "a program exports nothing")]

mod load;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use load::{Load, Work};
use revd_bench::servers::Server;
use revd_bench::table::{machine, shown};
use revd_bench::{calls, servers};
use revd_clients::MaintenanceClient;
use revd_proto::etcdserverpb::{CompactionRequest, DefragmentRequest, PutRequest};

/// How long a load is watched.
const WATCHED: Duration = Duration::from_secs(5);
/// How long a server is left alone before memory is looked at.
const SETTLE: Duration = Duration::from_secs(5);

struct Options {
    only: String,
    keys: u64,
    revisions: u64,
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options { only: String::new(), keys: 10_000_000, revisions: 10_000_000 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--only" => options.only = value,
            "--keys" => options.keys = value.parse()?,
            "--revisions" => options.revisions = value.parse()?,
            _ => anyhow::bail!("unknown option {arg}: --only, --keys, --revisions"),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = options()?;
    println!("{}\n", machine());
    if options.only != "revisions" {
        let (revd, etcd) = servers::start(&[])?;
        println!("{}", by_keys([revd, etcd], options.keys).await?);
    }
    if options.only != "keys" {
        let (revd, etcd) = servers::start(&[])?;
        println!("{}", by_revisions([revd, etcd], options.revisions).await?);
    }
    Ok(())
}

const COLUMNS: &str = "| server | put p50 / p99 | get p50 / p99 | anonymous memory | data dir | restart to first read |\n\
                       |---|---|---|---|---|---|";

/// One size of one server: latency of puts and gets, memory, disk, restart.
async fn row(server: &mut Server, keys: u64) -> anyhow::Result<String> {
    tokio::time::sleep(SETTLE).await;
    let memory = server.anonymous_memory();
    let disk = server.disk_bytes();
    let puts = Load::start(server, Work::Put, keys).await?.stop_after(WATCHED).await?;
    let gets = Load::start(server, Work::Get, keys).await?.stop_after(WATCHED).await?;
    let start = Instant::now();
    server.restart()?;
    while calls::read(server, calls::Read::One, 1).await.is_err() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let restart = start.elapsed();
    Ok(format!(
        "| {} | {} / {} | {} / {} | {:.0} MB | {:.0} MB | {:.2} s |",
        server.name,
        shown(puts.permille(500)),
        shown(puts.permille(990)),
        shown(gets.permille(500)),
        shown(gets.permille(990)),
        memory as f64 / 1e6,
        disk as f64 / 1e6,
        restart.as_secs_f64()
    ))
}

async fn by_keys(mut both: [Server; 2], keys: u64) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut loaded = 0;
    for part in [10, 5, 2, 1] {
        let size = keys / part;
        writeln!(out, "\n{size} keys of 64 B with values of 256 B:\n\n{COLUMNS}")?;
        for server in &mut both {
            let start = Instant::now();
            calls::load_keys(server, loaded..size, size, 256).await?;
            eprintln!("{}: {size} keys after {:.1?} more", server.name, start.elapsed());
            writeln!(out, "{}", row(server, size).await?)?;
        }
        loaded = size;
    }
    Ok(out)
}

async fn by_revisions(mut both: [Server; 2], revisions: u64) -> anyhow::Result<String> {
    let keys = (revisions / 10).max(1);
    let mut out = format!("{revisions} revisions of {keys} keys:\n\n{COLUMNS}\n");
    for server in &mut both {
        let start = Instant::now();
        calls::load_keys(server, 0..revisions, keys, 256).await?;
        eprintln!("{}: {revisions} revisions after {:.1?}", server.name, start.elapsed());
        writeln!(out, "{}", row(server, keys).await?)?;
    }
    writeln!(out, "\nputs of 20 callers meanwhile:\n")?;
    writeln!(out, "| server | during | took | put p50 | p99 | p99.9 | slowest | failed | data dir after |")?;
    writeln!(out, "|---|---|---|---|---|---|---|---|---|")?;
    for server in &both {
        let quiet = Load::start(server, Work::Put, keys).await?.stop_after(WATCHED).await?;
        writeln!(out, "{}", during(server, "nothing else", WATCHED, &quiet))?;
        let load = Load::start(server, Work::Put, keys).await?;
        let start = Instant::now();
        compact(server).await?;
        let took = start.elapsed();
        writeln!(out, "{}", during(server, "compaction of all", took, &load.stop().await?))?;
        let load = Load::start(server, Work::Put, keys).await?;
        let start = Instant::now();
        MaintenanceClient::new(calls::channel(server).await?).defragment(DefragmentRequest {}).await?;
        let took = start.elapsed();
        writeln!(out, "{}", during(server, "defragmentation", took, &load.stop().await?))?;
    }
    Ok(out)
}

fn during(server: &Server, what: &str, took: Duration, load: &load::Latencies) -> String {
    format!(
        "| {} | {what} | {:.2} s | {} | {} | {} | {} | {} | {:.0} MB |",
        server.name,
        took.as_secs_f64(),
        shown(load.permille(500)),
        shown(load.permille(990)),
        shown(load.permille(999)),
        shown(load.permille(1000)),
        load.failed,
        server.disk_bytes() as f64 / 1e6
    )
}

/// Everything but the newest revision of each key; returns when the space is free.
async fn compact(server: &Server) -> anyhow::Result<()> {
    let mut client = revd_clients::KvClient::new(calls::channel(server).await?);
    let put = PutRequest { key: "last".into(), value: "one".into(), ..PutRequest::default() };
    let header = client.put(put).await?.into_inner().header.context("a reply has a header")?;
    client.compact(CompactionRequest { revision: header.revision, physical: true }).await?;
    Ok(())
}
