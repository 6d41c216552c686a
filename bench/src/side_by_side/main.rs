//! revd and etcd 3.7.1 side by side: the same work in turn, in the same run, with the same durability.
//!
//! ```text
//! cargo run --release -p revd-bench -- [--rounds 5] [--calls 20000] [--keys 1000000] [--revd-flags "..."] [--only calls|bulk|ranges|bytes|footprint]
//! ```
//!
//! Prints a Markdown table: medians over the rounds, with the ratio of revd to etcd in CPU time per call and in
//! latency or throughput, and the spread of the ratio. Small calls are sent by h2load (Debian package
//! nghttp2-client), which costs the machine little, so that the server is what is measured.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(unreachable_pub, reason = "a program exports nothing")]

mod footprint;

use anyhow::Context as _;
use revd_bench::servers::Server;
use revd_bench::table::{Measured, Table, machine};
use revd_bench::{calls, h2load, servers};

/// What is to be done.
struct Options {
    rounds: usize,
    calls: u64,
    keys: u64,
    revd_flags: Vec<String>,
    /// A part of the table; empty for all of it.
    only: String,
}

impl Options {
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only == part
    }
}

fn options() -> anyhow::Result<Options> {
    let mut options =
        Options { rounds: 5, calls: 20_000, keys: 1_000_000, revd_flags: Vec::new(), only: String::new() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--calls" => options.calls = value.parse()?,
            "--keys" => options.keys = value.parse()?,
            "--revd-flags" => options.revd_flags = value.split_whitespace().map(str::to_owned).collect(),
            "--only" if ["calls", "bulk", "ranges", "bytes", "footprint"].contains(&value.as_str()) => {
                options.only = value;
            }
            _ => anyhow::bail!("no such option: {arg} {value}; the top of this program's source lists them"),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = options()?;
    h2load::check()?;
    let (mut revd, mut etcd) = servers::start(&options.revd_flags)?;
    let mut table = Table::new(options.rounds);
    let messages = h2load::Messages::write()?;
    if options.wants("calls") {
        small_calls(&options, &messages, [&revd, &etcd], &mut table)?;
    }
    if options.wants("bulk") {
        transactions(&options, &messages, [&revd, &etcd], &mut table)?;
    }
    if options.wants("ranges") {
        ranges(&options, [&revd, &etcd], &mut table).await?;
    }
    println!("{}", table.markdown(&machine()));
    if options.wants("bytes") {
        println!("{}", written(&options, &messages, [&revd, &etcd])?);
    }
    if options.only == "footprint" {
        for server in [&revd, &etcd] {
            calls::load_keys(server, 0..options.keys, options.keys, 256).await?;
        }
    }
    if options.wants("footprint") {
        println!("{}", footprint::table(&mut revd, &mut etcd, options.keys).await?);
    }
    Ok(())
}

/// Puts and gets of one key: 1, 100 and 1000 callers.
fn small_calls(
    options: &Options,
    messages: &h2load::Messages,
    both: [&Server; 2],
    table: &mut Table,
) -> anyhow::Result<()> {
    for (work, message, method) in [
        ("put 256 B", h2load::Message::Put, "KV/Put"),
        ("get, linearizable", h2load::Message::Get, "KV/Range"),
        ("get, serializable", h2load::Message::SerializableGet, "KV/Range"),
    ] {
        for (callers, connections, streams, share) in [(1, 1, 1, 10), (100, 10, 10, 1), (1000, 50, 20, 1)] {
            let label = format!("{work}, {callers} caller{}", if callers == 1 { "" } else { "s" });
            for _ in 0..options.rounds {
                for server in both {
                    let load = h2load::Load { method, connections, streams, calls: options.calls / share };
                    let measured = h2load::run(server, messages, message, load)?;
                    table.add(&label, server.name, measured);
                }
            }
            table.progress(&label);
        }
    }
    Ok(())
}

/// Bytes that durable puts of 1000 callers have written, log and store together, as a Markdown table.
fn written(options: &Options, messages: &h2load::Messages, both: [&Server; 2]) -> anyhow::Result<String> {
    let calls = options.calls * 5;
    let load = h2load::Load { method: "KV/Put", connections: 50, streams: 20, calls };
    let mut per_put = Vec::new();
    for server in both {
        // Once before: files that grow at first are used again later.
        h2load::run(server, messages, h2load::Message::Put, load)?;
        let before = server.written_bytes();
        h2load::run(server, messages, h2load::Message::Put, load)?;
        std::thread::sleep(std::time::Duration::from_secs(2)); // what is written behind the replies
        per_put.push((server.written_bytes() - before) as f64 / calls as f64);
    }
    let (revd, etcd) = (per_put[0], per_put[1]);
    Ok(format!(
        "| {calls} puts of 256 B, 1000 callers | revd | etcd | ratio |\n|---|---|---|---|\n\
         | bytes written per put | {revd:.0} | {etcd:.0} | **{:.2}** |\n",
        revd / etcd
    ))
}

fn transactions(
    options: &Options,
    messages: &h2load::Messages,
    both: [&Server; 2],
    table: &mut Table,
) -> anyhow::Result<()> {
    for (label, message, calls) in [
        ("compare and swap, 100 callers", h2load::Message::Swap, options.calls),
        ("transaction of 100 puts, 10 callers", h2load::Message::Bulk, options.calls / 20),
    ] {
        let callers = if calls == options.calls { 10 } else { 1 };
        for _ in 0..options.rounds {
            for server in both {
                let load = h2load::Load { method: "KV/Txn", connections: 10, streams: callers, calls };
                table.add(label, server.name, h2load::run(server, messages, message, load)?);
            }
        }
        table.progress(label);
    }
    Ok(())
}

/// Large reads of many keys.
async fn ranges(options: &Options, both: [&Server; 2], table: &mut Table) -> anyhow::Result<()> {
    for server in both {
        let start = std::time::Instant::now();
        calls::load_keys(server, 0..options.keys, options.keys, 256).await?;
        eprintln!("{}: {} keys loaded in {:.1?}", server.name, options.keys, start.elapsed());
        calls::load_large(server, 10_000, 1024).await?;
    }
    let works = [
        ("range of 10,000 x 1 KiB".to_owned(), calls::Read::Large, 10),
        (format!("count of {} keys", options.keys), calls::Read::Count, 10),
        (format!("page of 500 out of {} keys", options.keys), calls::Read::Page, 10),
    ];
    for (label, read, times) in works {
        for _ in 0..options.rounds {
            for server in both {
                let measured: Measured = calls::read(server, read, times).await?;
                table.add(&label, server.name, measured);
            }
        }
        table.progress(&label);
    }
    Ok(())
}
