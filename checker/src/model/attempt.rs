//! A request carried out on the model, and what it answers and changes.

use std::collections::BTreeMap;

use bytes::Bytes;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, ResponseOp, TxnRequest, TxnResponse, request_op, response_op,
};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use super::{Model, deletion};
use crate::history::{Request, Response};
use crate::range::{self, is_in_range};

/// A request that is tried: the model stays as it is.
#[derive(Debug)]
pub struct Attempt<'m> {
    model: &'m Model,
    /// The revision that it finds.
    at: i64,
    written: BTreeMap<Bytes, Option<KeyValue>>,
    changes: Vec<Event>,
}

impl<'m> Attempt<'m> {
    /// Carries out a request on the state of a revision: the answer without headers, and what
    /// changes. None if etcd refuses it or it is no request of the key space.
    #[must_use]
    pub fn run(model: &'m Model, at: i64, request: &Request) -> Option<(Response, Vec<Event>)> {
        let mut attempt = Self { model, at, written: BTreeMap::new(), changes: Vec::new() };
        let response = match request {
            Request::Range(request) => Response::Range(attempt.range(request)?),
            Request::Put(request) => Response::Put(attempt.put(request)?),
            Request::DeleteRange(request) => Response::DeleteRange(attempt.delete_range(request)),
            Request::Txn(request) => Response::Txn(attempt.txn(request)?),
            _ => return None,
        };
        Some((response, attempt.changes))
    }

    fn get(&self, key: &Bytes) -> Option<KeyValue> {
        let written = self.written.get(key).cloned();
        written.unwrap_or_else(|| self.model.get(key, self.at).cloned())
    }

    /// The keys of a range as the request sees them so far.
    fn keys(&self, start: &Bytes, end: &Bytes) -> Vec<KeyValue> {
        let stored = self.model.range(start, end, self.at).into_iter();
        let mut keys: BTreeMap<Bytes, KeyValue> = stored.map(|kv| (kv.key.clone(), kv.clone())).collect();
        for (key, kv) in self.written.iter().filter(|(key, _)| is_in_range(key, start, end)) {
            match kv {
                Some(kv) => drop(keys.insert(key.clone(), kv.clone())),
                None => drop(keys.remove(key)),
            }
        }
        keys.into_values().collect()
    }

    fn range(&self, request: &RangeRequest) -> Option<RangeResponse> {
        let newest = self.at + i64::from(!self.changes.is_empty());
        if request.revision > newest {
            return None;
        }
        let kvs = if request.revision > 0 && request.revision < newest {
            let kvs = self.model.range(&request.key, &request.range_end, request.revision);
            kvs.into_iter().cloned().collect()
        } else {
            self.keys(&request.key, &request.range_end)
        };
        Some(range::answer(request, kvs))
    }

    fn put(&mut self, request: &PutRequest) -> Option<PutResponse> {
        let before = self.get(&request.key);
        if before.is_none() && (request.ignore_value || request.ignore_lease) {
            return None;
        }
        let revision = self.at + 1;
        let kept = before.clone().unwrap_or_default();
        let kv = KeyValue {
            key: request.key.clone(),
            value: if request.ignore_value { kept.value } else { request.value.clone() },
            lease: if request.ignore_lease { kept.lease } else { request.lease },
            create_revision: if before.is_some() { kept.create_revision } else { revision },
            mod_revision: revision,
            version: kept.version + 1,
        };
        self.changes.push(Event { r#type: EventType::Put as i32, kv: Some(kv.clone()), prev_kv: None });
        self.written.insert(request.key.clone(), Some(kv));
        Some(PutResponse { header: None, prev_kv: before.filter(|_| request.prev_kv) })
    }

    fn delete_range(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let gone = self.keys(&request.key, &request.range_end);
        for kv in &gone {
            self.changes.push(deletion(kv.key.clone(), self.at + 1));
            self.written.insert(kv.key.clone(), None);
        }
        DeleteRangeResponse {
            header: None,
            deleted: i64::try_from(gone.len()).expect("keys fit in memory"),
            prev_kvs: if request.prev_kv { gone } else { Vec::new() },
        }
    }

    fn txn(&mut self, request: &TxnRequest) -> Option<TxnResponse> {
        // A txn in another compares with what was there before the outer one.
        let succeeded = request.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded { &request.success } else { &request.failure };
        let responses: Option<Vec<ResponseOp>> = branch.iter().map(|op| self.op(op)).collect();
        Some(TxnResponse { header: None, succeeded, responses: responses? })
    }

    fn op(&mut self, op: &RequestOp) -> Option<ResponseOp> {
        use {request_op::Request as Op, response_op::Response as Answer};
        let response = match op.request.as_ref()? {
            Op::RequestRange(request) => Answer::ResponseRange(self.range(request)?),
            Op::RequestPut(request) => Answer::ResponsePut(self.put(request)?),
            Op::RequestDeleteRange(request) => Answer::ResponseDeleteRange(self.delete_range(request)),
            Op::RequestTxn(request) => Answer::ResponseTxn(self.txn(request)?),
        };
        Some(ResponseOp { response: Some(response) })
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found = self.model.range(&compare.key, &compare.range_end, self.at);
        if found.is_empty() {
            return compare.target() != CompareTarget::Value && meets(compare, &KeyValue::default());
        }
        found.into_iter().all(|kv| meets(compare, kv))
    }
}

fn meets(compare: &Compare, kv: &KeyValue) -> bool {
    let number = |found: i64, asked: Option<i64>| found.cmp(&asked.unwrap_or(0));
    let order = match (compare.target(), &compare.target_union) {
        (CompareTarget::Value, Some(TargetUnion::Value(value))) => kv.value.cmp(value),
        (CompareTarget::Value, _) => kv.value[..].cmp(&[]),
        (CompareTarget::Version, Some(TargetUnion::Version(at))) => number(kv.version, Some(*at)),
        (CompareTarget::Version, _) => number(kv.version, None),
        (CompareTarget::Create, Some(TargetUnion::CreateRevision(at))) => {
            number(kv.create_revision, Some(*at))
        }
        (CompareTarget::Create, _) => number(kv.create_revision, None),
        (CompareTarget::Mod, Some(TargetUnion::ModRevision(at))) => number(kv.mod_revision, Some(*at)),
        (CompareTarget::Mod, _) => number(kv.mod_revision, None),
        (CompareTarget::Lease, Some(TargetUnion::Lease(at))) => number(kv.lease, Some(*at)),
        (CompareTarget::Lease, _) => number(kv.lease, None),
    };
    match compare.result() {
        CompareResult::Equal => order.is_eq(),
        CompareResult::Greater => order.is_gt(),
        CompareResult::Less => order.is_lt(),
        CompareResult::NotEqual => order.is_ne(),
    }
}

/// A response without the headers in it.
pub(crate) fn without_headers(mut response: Response) -> Response {
    fn strip(responses: &mut [ResponseOp]) {
        use response_op::Response as Answer;
        for response in responses {
            match response.response.as_mut() {
                Some(Answer::ResponseRange(response)) => response.header = None,
                Some(Answer::ResponsePut(response)) => response.header = None,
                Some(Answer::ResponseDeleteRange(response)) => response.header = None,
                Some(Answer::ResponseTxn(response)) => {
                    response.header = None;
                    strip(&mut response.responses);
                }
                None => {}
            }
        }
    }
    *response.header() = None;
    if let Response::Txn(response) = &mut response {
        strip(&mut response.responses);
    }
    response
}
