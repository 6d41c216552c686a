//! Requests from a seed: few keys, so that they meet; every option; many
//! requests that must be refused.
//!
//! At most twelve keys exist. etcd sorts with an unstable algorithm; up to twelve elements it keeps
//! equal ones in order, so that results sorted by something equal can still be compared.

use std::collections::BTreeSet;

use bytes::Bytes;
use revd_proto::etcdserverpb::compare::TargetUnion;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest,
};

use crate::harness::Random;

/// A request of any kind.
#[derive(Debug, Clone)]
pub enum Request {
    Range(RangeRequest),
    RangeStream(RangeRequest),
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    HashKv(HashKvRequest),
}

/// Every that many requests the hashes of all history are compared.
const HASH_EVERY: u64 = 250;
/// Requests between compactions, about.
const COMPACT_EVERY: u64 = 400;
/// etcd's default bound.
const OPS_MAX: usize = 128;

pub struct Generator {
    random: Random,
    /// The newest revision, and the newest compaction.
    revision: i64,
    compacted: i64,
    compactions: BTreeSet<i64>,
}

impl Generator {
    pub fn new(random: Random) -> Self {
        Self { random, revision: 1, compacted: -1, compactions: BTreeSet::new() }
    }

    /// Takes note of a reply's revision.
    pub fn learn(&mut self, request: &Request, revision: i64) {
        self.revision = self.revision.max(revision);
        if let Request::Compact(request) = request {
            self.compacted = request.revision;
            self.compactions.insert(request.revision);
        }
    }

    pub fn next(&mut self, number: u64) -> Request {
        if number % HASH_EVERY == HASH_EVERY - 1 {
            let revision = if self.random.one_in(2) { 0 } else { self.old_revision() };
            // For these there is a hash from the time of the compaction, with
            // the compact revision before it.
            let age = usize::try_from(self.random.below(14)).unwrap();
            let compaction = self.compactions.iter().rev().nth(age);
            let revision = compaction.copied().filter(|_| number.is_multiple_of(3)).unwrap_or(revision);
            return Request::HashKv(HashKvRequest { revision });
        }
        if self.random.one_in(COMPACT_EVERY) {
            return Request::Compact(self.compaction());
        }
        if self.random.one_in(2_000) {
            return self.oversized();
        }
        match self.random.below(100) {
            0..25 => Request::Put(self.put()),
            25..33 => Request::DeleteRange(self.delete()),
            33..65 => Request::Range(self.range()),
            65..70 => Request::RangeStream(self.stream()),
            _ => Request::Txn(self.txn(0)),
        }
    }

    fn key(&mut self) -> Bytes {
        const KEYS: [&[u8]; 12] =
            [b"\0", b"\0\0", b"a", b"a\0", b"ab", b"abc", b"b", b"b/1", b"b/2", b"c", b"\xff", b"\xff\xff"];
        if self.random.one_in(60) { Bytes::new() } else { Bytes::from_static(self.random.pick(&KEYS)) }
    }

    fn range_end(&mut self, key: &Bytes) -> Bytes {
        match self.random.below(8) {
            0..3 => Bytes::new(),
            3 => Bytes::from_static(b"\0"),
            4 => {
                let mut end = key.to_vec();
                if let Some(last) = end.last_mut() {
                    *last = last.wrapping_add(1);
                }
                end.into()
            }
            5 => key.clone(),
            _ => self.key(),
        }
    }

    fn value(&mut self) -> Bytes {
        match self.random.below(20) {
            0..3 => Bytes::new(),
            3..12 => Bytes::from_static(self.random.pick(&[&b"x"[..], b"y", b"yy"])),
            12..19 => format!("value {}", self.random.below(1_000_000)).into(),
            _ => vec![b'v'; usize::try_from(self.random.below(20_000)).unwrap()].into(),
        }
    }

