//! Large calls, and loading the keys for them.

use std::time::Instant;

use crate::{all_keys, key, value};
use anyhow::Context as _;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use prost::Message as _;
use revd_clients::KvClient;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use tonic::transport::{Channel, Endpoint};

use crate::servers::Server;
use crate::table::Measured;

/// Puts in a transaction, and transactions at a time, while keys are loaded.
const LOAD_BATCH: usize = 100;
const LOAD_CALLERS: usize = 32;

/// What is read.
#[derive(Clone, Copy)]
pub enum Read {
    Large,
    Count,
    Page,
    One,
}

/// A connection whose windows do not limit a large reply.
pub async fn channel(server: &Server) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(server.endpoint())?;
    Ok(endpoint.initial_stream_window_size(1 << 26).initial_connection_window_size(1 << 26).connect().await?)
}

async fn load(server: &Server, puts: impl Iterator<Item = PutRequest>) -> anyhow::Result<()> {
    let client = KvClient::new(channel(server).await?);
    let mut batches: Vec<Vec<RequestOp>> = Vec::new();
    for put in puts {
        let op = RequestOp { request: Some(Op::RequestPut(put)) };
        match batches.last_mut() {
            Some(batch) if batch.len() < LOAD_BATCH => batch.push(op),
            _ => batches.push(vec![op]),
        }
    }
    futures::stream::iter(batches)
        .map(|success| {
            let mut client = client.clone();
            async move { client.txn(TxnRequest { success, ..TxnRequest::default() }).await }
        })
        .buffer_unordered(LOAD_CALLERS)
        .try_for_each(|_| async { Ok(()) })
        .await
        .context("loading keys")
}

/// Loads small values under [`all_keys`], each put of `numbers` to key number `put % of`.
pub async fn load_keys(
    server: &Server,
    numbers: std::ops::Range<u64>,
    of: u64,
    value_bytes: usize,
) -> anyhow::Result<()> {
    let put = |number| PutRequest {
        key: key(number % of),
        value: value(value_bytes, number),
        ..PutRequest::default()
    };
    for start in numbers.clone().step_by(100_000) {
        load(server, (start..numbers.end.min(start + 100_000)).map(put)).await?;
    }
    Ok(())
}

/// Loads larger values beside them.
pub async fn load_large(server: &Server, keys: u64, value_bytes: usize) -> anyhow::Result<()> {
    let key = |number| format!("/large/{number:08}").into();
    let put =
        |number| PutRequest { key: key(number), value: value(value_bytes, number), ..PutRequest::default() };
    for start in (0..keys).step_by(1_000) {
        load(server, (start..keys.min(start + 1_000)).map(put)).await?;
    }
    Ok(())
}

fn request(read: Read) -> RangeRequest {
    let (key, range_end) = all_keys();
    match read {
        Read::Large => {
            RangeRequest { key: "/large/".into(), range_end: "/large0".into(), ..RangeRequest::default() }
        }
        Read::Count => RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() },
        Read::One => RangeRequest { key: crate::key(0), ..RangeRequest::default() },
        Read::Page => RangeRequest { key, range_end, limit: 500, ..RangeRequest::default() },
    }
}

/// Reads one after the other; replies are received but not decoded.
pub async fn read(server: &Server, read: Read, times: u32) -> anyhow::Result<Measured> {
    let mut grpc = tonic::client::Grpc::new(channel(server).await?).max_decoding_message_size(usize::MAX);
    let path = http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Range");
    let message = Bytes::from(request(read).encode_to_vec());
    let mut latencies = Vec::new();
    let before = server.cpu();
    for _ in 0..times {
        let start = Instant::now();
        grpc.ready().await?;
        let reply = grpc.unary(tonic::Request::new(message.clone()), path.clone(), RawCodec).await?;
        latencies.push(start.elapsed());
        anyhow::ensure!(reply.into_inner().len() > 10, "an empty reply");
    }
    let cpu_per_call = (server.cpu() - before) / times;
    latencies.sort_unstable();
    Ok(Measured { cpu_per_call, latency: latencies[latencies.len() / 2] })
}
