//! The leader is killed: how long until writes are accepted again.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::PutRequest;

use crate::caller::Caller;
use crate::clock;
use crate::clock::SECOND;
use crate::figures::table::{Compared, Labels};
use crate::probe;
use crate::result::median;
use crate::servers::Servers;
use crate::units::time;
use crate::wire::RpcMethod;

/// Between two puts to the same member.
const PAUSE: u64 = SECOND / 200;
/// After this long no member will lead any more.
const PATIENCE: u64 = 60 * SECOND;
/// Until a cluster that is whole again is at peace: leases of connections and elections are over.
const REST: Duration = Duration::from_secs(2);

/// Both servers, kill after kill in turns.
pub(super) fn table(both: &mut [Servers; 2], labels: &Labels, kills: usize) -> anyhow::Result<String> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..kills.max(1) {
        for (servers, times) in both.iter_mut().zip(&mut times) {
            times.push(kill_leader(servers)?);
            eprintln!("{}: writes again after {}", servers.name, time(times[times.len() - 1]));
        }
    }
    let largest = |times: &Vec<f64>| times.iter().copied().fold(0.0, f64::max);
    let middle = |times: &Vec<f64>| median(times.iter().copied());
    let rows = [
        Compared::new("writes accepted again, median", times.each_ref().map(middle), time),
        Compared::new("the longest", times.each_ref().map(largest), time),
    ];
    Ok(labels.table(&format!("{kills} kills of the leader"), &rows))
}

/// From the kill to the first reply to a put that was sent after it, in microseconds; the cluster
/// is whole again then.
fn kill_leader(servers: &mut Servers) -> anyhow::Result<f64> {
    clock::rest(REST);
    let leader = servers.leader()?;
    let others = servers.endpoints.iter().enumerate().filter(|(at, _)| *at != leader);
    let mut callers =
        others.map(|(_, endpoint)| Caller::connect(endpoint)).collect::<anyhow::Result<Vec<_>>>()?;
    let start = clock::nanos();
    servers.kill(leader)?;
    let accepted = first_put(&mut callers, start).with_context(|| servers.name.clone())?;
    drop(callers);
    servers.start_again(leader)?;
    servers.wait_for(leader)?;
    let newest = probe::status(&servers.endpoints[servers.leader()?])?.revision;
    while probe::status(&servers.endpoints[leader])?.revision < newest {
        anyhow::ensure!(clock::nanos() < start + PATIENCE, "{}: a member is left behind", servers.name);
        clock::rest(Duration::from_millis(10));
    }
    Ok((accepted - start) as f64 / 1e3)
}

/// Puts to all of them, one after the other without waiting for replies; when the first was
/// answered well.
fn first_put(callers: &mut [Caller], start: u64) -> anyhow::Result<u64> {
    let body = PutRequest { key: "failover".into(), value: "x".into(), ..PutRequest::default() };
    let body = body.encode_to_vec();
    let (mut next, mut refusals) = (start, BTreeMap::<String, u64>::new());
    loop {
        let now = clock::nanos();
        if now >= next {
            // Where no more calls are allowed at a time, those on their way are enough.
            callers.iter_mut().for_each(|caller| {
                let _ = caller.begin(RpcMethod::Put.path(), &body);
            });
            next = now + PAUSE;
        }
        for caller in callers.iter_mut() {
            caller.turn(Duration::from_millis(1))?;
            for outcome in std::mem::take(&mut caller.heard.ended).into_values() {
                match outcome {
                    Ok(()) => return Ok(clock::nanos()),
                    Err(what) => *refusals.entry(what).or_insert(0) += 1,
                }
            }
        }
        anyhow::ensure!(clock::nanos() < start + PATIENCE, "no put is accepted any more: {refusals:?}");
    }
}