    fn put(&mut self) -> PutRequest {
        let ignore_value = self.random.one_in(12);
        let ignore_lease = self.random.one_in(12);
        PutRequest {
            key: self.key(),
            value: if ignore_value && !self.random.one_in(4) { Bytes::new() } else { self.value() },
            lease: if self.random.one_in(25) { i64::try_from(self.random.below(9)).unwrap() - 2 } else { 0 },
            prev_kv: self.random.one_in(3),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let key = self.key();
        let range_end = self.range_end(&key);
        DeleteRangeRequest { key, range_end, prev_kv: self.random.one_in(2) }
    }

    /// Any revision there was, or near it: compacted, current, future, negative.
    fn old_revision(&mut self) -> i64 {
        let back = match self.random.below(4) {
            0 => 5,
            1 => 50,
            _ => 1_000,
        };
        match self.random.below(12) {
            0 => -1,
            1 => self.compacted,
            2 => self.compacted - 1,
            3 => self.revision + 1,
            _ => self.revision - i64::try_from(self.random.below(back)).unwrap(),
        }
    }

    fn bound(&mut self) -> i64 {
        if self.random.one_in(3) { self.old_revision() } else { 0 }
    }

    fn range(&mut self) -> RangeRequest {
        let key = self.key();
        let range_end = self.range_end(&key);
        let filtered = self.random.one_in(5);
        RangeRequest {
            range_end,
            key,
            limit: self.random.pick(&[0, 0, 0, 1, 2, 3, 5, 100, -1, i64::MAX]),
            revision: if self.random.one_in(3) { self.old_revision() } else { 0 },
            sort_order: self.random.pick(&[0, 0, 1, 2, 0, 1, 2, 7]),
            sort_target: if self.random.one_in(40) {
                -3
            } else {
                i32::try_from(self.random.below(5)).unwrap()
            },
            serializable: self.random.one_in(4),
            keys_only: self.random.one_in(6),
            count_only: self.random.one_in(8),
            min_mod_revision: if filtered { self.bound() } else { 0 },
            max_mod_revision: if filtered { self.bound() } else { 0 },
            min_create_revision: if filtered { self.bound() } else { 0 },
            max_create_revision: if filtered { self.bound() } else { 0 },
        }
    }

    /// etcd streams by key only; a sort target without an order makes it
    /// skip keys, so that is left out.
    fn stream(&mut self) -> RangeRequest {
        let mut request = self.range();
        if request.sort_order == 0 {
            request.sort_target = 0;
        }
        request
    }

    fn compaction(&mut self) -> CompactionRequest {
        let revision = if self.random.one_in(3) { self.old_revision() } else { self.revision - 20 };
        // Physical, so that both are done, and have its hash, when the next request comes.
        CompactionRequest { revision, physical: true }
    }

    /// Around etcd's two limits for sizes.
    fn oversized(&mut self) -> Request {
        let len = self.random.pick(&[1_500_000, 1_572_864, 1_700_000, 2_097_152, 2_200_000]);
        Request::Put(PutRequest { key: self.key(), value: vec![b'b'; len].into(), ..PutRequest::default() })
    }

    fn compare(&mut self) -> Compare {
        let key = self.key();
        let number = match self.random.below(4) {
            0 => 0,
            1 => 1,
            2 => self.revision,
            _ => self.old_revision(),
        };
        let target_union = match self.random.below(12) {
            0..3 => Some(TargetUnion::Version(number)),
            3..5 => Some(TargetUnion::CreateRevision(number)),
            5..7 => Some(TargetUnion::ModRevision(number)),
            7..10 => Some(TargetUnion::Value(self.value())),
            10 => Some(TargetUnion::Lease(number)),
            _ => None,
        };
        let fitting = match &target_union {
            Some(TargetUnion::Version(_)) => 0,
            Some(TargetUnion::CreateRevision(_)) => 1,
            Some(TargetUnion::ModRevision(_)) => 2,
            Some(TargetUnion::Value(_)) => 3,
            Some(TargetUnion::Lease(_)) => 4,
            None => i32::try_from(self.random.below(5)).unwrap(),
        };
        Compare {
            range_end: if self.random.one_in(4) { self.range_end(&key) } else { Bytes::new() },
            key,
            result: self.random.pick(&[0, 1, 2, 3, 0, 1, 2, 3, 9]),
            target: if self.random.one_in(15) { self.random.pick(&[0, 1, 2, 3, 4, 8]) } else { fitting },
            target_union,
        }
    }

    fn txn(&mut self, depth: usize) -> TxnRequest {
        let mut txn = TxnRequest::default();
        for _ in 0..self.random.below(3) {
            txn.compare.push(self.compare());
        }
        let ops_max = if depth == 0 { 5 } else { 3 };
        for _ in 0..self.random.below(ops_max) {
            txn.success.push(self.op(depth));
        }
        for _ in 0..self.random.below(ops_max) {
            txn.failure.push(self.op(depth));
        }
        if depth == 0 && self.random.one_in(50) {
            let count = OPS_MAX - 1 + usize::try_from(self.random.below(3)).unwrap();
            let op = RequestOp { request: Some(Op::RequestRange(self.range())) };
            txn.success.resize(count, op);
        }
        if depth == 0 && self.random.one_in(100) {
            txn = self.deep();
        }
        if changes_twice(&txn) { TxnRequest { success: vec![], failure: vec![], ..txn } } else { txn }
    }

    /// Nested to about the limit.
    fn deep(&mut self) -> TxnRequest {
        let depth = OPS_MAX - 2 + usize::try_from(self.random.below(4)).unwrap();
        let put = RequestOp { request: Some(Op::RequestPut(self.put())) };
        let mut txn = TxnRequest { success: vec![put], ..TxnRequest::default() };
        for _ in 1..depth {
            let op = RequestOp { request: Some(Op::RequestTxn(txn)) };
            txn = TxnRequest { success: vec![op], ..TxnRequest::default() };
        }
        txn
    }

    fn op(&mut self, depth: usize) -> RequestOp {
        let request = match self.random.below(20) {
            0..7 => Some(Op::RequestPut(self.put())),
            7..10 => Some(Op::RequestDeleteRange(self.delete())),
            10..16 => Some(Op::RequestRange(self.range())),
            16..19 if depth < 3 => Some(Op::RequestTxn(self.txn(depth + 1))),
            16..19 => Some(Op::RequestRange(self.range())),
            _ => None,
        };
        let request = if request.is_none() && !self.random.one_in(4) {
            Some(Op::RequestRange(self.range()))
        } else {
            request
        };
        RequestOp { request }
    }
}

/// Whether a transaction may delete up to the end of the key space and put: etcd's check for double
/// changes does not see that, and what follows can end an etcd.
fn changes_twice(txn: &TxnRequest) -> bool {
    fn visit(txn: &TxnRequest, open_delete: &mut bool, put: &mut bool) {
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(Op::RequestDeleteRange(delete)) => *open_delete |= &delete.range_end[..] == b"\0",
                Some(Op::RequestPut(_)) => *put = true,
                Some(Op::RequestTxn(nested)) => visit(nested, open_delete, put),
                _ => {}
            }
        }
    }
    let (mut open_delete, mut put) = (false, false);
    visit(txn, &mut open_delete, &mut put);
    open_delete && put
}
