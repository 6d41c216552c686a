//! Leases: grants, keepalives, and many that end at once.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message as _;
use revd_bench::h2load::{self, Load, Messages};
use revd_bench::servers::Server;
use revd_bench::table::{Measured, Table};
use revd_clients::LeaseClient;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseStatus, PutRequest,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;

use crate::{client, row, seconds_since};

/// Keepalive streams, connections under them, and keepalives on each.
const STREAMS: usize = 500;
const CONNECTIONS: usize = 10;
const KEEPALIVES: usize = 100;
/// Leases that end at once, and their seconds.
const ENDING: i64 = 100_000;
const ENDING_TTL: i64 = 60;

/// Grants and keepalives.
pub async fn calls(rounds: usize, both: [&Server; 2], table: &mut Table) -> anyhow::Result<()> {
    let messages = Messages::write()?;
    let load = Load { method: "Lease/LeaseGrant", connections: 10, streams: 10, calls: 20_000 };
    let label = "lease grant, 100 callers";
    for _ in 0..rounds {
        for server in both {
            table.add(label, server.name, h2load::run(server, &messages, h2load::Message::Grant, load)?);
        }
    }
    table.progress(label);
    let label = "lease keepalive on 500 streams";
    for _ in 0..rounds {
        for server in both {
            table.add(label, server.name, keepalives(server).await?);
        }
    }
    table.progress(label);
    Ok(())
}

/// Each stream sends its next keepalive when the one before is answered.
async fn keepalives(server: &Server) -> anyhow::Result<Measured> {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        channels.push(client::channel(server).await?);
    }
    let mut leases = LeaseClient::new(channels[0].clone());
    let id = leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await?.into_inner().id;
    let (before, start) = (server.cpu(), Instant::now());
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..STREAMS {
        streams.spawn(keep_alive(channels[stream % CONNECTIONS].clone(), id));
    }
    while let Some(stream) = streams.join_next().await {
        stream??;
    }
    let sent = u32::try_from(STREAMS * KEEPALIVES)?;
    let (cpu, passed) = (server.cpu() - before, start.elapsed());
    Ok(Measured { cpu_per_call: cpu / sent, latency: passed / u32::try_from(KEEPALIVES)? })
}

async fn keep_alive(channel: Channel, id: i64) -> anyhow::Result<()> {
    let (requests, receiver) = mpsc::unbounded_channel();
    let message = Bytes::from(LeaseKeepAliveRequest { id }.encode_to_vec());
    requests.send(message.clone())?;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await?;
    let path = http::uri::PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
    let receiver = tonic::Request::new(UnboundedReceiverStream::new(receiver));
    let mut replies = grpc.streaming(receiver, path, RawCodec).await?.into_inner();
    for _ in 0..KEEPALIVES {
        anyhow::ensure!(replies.message().await?.is_some(), "the stream has ended");
        requests.send(message.clone())?;
    }
    Ok(())
}

/// Many leases that are due at once, each with a key: how long after the last is due all are gone, and what a put took
/// meanwhile, at most.
pub async fn expiry(revd: &Server, etcd: &Server) -> anyhow::Result<String> {
    let (ours, theirs) = (end_many(revd).await?, end_many(etcd).await?);
    let mut out = "| 100,000 leases with a key each | revd | etcd | ratio |\n|---|---|---|---|\n".to_owned();
    out += &row("from the last one due to all gone", "s", ours.0, theirs.0);
    out += &row("slowest put meanwhile", "ms", ours.1, theirs.1);
    Ok(out)
}

async fn end_many(server: &Server) -> anyhow::Result<(f64, f64)> {
    let channel = client::channel(server).await?;
    let (mut kv, mut leases) = (client::kv(server).await?, LeaseClient::new(channel));
    leases = leases.max_decoding_message_size(usize::MAX);
    let known = leases.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases.len();
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..ENDING {
        let (mut kv, mut leases) = (kv.clone(), leases.clone());
        calls.spawn(async move {
            let id = leases.lease_grant(LeaseGrantRequest { ttl: ENDING_TTL, id: 0 }).await?.into_inner().id;
            let key = format!("ending/{number}").into();
            kv.put(PutRequest { key, lease: id, ..PutRequest::default() }).await
        });
        if calls.len() >= 500 {
            calls.join_next().await.transpose()?.transpose()?;
        }
    }
    while let Some(call) = calls.join_next().await {
        call??;
    }
    // Keeps all of them alive at once, so that they end together.
    let ids = leases.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
    keep_all_alive(&mut leases, &ids).await?;
    eprintln!("{}: {} leases end in {ENDING_TTL} s", server.name, ids.len());
    let due = Instant::now() + Duration::from_secs(ENDING_TTL.unsigned_abs());
    tokio::time::sleep_until((due - Duration::from_secs(1)).into()).await;
    let mut slowest = Duration::ZERO;
    loop {
        let start = Instant::now();
        kv.put(PutRequest { key: "meanwhile".into(), ..PutRequest::default() }).await?;
        slowest = slowest.max(start.elapsed());
        let left = leases.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases.len();
        if left <= known {
            return Ok((seconds_since(due.min(Instant::now())), slowest.as_secs_f64() * 1e3));
        }
        anyhow::ensure!(due.elapsed() < Duration::from_secs(300), "{left} leases are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One keepalive for each, a few hundred at a time.
async fn keep_all_alive(leases: &mut LeaseClient<Channel>, ids: &[LeaseStatus]) -> anyhow::Result<()> {
    for some in ids.chunks(500) {
        let requests: Vec<_> = some.iter().map(|lease| LeaseKeepAliveRequest { id: lease.id }).collect();
        let mut renewed = leases.lease_keep_alive(tokio_stream::iter(requests)).await?.into_inner();
        for _ in some {
            anyhow::ensure!(renewed.message().await?.is_some(), "the keepalive stream has ended");
        }
    }
    Ok(())
}
