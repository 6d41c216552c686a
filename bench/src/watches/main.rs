//! Watches and leases of revd and etcd 3.7.1 side by side: fan-out, catching up, memory of idle watchers, keepalives.
//!
//! ```text
//! cargo run --release -p revd-bench --bin watches [-- --rounds 5 --only memory --revd-flags "..."]
//! ```
//!
//! Prints Markdown tables: medians over the rounds, the ratio of revd to etcd and its spread. The client runs on the same
//! cores: the server's CPU time per event is what counts, delays include the client's own work.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(unreachable_pub, reason = "a program exports nothing")]

mod client;
mod leases;
mod memory;

use std::time::{Duration, Instant};

use anyhow::Context as _;
use client::Tally;
use revd_bench::servers::{self, Server};
use revd_bench::table::{Measured, Table, machine};
use revd_bench::{h2load, value};
use revd_proto::etcdserverpb::{PutRequest, WatchCreateRequest};

/// What is to be done.
struct Options {
    rounds: usize,
    revd_flags: Vec<String>,
    /// One of `fan-out`, `puts`, `leases`, `memory`, `expiry`; empty for all.
    only: String,
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options { rounds: 5, revd_flags: Vec::new(), only: String::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--only" => options.only = value,
            "--revd-flags" => options.revd_flags = value.split_whitespace().map(str::to_owned).collect(),
            _ => anyhow::bail!("unknown option {arg}: --rounds, --only, --revd-flags"),
        }
    }
    Ok(options)
}

/// How many watch how.
#[derive(Clone, Copy)]
struct FanOut {
    connections: usize,
    watchers_each: usize,
    puts: usize,
    pause: Duration,
    /// Which delay is shown: of 100, the median is 50.
    percentile: usize,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = options()?;
    h2load::check()?;
    let (revd, etcd) = servers::start(&options.revd_flags)?;
    let mut table = Table::new(options.rounds);
    let wants = |part: &str| options.only.is_empty() || options.only == part;
    if wants("fan-out") {
        fan_outs(&options, [&revd, &etcd], &mut table).await?;
    }
    if wants("puts") {
        puts_with_watchers(&options, [&revd, &etcd], &mut table).await?;
    }
    if wants("leases") {
        leases::calls(options.rounds, [&revd, &etcd], &mut table).await?;
    }
    println!("{}", table.markdown(&machine()));
    if wants("memory") {
        println!("{}", memory::table(&revd, &etcd).await?);
    }
    if wants("expiry") {
        println!("{}", leases::expiry(&revd, &etcd).await?);
    }
    Ok(())
}

async fn fan_outs(options: &Options, both: [&Server; 2], table: &mut Table) -> anyhow::Result<()> {
    let small = FanOut {
        connections: 20,
        watchers_each: 50,
        puts: 100,
        pause: Duration::from_millis(20),
        percentile: 50,
    };
    let large = FanOut {
        connections: 100,
        watchers_each: 100,
        puts: 20,
        pause: Duration::from_millis(150),
        percentile: 99,
    };
    for (label, work) in [
        ("an event to each of 1,000 watchers, 20 connections; median delay", small),
        ("an event to each of 10,000 watchers, 100 connections; p99 delay", large),
    ] {
        for _ in 0..options.rounds {
            for server in both {
                table.add(label, server.name, fan_out(server, work).await?);
            }
        }
        table.progress(label);
    }
    Ok(())
}

async fn fan_out(server: &Server, work: FanOut) -> anyhow::Result<Measured> {
    let tally = Tally::new(work.puts);
    let watchers = (work.connections * work.watchers_each) as u64;
    let request = WatchCreateRequest { key: "watched".into(), ..WatchCreateRequest::default() };
    let mut streams = Vec::new();
    for _ in 0..work.connections {
        let channel = client::channel(server).await?;
        streams.push(client::open(&channel, work.watchers_each, &request, &tally));
    }
    tally.wait(&tally.created, watchers).await?;
    let mut kv = client::kv(server).await?;
    let before = server.cpu();
    for number in 1..=work.puts {
        let put = PutRequest { key: "watched".into(), value: value(256, 1), ..PutRequest::default() };
        tally.sending(number);
        kv.put(put).await?;
        tokio::time::sleep(work.pause).await;
    }
    let events = watchers * work.puts as u64;
    tally.wait(&tally.events, events).await?;
    let cpu = server.cpu() - before;
    let mut delays = Vec::new();
    for stream in streams {
        delays.extend(stream.end().await);
    }
    delays.sort_unstable();
    let at = delays.len() * work.percentile / 100;
    Ok(Measured { cpu_per_call: cpu.div_f64(events as f64), latency: delays[at.min(delays.len() - 1)] })
}

/// What a put costs while 10,000 watchers wait for other keys, and without them.
async fn puts_with_watchers(options: &Options, both: [&Server; 2], table: &mut Table) -> anyhow::Result<()> {
    let messages = h2load::Messages::write()?;
    let load = h2load::Load { method: "KV/Put", connections: 10, streams: 10, calls: 20_000 };
    let labels = ["put, 100 callers", "put, 100 callers, 10,000 watchers of other keys"];
    for _ in 0..options.rounds {
        for server in both {
            table.add(labels[0], server.name, h2load::run(server, &messages, h2load::Message::Put, load)?);
            let tally = Tally::new(0);
            let mut streams = Vec::new();
            for stream in 0..100 {
                let channel = client::channel(server).await?;
                for half in 0..50 {
                    let key = format!("other/{stream}/{half}").into();
                    let request = WatchCreateRequest { key, ..WatchCreateRequest::default() };
                    streams.push(client::open(&channel, 2, &request, &tally));
                }
            }
            tally.wait(&tally.created, 2 * streams.len() as u64).await?;
            table.add(labels[1], server.name, h2load::run(server, &messages, h2load::Message::Put, load)?);
            for stream in streams {
                stream.end().await;
            }
        }
    }
    labels.iter().for_each(|label| table.progress(label));
    Ok(())
}

/// One figure of both servers.
fn row(label: &str, unit: &str, revd: f64, etcd: f64) -> String {
    format!("| {label}, {unit} | {revd:.2} | {etcd:.2} | **{:.3}** |\n", revd / etcd)
}

/// Waits a little for memory to settle.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

/// Seconds since a point.
fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}
