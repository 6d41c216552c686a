//! Idle watchers and streams: what each takes. And catching up over a long past: what it costs.

use anyhow::Context as _;
use revd_bench::servers::Server;
use revd_bench::value;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{PutRequest, RequestOp, TxnRequest, WatchCreateRequest};

use crate::client::{self, Tally};
use crate::{row, seconds_since, settle};

/// Revisions that are caught up over, and by how many watchers.
const REVISIONS: u64 = 200_000;
const READERS: u64 = 10;

struct Figures {
    watcher_bytes: f64,
    stream_bytes: f64,
    catch_up_cpu: f64,
    catch_up_rate: f64,
    catch_up_bytes: f64,
}

/// Measures both, as a Markdown table.
pub async fn table(revd: &Server, etcd: &Server) -> anyhow::Result<String> {
    let (ours, theirs) = (measure(revd).await.context("revd")?, measure(etcd).await.context("etcd")?);
    let mut out = "| watchers | revd | etcd | ratio |\n|---|---|---|---|\n".to_owned();
    out += &row("idle watcher, 1,000 on a stream", "B", ours.watcher_bytes, theirs.watcher_bytes);
    out +=
        &row("idle stream of one watcher, 50 on a connection", "B", ours.stream_bytes, theirs.stream_bytes);
    out += &row(
        "10 watchers catch up over 200,000 revisions: CPU per event",
        "us",
        ours.catch_up_cpu,
        theirs.catch_up_cpu,
    );
    out += &row("the same: events", "1000/s", ours.catch_up_rate, theirs.catch_up_rate);
    out += &row("the same: memory", "MB", ours.catch_up_bytes, theirs.catch_up_bytes);
    Ok(out)
}

async fn measure(server: &Server) -> anyhow::Result<Figures> {
    let watcher_bytes = idle(server, 10, 10, 1000).await.context("idle watchers")?;
    let stream_bytes = idle(server, 100, 50, 1).await.context("idle streams")?;
    load(server).await.context("making a long past")?;
    settle().await;
    let tally = Tally::new(0);
    let (memory, cpu, start) = (server.anonymous_memory(), server.cpu(), std::time::Instant::now());
    let mut streams = Vec::new();
    for _ in 0..READERS {
        let channel = client::channel(server).await?;
        let request =
            WatchCreateRequest { key: "past".into(), start_revision: 2, ..WatchCreateRequest::default() };
        streams.push(client::open(&channel, 1, &request, &tally));
    }
    let events = REVISIONS * READERS;
    let mut most = memory;
    while tally.wait_a_little(events).await? {
        most = most.max(server.anonymous_memory());
    }
    let seconds = seconds_since(start);
    let cpu = server.cpu() - cpu;
    for stream in streams {
        stream.end().await;
    }
    Ok(Figures {
        watcher_bytes,
        stream_bytes,
        catch_up_cpu: cpu.as_secs_f64() * 1e6 / events as f64,
        catch_up_rate: events as f64 / seconds / 1e3,
        catch_up_bytes: (most - memory) as f64 / 1e6,
    })
}

/// Bytes per watcher of calls that hear nothing.
async fn idle(server: &Server, connections: usize, streams: usize, watchers: usize) -> anyhow::Result<f64> {
    settle().await;
    let before = server.anonymous_memory();
    let tally = Tally::new(0);
    let request = WatchCreateRequest { key: "idle".into(), ..WatchCreateRequest::default() };
    let mut open = Vec::new();
    for _ in 0..connections {
        let channel = client::channel(server).await?;
        for _ in 0..streams {
            open.push(client::open(&channel, watchers, &request, &tally));
        }
    }
    let count = connections * streams * watchers;
    tally.wait(&tally.created, count as u64).await?;
    settle().await;
    let bytes = server.anonymous_memory().saturating_sub(before) as f64 / count as f64;
    for stream in open {
        stream.end().await;
    }
    Ok(bytes)
}

/// Makes a long past of one key.
async fn load(server: &Server) -> anyhow::Result<()> {
    let kv = client::kv(server).await?;
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..REVISIONS {
        let mut kv = kv.clone();
        let put = PutRequest { key: "past".into(), value: value(256, number), ..PutRequest::default() };
        let op = RequestOp { request: Some(Op::RequestPut(put)) };
        calls.spawn(async move { kv.txn(TxnRequest { success: vec![op], ..TxnRequest::default() }).await });
        if calls.len() >= 500 {
            calls.join_next().await.transpose()?.transpose()?;
        }
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    Ok(())
}
