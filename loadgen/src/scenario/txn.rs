//! Transactions: compare and swap, and many puts at once.

use crate::keys::{KeyPicker, KeySpace, ValueSource};
use crate::scenario::kv::put_request;
use crate::scenario::operation::{
    ExpectedEvents, NextCall, OpParts, Operation, PerCaller, ReplyVerdict, stamped,
};
use crate::wire::RpcMethod;
use crate::wire::fields::{self, put_bytes, put_number, put_part};

/// `Compare.target`: the revision of the last change.
const MOD_REVISION: i64 = 2;
/// Fields of `TxnRequest`, and of `RequestOp` inside.
const COMPARE: u32 = 1;
const SUCCESS: u32 = 2;
const FAILURE: u32 = 3;
const RANGE: u32 = 1;
const PUT: u32 = 2;
/// Losing more often than this is no bad luck.
const CONFLICTS_MAX: u32 = 1_000;

/// Updates of keys by what the caller knows of them.
pub(super) struct CasOperation {
    keys: KeySpace,
    picker: KeyPicker,
    values: ValueSource,
    fan_out: ExpectedEvents,
    /// By key: the revision of its last change, as far as it is known; all callers of the thread
    /// share it, as the callers behind one API server do.
    known: Vec<i64>,
    /// The key a caller is at, and how often it has lost.
    under_way: PerCaller<Option<(u64, u32)>>,
    confirmed: u64,
    scratch: Vec<u8>,
}

impl CasOperation {
    pub(super) fn new(parts: &OpParts<'_>) -> Self {
        let keys = parts.keys().clone();
        Self {
            known: vec![0; usize::try_from(keys.count).unwrap_or(usize::MAX)],
            picker: parts.picker(),
            values: parts.values(),
            fan_out: parts.fan_out(),
            under_way: PerCaller::default(),
            confirmed: 0,
            scratch: Vec::new(),
            keys,
        }
    }
}

fn at(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Operation for CasOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        let picker = &mut self.picker;
        let (number, _) = *self.under_way.of(ask.caller).get_or_insert_with(|| (picker.pick(), 0));
        let mut key = std::mem::take(&mut self.scratch);
        key.clear();
        self.keys.put(number, &mut key);
        put_part(ask.body, COMPARE, |compare| {
            put_number(compare, 2, MOD_REVISION);
            put_bytes(compare, 3, &key);
            put_number(compare, 6, self.known[at(number)]);
        });
        let intended = (self.fan_out.watchers > 0).then_some(ask.intended);
        let value = self.values.pick(self.picker.random());
        put_request(ask.body, SUCCESS, PUT, |put| {
            put_bytes(put, 1, &key);
            put_part(put, 2, |out| stamped(value, intended, out));
        });
        put_request(ask.body, FAILURE, RANGE, |range| put_bytes(range, 1, &key));
        self.scratch = key;
        RpcMethod::Txn
    }

    fn reply(&mut self, caller: u32, body: &[u8]) -> ReplyVerdict {
        let under_way = self.under_way.of(caller);
        let Some((number, lost)) = under_way.as_mut() else {
            return ReplyVerdict::Failed("an answer to nothing");
        };
        let key = *number;
        if fields::number(body, 2) != 0 {
            self.known[at(key)] = self.known[at(key)].max(fields::revision(body));
            self.confirmed += self.fan_out.of(key);
            *under_way = None;
            return ReplyVerdict::Done;
        }
        // TxnResponse.responses[0].response_range.kvs[0].mod_revision
        let kv = fields::bytes(fields::bytes(fields::bytes(body, 3), 1), 2);
        // Answers may overtake each other: an older revision is no news, unless the key is gone.
        let revision = fields::number(kv, 3);
        self.known[at(key)] = if revision == 0 { 0 } else { self.known[at(key)].max(revision) };
        *lost += 1;
        if *lost > CONFLICTS_MAX {
            *under_way = None;
            return ReplyVerdict::GaveUp("an update lost a thousand times to others");
        }
        ReplyVerdict::Conflict
    }

    fn confirmed(&mut self) -> u64 {
        std::mem::take(&mut self.confirmed)
    }
}

/// Several puts in one transaction.
pub(super) struct PutsOperation {
    keys: KeySpace,
    picker: KeyPicker,
    values: ValueSource,
    puts: usize,
    fan_out: ExpectedEvents,
    events: PerCaller<u64>,
    confirmed: u64,
    chosen: Vec<u64>,
    scratch: Vec<u8>,
}

impl PutsOperation {
    pub(super) fn new(parts: &OpParts<'_>, puts: usize) -> Self {
        let keys = parts.keys().clone();
        Self {
            puts: puts.min(usize::try_from(keys.count).unwrap_or(usize::MAX)).max(1),
            picker: parts.picker(),
            values: parts.values(),
            fan_out: parts.fan_out(),
            events: PerCaller::default(),
            confirmed: 0,
            chosen: Vec::new(),
            scratch: Vec::new(),
            keys,
        }
    }

    /// Keys of a transaction are different ones: a server refuses the same key twice.
    fn choose(&mut self) {
        self.chosen.clear();
        for _ in 0..self.puts {
            let mut number = self.picker.pick();
            while self.chosen.contains(&number) {
                number = (number + 1) % self.keys.count;
            }
            self.chosen.push(number);
        }
    }
}

impl Operation for PutsOperation {
    fn request(&mut self, ask: NextCall<'_>) -> RpcMethod {
        self.choose();
        *self.events.of(ask.caller) = self.chosen.iter().map(|key| self.fan_out.of(*key)).sum();
        let intended = (self.fan_out.watchers > 0).then_some(ask.intended);
        let mut key = std::mem::take(&mut self.scratch);
        for number in &self.chosen {
            key.clear();
            self.keys.put(*number, &mut key);
            let value = self.values.pick(self.picker.random());
            put_request(ask.body, SUCCESS, PUT, |put| {
                put_bytes(put, 1, &key);
                put_part(put, 2, |out| stamped(value, intended, out));
            });
        }
        self.scratch = key;
        RpcMethod::Txn
    }

    fn reply(&mut self, caller: u32, _body: &[u8]) -> ReplyVerdict {
        self.confirmed += *self.events.of(caller);
        ReplyVerdict::Done
    }

    fn confirmed(&mut self) -> u64 {
        std::mem::take(&mut self.confirmed)
    }
}
