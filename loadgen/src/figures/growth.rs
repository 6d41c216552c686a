//! Servers as they grow: by keys, and by revisions of a fixed set of keys, which are then compacted
//! and defragmented while callers go on putting.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use revd_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DefragmentRequest, DefragmentResponse, PutRequest, PutResponse,
};

use crate::caller::Caller;
use crate::clock;
use crate::figures::background::{Background, BackgroundWork, Latencies};
use crate::figures::footprint::{SETTLE, restart};
use crate::figures::store::load_keys;
use crate::servers::Servers;
use crate::table;
use crate::units::{bytes, time};
use crate::wire::RpcMethod;

/// How long a load is watched.
const WATCHED: Duration = Duration::from_secs(5);
/// Longer than a compaction of ten million revisions.
const PATIENCE: Duration = Duration::from_secs(1_800);
const COMPACT: &str = "/etcdserverpb.KV/Compact";
const DEFRAGMENT: &str = "/etcdserverpb.Maintenance/Defragment";

const HEAD: [&str; 6] =
    ["server", "put p50 / p99", "get p50 / p99", "anonymous memory", "data dir", "restart to first read"];

/// One size of one server: latency of puts and gets, memory, disk, restart.
fn row(server: &mut Servers, keys: u64) -> anyhow::Result<Vec<String>> {
    clock::rest(SETTLE);
    let (memory, disk) = (server.usage().memory, server.disk_bytes());
    let load = |work| Background::start(server.endpoint(), work, keys)?.stop_after(WATCHED)?.good();
    let puts = load(BackgroundWork::Put).with_context(|| format!("puts on {}", server.name))?;
    let gets = load(BackgroundWork::Get).with_context(|| format!("gets on {}", server.name))?;
    let restart = restart(server)?;
    let both =
        |load: &Latencies| format!("{} / {}", time(load.percentile(50.0)), time(load.percentile(99.0)));
    let (memory, disk) = (bytes(memory as f64), bytes(disk as f64));
    let restart = time(restart.as_secs_f64() * 1e6);
    Ok(vec![server.name.clone(), both(&puts), both(&gets), memory, disk, restart])
}

/// Four sizes on the way to so many keys.
pub(super) fn by_keys(both: &mut [Servers; 2], keys: u64) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut loaded = 0;
    for part in [10, 5, 2, 1] {
        let size = (keys / part).max(1);
        let mut rows = Vec::new();
        for server in both.iter_mut() {
            load_keys(server.endpoint(), loaded..size, size)?;
            eprintln!("{}: {size} keys", server.name);
            rows.push(row(server, size)?);
        }
        writeln!(out, "{size} keys of 64 B with values of 256 B:\n\n{}", table::plain(&HEAD, rows))?;
        loaded = size;
    }
    Ok(out)
}

/// So many revisions of a tenth as many keys, then a compaction and a defragmentation of each.
pub(super) fn by_revisions(both: &mut [Servers; 2], revisions: u64) -> anyhow::Result<String> {
    let keys = (revisions / 10).max(1);
    let mut rows = Vec::new();
    for server in both.iter_mut() {
        load_keys(server.endpoint(), 0..revisions, keys)?;
        eprintln!("{}: {revisions} revisions", server.name);
        rows.push(row(server, keys)?);
    }
    let head = ["server", "during", "took", "put p50", "p99", "p99.9", "slowest", "failed", "data dir after"];
    let mut meanwhile = Vec::new();
    for server in both.iter() {
        let start = || Background::start(server.endpoint(), BackgroundWork::Put, keys);
        meanwhile.push(during(server, "nothing else", WATCHED, &start()?.stop_after(WATCHED)?));
        for (what, act) in
            [("compaction of all", compact as fn(&Servers) -> _), ("defragmentation", defragment)]
        {
            let (load, begun) = (start()?, clock::nanos());
            act(server)?;
            let took = Duration::from_nanos(clock::nanos() - begun);
            meanwhile.push(during(server, what, took, &load.stop()?));
        }
    }
    Ok(format!(
        "{revisions} revisions of {keys} keys:\n\n{}\nPuts of 20 callers meanwhile:\n\n{}",
        table::plain(&HEAD, rows),
        table::plain(&head, meanwhile)
    ))
}

fn during(server: &Servers, what: &str, took: Duration, load: &Latencies) -> Vec<String> {
    let mut row = vec![server.name.clone(), what.to_owned(), time(took.as_secs_f64() * 1e6)];
    row.extend([50.0, 99.0, 99.9, 100.0].map(|percent| time(load.percentile(percent))));
    row.extend([load.failed.to_string(), bytes(server.disk_bytes() as f64)]);
    row
}

/// Compacts everything but the newest revision of each key; returns when it is done.
fn compact(server: &Servers) -> anyhow::Result<()> {
    let mut caller = Caller::connect(server.endpoint())?;
    let put = PutRequest { key: "last".into(), value: "one".into(), ..PutRequest::default() };
    let reply: PutResponse = caller.ask(RpcMethod::Put.path(), &put)?;
    let revision = reply.header.context("a reply without a header")?.revision;
    let request = CompactionRequest { revision, physical: true };
    caller.ask_patiently::<CompactionResponse>(COMPACT, &request, PATIENCE).map(drop)
}

fn defragment(server: &Servers) -> anyhow::Result<()> {
    let mut caller = Caller::connect(server.endpoint())?;
    caller.ask_patiently::<DefragmentResponse>(DEFRAGMENT, &DefragmentRequest {}, PATIENCE).map(drop)
}
