//! Large reads: of values, of a count, of a page.

use std::time::Duration;

use prost::Message as _;
use revd_proto::etcdserverpb::{RangeRequest, RangeResponse};

use crate::caller::Caller;
use crate::clock;
use crate::figures::store::{all_keys, key, load_keys, load_large};
use crate::figures::table::{MeasuredCalls, RatioTable};
use crate::servers::Servers;
use crate::wire::RpcMethod;

/// Reads in a round.
const TIMES: u32 = 10;

/// Loads both servers, then reads from them.
pub(super) fn measure(
    rounds: usize,
    keys: u64,
    both: &[Servers; 2],
    rows: &mut RatioTable,
) -> anyhow::Result<()> {
    for server in both {
        load_keys(server.endpoint(), 0..keys, keys)?;
        load_large(server.endpoint(), 10_000, 1024)?;
    }
    let (first, end) = all_keys();
    let all = RangeRequest { key: first, range_end: end, ..RangeRequest::default() };
    let large =
        RangeRequest { key: "/large/".into(), range_end: "/large0".into(), ..RangeRequest::default() };
    for (label, request) in [
        ("range of 10,000 x 1 KiB".to_owned(), large),
        (format!("count of {keys} keys"), RangeRequest { count_only: true, ..all.clone() }),
        (format!("page of 500 out of {keys} keys"), RangeRequest { limit: 500, ..all }),
    ] {
        rows.measure(&[&label], rounds, both, |server| Ok(vec![read(server, &request)?]))?;
    }
    Ok(())
}

/// Reads one after the other: the median, and CPU for each. Replies are received and not decoded.
fn read(server: &Servers, request: &RangeRequest) -> anyhow::Result<MeasuredCalls> {
    let mut caller = Caller::connect(server.endpoint())?;
    let body = request.encode_to_vec();
    let mut latencies = Vec::new();
    let before = server.cpu();
    for _ in 0..TIMES {
        let start = clock::nanos();
        let reply = caller.ask_encoded(RpcMethod::Range.path(), &body)?;
        latencies.push(clock::nanos() - start);
        anyhow::ensure!(reply.len() > 10, "an empty reply");
    }
    let cpu_per_call = (server.cpu() - before) / TIMES;
    latencies.sort_unstable();
    Ok(MeasuredCalls { cpu_per_call, latency: Duration::from_nanos(latencies[latencies.len() / 2]) })
}

/// A linearizable get of one key that is there.
pub(super) fn get_one(endpoint: &str) -> anyhow::Result<()> {
    let request = RangeRequest { key: key(0), ..RangeRequest::default() };
    let reply: RangeResponse = Caller::connect(endpoint)?.ask(RpcMethod::Range.path(), &request)?;
    anyhow::ensure!(reply.kvs.len() == 1, "{} keys, not the one that was put", reply.kvs.len());
    Ok(())
}
