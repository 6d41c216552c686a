//! Many leases that are due at once.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseLeasesResponse, PutRequest,
    PutResponse,
};

use crate::caller::{Caller, PATIENCE, call_all};
use crate::clock;
use crate::clock::SECOND;
use crate::figures::table::{Compared, Labels};
use crate::servers::Servers;
use crate::units::{amount, time};
use crate::wire::RpcMethod;

/// Seconds of each lease: enough to make all of them.
const TTL: i64 = 60;
const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
/// After this long past their end, leases will never go.
const GIVE_UP: u64 = 300 * SECOND;

/// How long after the last is due all are gone, and what a put took meanwhile, at most.
pub(super) fn table(both: &[Servers; 2], labels: &Labels, count: usize) -> anyhow::Result<String> {
    let [a, b] = both;
    let (a, b) = (end_many(a, count)?, end_many(b, count)?);
    let rows = [
        Compared::new("from the last one due to all gone", [a.0, b.0], time),
        Compared::new("slowest put meanwhile", [a.1, b.1], time),
    ];
    Ok(labels.table(&format!("{} leases with a key each", amount(count as f64)), &rows))
}

/// Both in microseconds.
fn end_many(server: &Servers, count: usize) -> anyhow::Result<(f64, f64)> {
    let mut caller = Caller::connect(server.endpoint())?.discarding();
    let ids = 1..=i64::try_from(count)?;
    let grant = |id| LeaseGrantRequest { ttl: TTL, id }.encode_to_vec();
    call_all(&mut caller, RpcMethod::LeaseGrant.path(), ids.clone().map(grant))?;
    let put = |id| PutRequest { key: format!("ending/{id}").into(), lease: id, ..PutRequest::default() };
    call_all(&mut caller, RpcMethod::Put.path(), ids.clone().map(|id| put(id).encode_to_vec()))?;
    keep_all_alive(&mut caller, ids)?;
    let due = clock::nanos() + TTL.unsigned_abs() * SECOND;
    eprintln!("{}: {count} leases end in {TTL} s", server.name);
    clock::rest(Duration::from_nanos(due - SECOND - clock::nanos()));
    let (mut caller, mut slowest) = (Caller::connect(server.endpoint())?, 0);
    loop {
        let start = clock::nanos();
        let put = PutRequest { key: "meanwhile".into(), ..PutRequest::default() };
        let _: PutResponse = caller.ask(RpcMethod::Put.path(), &put)?;
        slowest = slowest.max(clock::nanos() - start);
        let left: LeaseLeasesResponse = caller.ask(LEASES, &LeaseLeasesRequest {})?;
        let now = clock::nanos();
        if left.leases.is_empty() {
            return Ok((now.saturating_sub(due) as f64 / 1e3, slowest as f64 / 1e3));
        }
        anyhow::ensure!(now < due + GIVE_UP, "{} leases are left", left.leases.len());
        clock::rest(Duration::from_millis(20));
    }
}

/// One keepalive for each, so that they end together.
fn keep_all_alive(caller: &mut Caller, ids: std::ops::RangeInclusive<i64>) -> anyhow::Result<()> {
    let (stream, _) = caller.open(RpcMethod::LeaseKeepAlive.path()).context("no more streams")?;
    let (before, mut sent) = (caller.heard.count, 0);
    for id in ids {
        caller.client.send_message(stream, &LeaseKeepAliveRequest { id }.encode_to_vec());
        sent += 1;
        let is_answered = caller.until(PATIENCE, |heard| heard.count + 500 > before + sent)?;
        anyhow::ensure!(is_answered, "keepalives are not answered");
    }
    let is_answered = caller.until(PATIENCE, |heard| heard.count >= before + sent)?;
    anyhow::ensure!(is_answered, "keepalives are not answered");
    caller.client.cancel(stream);
    Ok(())
}
