//! Transactions that read lists and append to them.

use bytes::Bytes;
use revd_checker::{Call, LISTS, Request, Response, elements};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::request_op::Request as Op;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest, TxnRequest};
use revd_proto::mvccpb::KeyValue;

use super::next::Next;
use super::shared::Shared;
use super::writer::{at_mod, op};

/// Lists with more elements are left, and new ones begun.
const ELEMENTS_MAX: usize = 25;

/// It knows what it has read last.
#[derive(Debug, Default)]
pub(super) struct Lister {
    found: Option<(u64, Vec<KeyValue>)>,
    asked: u64,
}

/// All lists that are in use.
fn all(lists: u64) -> RangeRequest {
    let prefix = |end: &str| -> Bytes { [LISTS, format!("{lists}{end}").as_bytes()].concat().into() };
    RangeRequest { key: prefix("."), range_end: prefix("/"), ..RangeRequest::default() }
}

impl Lister {
    pub(super) fn next(&mut self, shared: &mut Shared, random: &mut Random) -> Next {
        let Some((lists, found)) = self.found.take() else {
            self.asked = shared.lists;
            return Request::Range(all(shared.lists)).into();
        };
        let mut txn = TxnRequest::default();
        let first = random.below(3);
        for list in 0..1 + random.below(2) {
            let list = (first + list) % 3;
            let key: Bytes = [LISTS, format!("{lists}.{list}").as_bytes()].concat().into();
            let before = found.iter().find(|kv| kv.key == key);
            let mut value = before.map_or_else(Vec::new, |kv| kv.value.to_vec());
            value.extend(format!("{},", shared.element()).bytes());
            txn.compare.push(at_mod(&key, before.map_or(0, |kv| kv.mod_revision)));
            txn.success.push(op(Op::RequestPut(PutRequest {
                key,
                value: value.into(),
                ..PutRequest::default()
            })));
        }
        if random.one_in(2) {
            let list = random.below(3);
            let key = [LISTS, format!("{lists}.{list}").as_bytes()].concat().into();
            txn.success.insert(0, op(Op::RequestRange(RangeRequest { key, ..RangeRequest::default() })));
        }
        txn.failure.push(op(Op::RequestRange(all(lists))));
        Request::Txn(txn).into()
    }

    pub(super) fn learns(&mut self, call: &Call, shared: &mut Shared) {
        if let Some(Response::Range(response)) = call.answer() {
            let is_long = response.kvs.iter().any(|kv| elements(&kv.value).len() > ELEMENTS_MAX);
            if is_long && self.asked == shared.lists {
                shared.lists += 1;
            }
            self.found = Some((self.asked, response.kvs.clone()));
        }
    }
}
