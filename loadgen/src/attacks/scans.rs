//! Work that one request asks for and that takes long: sorting, counting, hashing, waiting in line,
//! forgetting.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    CompactionRequest, HashKvRequest, PutRequest, PutResponse, RangeRequest, RequestOp, TxnRequest,
};
use revd_proto::v3lockpb::LockRequest;

use super::attack::{Attack, AttackTarget};
use super::store::{RANGE, TXN, clear, everything, fill, key};
use crate::caller::PATIENCE;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("ranges sorted by value", 21, |target| {
        let (sort_target, sort_order) = (SortTarget::Value as i32, SortOrder::Descend as i32);
        again(target, RANGE, &RangeRequest { sort_target, sort_order, limit: 1, ..everything() })
    })
    .after(many),
    Attack::new("pages that count at an old revision", 21, |target| {
        again(target, RANGE, &RangeRequest { revision: 3, limit: 1, ..everything() })
    })
    .after(|target| many(target).and_then(|()| fill(target, 1_000, 20, 0))),
    Attack::new("pages over dead keys", 21, |target| {
        again(target, RANGE, &RangeRequest { limit: 1, ..everything() })
    })
    .after(|target| many(target).and_then(|()| clear(target).map(drop))),
    Attack::new("counts of everything", 21, |target| {
        again(target, RANGE, &RangeRequest { count_only: true, ..everything() })
    })
    .after(many),
    Attack::new("min_mod_revision of nothing", 21, |target| {
        again(target, RANGE, &RangeRequest { min_mod_revision: i64::MAX, limit: 1, ..everything() })
    })
    .after(many),
    Attack::new("hashes of everything", 21, |target| {
        again(target, "/etcdserverpb.Maintenance/HashKV", &HashKvRequest::default())
    })
    .after(many),
    Attack::new("600 ranges of 1,000 keys in one read", 21, |target| {
        let range = RangeRequest { limit: 1_000, ..everything() };
        in_one_read(target, RANGE, &range, 600)
    })
    .after(|target| fill(target, 2_000, 20, 0)),
    Attack::new("100 gets in each of 25 transactions in one read", 21, |target| {
        in_one_read(target, TXN, &gets(100), 25)
    })
    .after(|target| fill(target, 2_000, 5_000, 0)),
    Attack::new("5,000 wait for one lock", 21, locks),
    Attack::new("compactions of 300,000 revisions", 22, compact).after(many),
];

fn many(target: &AttackTarget) -> anyhow::Result<()> {
    fill(target, target.size(300_000, 1_000_000), 20, 0)
}

/// Four callers that ask again and again, eight at a time each.
fn again(target: &AttackTarget, path: &'static str, request: &impl prost::Message) -> anyhow::Result<()> {
    let body = request.encode_to_vec();
    let mut callers = Vec::new();
    for _ in 0..4 {
        callers.push((target.caller()?.discarding(), 0_usize));
    }
    while !target.is_over() {
        for (caller, waiting) in &mut callers {
            while *waiting < 8 {
                caller.begin(path, &body).context("no more streams")?;
                *waiting += 1;
            }
            caller.turn(Duration::from_micros(200))?;
            let ended = std::mem::take(&mut caller.heard.ended);
            *waiting -= ended.len().min(*waiting);
            target.tally.ends(ended.values());
        }
    }
    Ok(())
}

/// Asks so often at a time that one read of the server's holds all of it, again and again.
fn in_one_read(
    target: &AttackTarget,
    path: &'static str,
    request: &impl prost::Message,
    calls: usize,
) -> anyhow::Result<()> {
    let body = request.encode_to_vec();
    let mut caller = target.caller()?.discarding();
    while !target.is_over() {
        for _ in 0..calls {
            caller.begin(path, &body).context("no more streams")?;
        }
        anyhow::ensure!(caller.until(PATIENCE, |heard| heard.ended.len() >= calls)?, "no answer");
        target.tally.ends(std::mem::take(&mut caller.heard.ended).values());
    }
    Ok(())
}

/// A transaction that only reads, one key at a time.
fn gets(count: u64) -> TxnRequest {
    let get = |number| {
        let range = RangeRequest { key: key(number), ..RangeRequest::default() };
        RequestOp { request: Some(Request::RequestRange(range)) }
    };
    TxnRequest { success: (0..count).map(get).collect(), ..TxnRequest::default() }
}

/// A queue for a lock that is not released; then all waiters leave at once.
fn locks(target: &AttackTarget) -> anyhow::Result<()> {
    let waiters = 5_000;
    let mut caller = target.caller()?;
    let lock = LockRequest { name: "attacker".into(), ..LockRequest::default() }.encode_to_vec();
    for _ in 0..waiters {
        if caller.begin("/v3lockpb.Lock/Lock", &lock).is_none() {
            break;
        }
    }
    caller.until(Duration::from_secs(3), |_| target.is_over())?;
    target.tally.ends(caller.heard.ended.values());
    Ok(())
}

/// Writes everything again, and forgets what was there.
fn compact(target: &AttackTarget) -> anyhow::Result<()> {
    many(target)?;
    let mut caller = target.caller()?;
    let put = PutRequest { key: "attacker".into(), ..PutRequest::default() };
    let reply: PutResponse = caller.ask(super::store::PUT, &put)?;
    let revision = reply.header.context("a header")?.revision;
    let compaction = CompactionRequest { revision, physical: true };
    let token =
        caller.begin("/etcdserverpb.KV/Compact", &compaction.encode_to_vec()).context("no streams")?;
    anyhow::ensure!(caller.until(PATIENCE, |heard| heard.ended.contains_key(&token))?, "no answer");
    target.tally.ends(caller.heard.ended.get(&token));
    Ok(())
}
