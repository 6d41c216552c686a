//! An event to very many watchers, and puts beside watchers of other keys.

use std::time::Duration;

use anyhow::Context as _;
use revd_proto::etcdserverpb::{PutRequest, PutResponse, WatchCreateRequest};

use crate::caller::Caller;
use crate::clock;
use crate::figures::h2load::{self, CallMessage, CallMessages, H2Load};
use crate::figures::sizes::FigureSizes;
use crate::figures::table::{MeasuredCalls, RatioTable};
use crate::figures::watchers::{Fleet, Spread};
use crate::keys::value;
use crate::servers::Servers;
use crate::wire::RpcMethod;

/// How many watch how, and which delay is shown.
#[derive(Clone, Copy)]
struct FanOutLoad {
    connections: usize,
    watchers_each: usize,
    puts: usize,
    pause: Duration,
    percentile: usize,
}

const SMALL: FanOutLoad = FanOutLoad {
    connections: 20,
    watchers_each: 50,
    puts: 100,
    pause: Duration::from_millis(20),
    percentile: 50,
};
const LARGE: FanOutLoad = FanOutLoad {
    connections: 100,
    watchers_each: 100,
    puts: 20,
    pause: Duration::from_millis(150),
    percentile: 99,
};

/// Each put goes to all watchers.
pub(super) fn events(rounds: usize, both: &[Servers; 2], rows: &mut RatioTable) -> anyhow::Result<()> {
    for (label, work) in [
        ("an event to each of 1,000 watchers, 20 connections; median delay", SMALL),
        ("an event to each of 10,000 watchers, 100 connections; p99 delay", LARGE),
    ] {
        let is_cluster = both[0].endpoints.len() > 1;
        let label = if is_cluster { format!("{label}; watchers on a follower") } else { label.to_owned() };
        rows.measure(&[&label], rounds, both, |server| Ok(vec![fan_out(server, work)?]))?;
    }
    Ok(())
}

fn fan_out(server: &Servers, work: FanOutLoad) -> anyhow::Result<MeasuredCalls> {
    let spread = Spread { connections: work.connections, streams_each: 1, watchers_each: work.watchers_each };
    let request = WatchCreateRequest { key: "watched".into(), ..WatchCreateRequest::default() };
    let fleet = Fleet::open(server.follower_endpoint()?, spread, work.puts, |_| request.clone())?;
    let mut caller = Caller::connect(&server.endpoints_from_leader()?[0])?;
    let put = PutRequest { key: "watched".into(), value: value(256, 1), ..PutRequest::default() };
    let before = server.cpu();
    for number in 1..=work.puts {
        fleet.sending(number);
        let _: PutResponse = caller.ask(RpcMethod::Put.path(), &put)?;
        clock::rest(work.pause);
    }
    let events = spread.watchers() * work.puts as u64;
    fleet.wait_for_events(events)?;
    let cpu = server.cpu() - before;
    let delays = fleet.end()?;
    let at = (delays.len() * work.percentile / 100).min(delays.len().saturating_sub(1));
    let latency = delays.get(at).context("no event has a delay")?;
    let latency = Duration::from_nanos(*latency);
    Ok(MeasuredCalls { cpu_per_call: cpu.div_f64(events as f64), latency })
}

/// The cost of a put while 10,000 watchers wait for other keys, and without them.
pub(super) fn puts_beside_watchers(
    sizes: &FigureSizes,
    both: &[Servers; 2],
    rows: &mut RatioTable,
) -> anyhow::Result<()> {
    let messages = CallMessages::write()?;
    let load = H2Load { connections: 10, streams: 10, calls: sizes.calls };
    let spread = Spread { connections: 100, streams_each: 50, watchers_each: 2 };
    let labels = ["put, 100 callers, no watchers", "put, 100 callers, 10,000 watchers of other keys"];
    rows.measure(&labels, sizes.rounds, both, |server| {
        let without = h2load::run(server, &messages, CallMessage::Put, load)?;
        let request = |stream| WatchCreateRequest {
            key: format!("other/{stream}").into(),
            ..WatchCreateRequest::default()
        };
        let fleet = Fleet::open(server.endpoint(), spread, 0, request)?;
        let beside = h2load::run(server, &messages, CallMessage::Put, load)?;
        fleet.end()?;
        Ok(vec![without, beside])
    })
}
