//! Single keys and ranges.

use crate::keys::{KeyPicker, KeySpace, ValueSource};
use crate::plan::RangeOp;
use crate::scenario::operation::{
    ExpectedEvents, NextCall, OpParts, Operation, PerCaller, ReplyVerdict, stamped,
};
use crate::wire::RpcMethod;
use crate::wire::fields::{self, FieldValue, MessageFields, put_bytes, put_number, put_part};

/// Writes a key.
pub(super) struct PutOperation {
    keys: KeySpace,
    picker: KeyPicker,
    values: ValueSource,
    prev_kv: bool,
    fan_out: ExpectedEvents,
    key: PerCaller<u64>,
    confirmed: u64,
    scratch: Vec<u8>,
}

impl PutOperation {
    pub(super) fn new(parts: &OpParts<'_>, prev_kv: bool) -> Self {
        Self {
            keys: parts.keys().clone(),
            picker: parts.picker(),
            values: parts.values(),
            prev_kv,
            fan_out: parts.fan_out(),
            key: PerCaller::default(),
            confirmed: 0,
            scratch: Vec::new(),
        }
    }
}

impl Operation for PutOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let number = self.picker.pick();
        *self.key.of(ask.caller) = number;
        self.scratch.clear();
        self.keys.put(number, &mut self.scratch);
        put_bytes(ask.body, 1, &self.scratch);
        self.scratch.clear();
        let intended = (self.fan_out.watchers > 0).then_some(ask.intended);
        stamped(self.values.pick(self.picker.random()), intended, &mut self.scratch);
        put_bytes(ask.body, 2, &self.scratch);
        put_number(ask.body, 4, self.prev_kv.into());
        RpcMethod::Put
    }

    fn reply(&mut self, caller: u32, _body: &[u8]) -> ReplyVerdict {
        self.confirmed += self.fan_out.of(*self.key.of(caller));
        ReplyVerdict::Done
    }

    fn confirmed(&mut self) -> u64 {
        std::mem::take(&mut self.confirmed)
    }
}

/// Reads a key.
pub(super) struct GetOperation {
    keys: KeySpace,
    picker: KeyPicker,
    serializable: bool,
    scratch: Vec<u8>,
}

impl GetOperation {
    pub(super) fn new(parts: &OpParts<'_>, serializable: bool) -> Self {
        Self { keys: parts.keys().clone(), picker: parts.picker(), serializable, scratch: Vec::new() }
    }
}

impl Operation for GetOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        self.scratch.clear();
        self.keys.put(self.picker.pick(), &mut self.scratch);
        put_bytes(ask.body, 1, &self.scratch);
        put_number(ask.body, 7, self.serializable.into());
        RpcMethod::Range
    }

    fn reply(&mut self, _caller: u32, _body: &[u8]) -> ReplyVerdict {
        ReplyVerdict::Done
    }
}

/// Reads many keys.
pub(super) struct RangeOperation {
    op: RangeOp,
    keys: KeySpace,
    picker: KeyPicker,
    end: Vec<u8>,
    /// Where a list goes on: the next key, and the revision of its first page.
    lists: PerCaller<(Vec<u8>, i64)>,
}

impl RangeOperation {
    pub(super) fn new(parts: &OpParts<'_>, op: RangeOp) -> Self {
        let keys = parts.keys().clone();
        let end = match &op.between {
            Some((_, to)) => to.clone().into_bytes(),
            None => KeySpace::end(keys.common_prefix()),
        };
        Self { op, end, picker: parts.picker(), lists: PerCaller::default(), keys }
    }
}

impl Operation for RangeOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let (next, revision) = self.lists.of(ask.caller);
        if next.is_empty() {
            match &self.op.between {
                Some((from, _)) => next.extend_from_slice(from.as_bytes()),
                None if self.op.paginate || self.op.limit == 0 => {
                    next.extend_from_slice(self.keys.common_prefix().as_bytes());
                }
                None => self.keys.put(self.picker.pick(), next),
            }
        }
        put_bytes(ask.body, 1, next);
        put_bytes(ask.body, 2, &self.end);
        put_number(ask.body, 3, self.op.limit);
        put_number(ask.body, 4, *revision);
        put_number(ask.body, 7, self.op.serializable.into());
        put_number(ask.body, 8, self.op.keys_only.into());
        put_number(ask.body, 9, self.op.count_only.into());
        if !self.op.paginate {
            next.clear();
        }
        if self.op.stream { RpcMethod::RangeStream } else { RpcMethod::Range }
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        if !self.op.paginate {
            return ReplyVerdict::Done;
        }
        let (next, revision) = self.lists.of(caller);
        let (mut last, mut more) = (&[][..], false);
        for (number, value) in MessageFields(body) {
            match (number, value) {
                (2, FieldValue::Bytes(kv)) => last = kv,
                (3, FieldValue::Number(is_set)) => more = is_set != 0,
                _ => {}
            }
        }
        next.clear();
        if !more {
            *revision = 0;
            return ReplyVerdict::Done;
        }
        if *revision == 0 {
            *revision = fields::revision(body);
        }
        next.extend_from_slice(fields::bytes(last, 1));
        next.push(0);
        if last.is_empty() {
            ReplyVerdict::Failed("a page promises more and holds nothing")
        } else {
            ReplyVerdict::More
        }
    }

    fn failed(&mut self, caller: u32) {
        *self.lists.of(caller) = (Vec::new(), 0);
    }
}

/// Removes a key, whether it is there or not.
pub(super) struct DeleteOperation {
    keys: KeySpace,
    picker: KeyPicker,
    fan_out: ExpectedEvents,
    key: PerCaller<u64>,
    confirmed: u64,
    scratch: Vec<u8>,
}

impl DeleteOperation {
    pub(super) fn new(parts: &OpParts<'_>) -> Self {
        Self {
            keys: parts.keys().clone(),
            picker: parts.picker(),
            fan_out: parts.fan_out(),
            key: PerCaller::default(),
            confirmed: 0,
            scratch: Vec::new(),
        }
    }
}

impl Operation for DeleteOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let number = self.picker.pick();
        *self.key.of(ask.caller) = number;
        self.scratch.clear();
        self.keys.put(number, &mut self.scratch);
        put_bytes(ask.body, 1, &self.scratch);
        RpcMethod::DeleteRange
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        if fields::number(body, 2) > 0 {
            self.confirmed += self.fan_out.of(*self.key.of(caller));
        }
        ReplyVerdict::Done
    }

    fn confirmed(&mut self) -> u64 {
        std::mem::take(&mut self.confirmed)
    }
}

/// A request in a transaction.
pub(super) fn put_request(out: &mut Vec<u8>, branch: u32, kind: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_part(out, branch, |op| put_part(op, kind, write));
}
