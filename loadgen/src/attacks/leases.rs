//! Leases by the hundred thousand, and commands that delay keepalives.

use std::time::Duration;

use prost::Message as _;
use revd_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
};

use super::attack::{Attack, AttackTarget};
use super::store::{GRANT, PUT, clear, fill, grant};
use crate::caller::{Caller, PATIENCE, call_all};
use crate::keys::value;

const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";
const TIME: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
/// Longer than any attack.
const LONG: i64 = 3_600;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("delete range of millions", 6, |target| {
        let deleted = clear(target)?;
        target.tally.told(if deleted > 0 { "deleted" } else { "nothing to delete" });
        target.linger(Duration::from_millis(500));
        Ok(())
    })
    .after(|target| fill(target, target.size(600_000, 3_000_000), 1, 0))
    .told("deleted"),
    Attack::new("40,000 puts at a time", 6, puts),
    Attack::new("100,000 leases due at once", 6, |target| {
        let count = target.size(100_000, 1_000_000);
        granted(target, count, 3)?;
        target.linger(Duration::from_secs(6));
        Ok(())
    }),
    Attack::new("20 callers list 300,000 leases", 22, list).after(|target| {
        let count = target.size(100_000, 300_000);
        granted(target, count, LONG)
    }),
    Attack::new("the keys of a lease of 200,000", 22, times).after(on_lease),
    Attack::new("a lease of 200,000 keys is revoked", 22, revoke),
    Attack::new("200 puts of 3 MiB at a time", 8, refused).told("larger than max").never("RST_STREAM"),
];

fn granted(target: &AttackTarget, count: usize, ttl: i64) -> anyhow::Result<()> {
    let body = LeaseGrantRequest { ttl, id: 0 }.encode_to_vec();
    call_all(&mut target.caller()?, GRANT, std::iter::repeat_n(body, count))
}

/// Puts on four connections, all sent before any answer is read.
fn puts(target: &AttackTarget) -> anyhow::Result<()> {
    const CONNECTIONS: usize = 4;
    let put =
        PutRequest { key: "attacker".into(), value: value(100, 1), ..PutRequest::default() }.encode_to_vec();
    let mut callers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut caller = target.caller()?.discarding();
        for _ in 0..10_000 {
            if caller.begin(PUT, &put).is_none() {
                break;
            }
        }
        caller.client.flush()?;
        callers.push(caller);
    }
    for caller in &mut callers {
        let asked = 10_000;
        caller.until(PATIENCE, |heard| heard.ended.len() >= asked || target.is_over())?;
        target.tally.ends(caller.heard.ended.values());
    }
    Ok(())
}

/// Each asks again as soon as it has its answer.
fn list(target: &AttackTarget) -> anyhow::Result<()> {
    let mut callers: Vec<(Caller, bool)> = Vec::new();
    for _ in 0..20 {
        callers.push((target.caller()?.discarding(), false));
    }
    while !target.is_over() {
        for (caller, waits) in &mut callers {
            if !*waits {
                caller.begin(LEASES, &LeaseLeasesRequest {}.encode_to_vec());
                *waits = true;
            }
            caller.turn(Duration::from_micros(50))?;
            let ended = std::mem::take(&mut caller.heard.ended);
            *waits = ended.is_empty();
            target.tally.ends(ended.values());
        }
    }
    Ok(())
}

fn on_lease(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let reply: revd_proto::etcdserverpb::LeaseGrantResponse =
        caller.ask(GRANT, &LeaseGrantRequest { ttl: LONG, id: 77 })?;
    fill(target, target.size(200_000, 1_000_000), 1, reply.id)
}

fn times(target: &AttackTarget) -> anyhow::Result<()> {
    let body = LeaseTimeToLiveRequest { id: 77, keys: true }.encode_to_vec();
    let mut caller = target.caller()?.discarding();
    for _ in 0..10 {
        caller.begin(TIME, &body);
    }
    caller.until(PATIENCE, |heard| heard.ended.len() == 10 || target.is_over())?;
    target.tally.ends(caller.heard.ended.values());
    Ok(())
}

fn revoke(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let id = grant(&mut caller, LONG)?;
    fill(target, 200_000, 1, id)?;
    let _: revd_proto::etcdserverpb::LeaseRevokeResponse = caller.ask(REVOKE, &LeaseRevokeRequest { id })?;
    target.tally.told("ok");
    Ok(())
}

/// All of them are refused by their length; each must be told so, and the connection's watch must
/// live.
fn refused(target: &AttackTarget) -> anyhow::Result<()> {
    const PUTS: usize = 200;
    let put = PutRequest { key: "attacker".into(), value: value(3 << 20, 1), ..PutRequest::default() }
        .encode_to_vec();
    let mut caller = target.caller()?;
    let (_, watch) = super::watches::watch(&mut caller, "attacker", 0)?;
    for _ in 0..PUTS {
        caller.begin(PUT, &put);
    }
    let is_told = caller.until(PATIENCE, |heard| heard.ended.len() >= PUTS || target.is_over());
    target.tally.ends(caller.heard.ended.iter().filter(|(token, _)| **token != watch).map(|(_, end)| end));
    if caller.heard.ended.contains_key(&watch) || is_told.is_err() {
        target.tally.told("the watch of the connection has ended: RST_STREAM or worse");
    }
    is_told.map(drop)
}
