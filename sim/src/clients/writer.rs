//! Puts, deletes, transactions of every shape, compactions, and floods of puts.

use bytes::Bytes;
use revd_checker::Request;
use revd_engine::random::Random;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};

use super::next::Next;
use super::shared::Shared;

/// Flooding clients share this bound on calls at once.
const FLOOD_MAX: u64 = 300;

/// It remembers nothing.
#[derive(Debug, Default)]
pub(super) struct Writer {}

pub(super) fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The key was last changed at this revision.
pub(super) fn at_mod(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Mod as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::ModRevision(revision)),
        ..Compare::default()
    }
}

impl Writer {
    pub(super) fn next(&mut self, shared: &mut Shared, random: &mut Random) -> Next {
        if shared.compacts_one_in > 0 && random.one_in(shared.compacts_one_in) {
            let behind = i64::try_from(random.below(40)).expect("a small number");
            // A deletion at the revision of a compaction stays, for watchers that begin there.
            let at_deletion = shared.deleted <= shared.audited && random.one_in(2);
            let revision = if at_deletion { shared.deleted } else { (shared.audited - behind).max(1) };
            return Request::Compact(CompactionRequest { revision, physical: random.one_in(4) }).into();
        }
        if shared.flood > 0 && random.one_in(100) {
            let count = 1 + random.below(shared.flood.min(FLOOD_MAX));
            return Next::Calls((0..count).map(|_| Request::Put(put(shared, random))).collect());
        }
        let key = shared.key(random);
        match random.below(10) {
            0 => Request::DeleteRange(DeleteRangeRequest {
                key,
                prev_kv: random.one_in(2),
                ..Default::default()
            }),
            1 if random.one_in(4) => {
                let range_end = shared.key(random);
                Request::DeleteRange(DeleteRangeRequest { key, range_end, prev_kv: random.one_in(2) })
            }
            2..5 => Request::Txn(txn(shared, random, 0)),
            _ => Request::Put(put(shared, random)),
        }
        .into()
    }
}

fn put(shared: &mut Shared, random: &mut Random) -> PutRequest {
    let (key, value) = (shared.key(random), shared.value(random));
    PutRequest { key, value, prev_kv: random.one_in(3), ..PutRequest::default() }
}

/// Compares something, and then reads and writes keys, each at most once.
fn txn(shared: &mut Shared, random: &mut Random, depth: u64) -> TxnRequest {
    let compare = (0..random.below(3)).map(|_| compare(shared, random)).collect();
    let (mut success, mut failure) = (Vec::new(), Vec::new());
    let mut written: Vec<Bytes> = Vec::new();
    for branch in [&mut success, &mut failure] {
        for _ in 0..random.below(4) {
            let key = shared.key(random);
            let is_new = !written.contains(&key);
            match random.below(5) {
                0 => branch.push(op(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() }))),
                1 if is_new => {
                    written.push(key.clone());
                    let delete = DeleteRangeRequest { key, prev_kv: true, ..DeleteRangeRequest::default() };
                    branch.push(op(Op::RequestDeleteRange(delete)));
                }
                // A txn in another may write what this one does: only one with nothing else.
                2 if depth == 0 && branch.is_empty() && random.one_in(3) => {
                    branch.push(op(Op::RequestTxn(txn(shared, random, 1))));
                    break;
                }
                _ if is_new => {
                    written.push(key.clone());
                    branch.push(op(Op::RequestPut(PutRequest { key, ..put(shared, random) })));
                }
                _ => {}
            }
        }
        written.clear();
    }
    TxnRequest { compare, success, failure }
}

fn compare(shared: &Shared, random: &mut Random) -> Compare {
    let key = shared.key(random);
    let recent = shared.newest - i64::try_from(random.below(20)).expect("a small number");
    let result = random.pick(&[
        CompareResult::Equal,
        CompareResult::Greater,
        CompareResult::Less,
        CompareResult::NotEqual,
    ]);
    let small = i64::try_from(random.below(4)).expect("a small number");
    let (target, union) = match random.below(4) {
        0 => (CompareTarget::Version, TargetUnion::Version(small)),
        1 => (CompareTarget::Create, TargetUnion::CreateRevision(recent)),
        2 => (CompareTarget::Value, TargetUnion::Value(Bytes::from("5"))),
        _ => (CompareTarget::Mod, TargetUnion::ModRevision(recent)),
    };
    let range_end = if random.one_in(5) { shared.key(random) } else { Bytes::new() };
    Compare { key, range_end, target: target as i32, result: result as i32, target_union: Some(union) }
}
