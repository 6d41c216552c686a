//! Which commands visit so many keys that others should not wait for them. Only an estimate: what
//! they do does not depend on it, nor on whether anybody asks.

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::KeyRange;
use revd_proto::etcdserverpb::{Compare, DeleteRangeRequest, LeaseRevokeRequest, PutRequest};

use crate::apply::authorized;
use crate::apply::command::{Command, Kind};
use crate::apply::compare::keys_per_comparison;
use crate::apply::lease_reports::ExpiredLeases;
use crate::apply::state::State;
use crate::apply::txn_message;
use crate::auth::Access;
use crate::limits;

/// Whether a command visits many keys, or its caller's rights are held against many.
pub(super) fn is_long(command: &Command, state: &State, access: &Access) -> bool {
    let scale = |looks| Scale { state, looks: looks as u64 };
    if command.kind != Kind::Authorized {
        return scale(0).is_long(command);
    }
    authorized::open(command)
        .is_some_and(|envelope| scale(access.looks_per_lease(envelope.user())).is_long(&envelope.bare))
}

/// The measure of commands.
struct Scale<'a> {
    state: &'a State,
    /// How often the keys of a lease are looked at before the caller may put one with it.
    looks: u64,
}

impl Scale<'_> {
    fn is_long(&self, command: &Command) -> bool {
        self.keys(command) > limits::KEYS_PER_COMMAND
    }

    fn keys(&self, command: &Command) -> u64 {
        let (state, payload) = (self.state, || command.payload.clone());
        match command.kind {
            Kind::Put if self.looks_at_leases() => self.keys_of_put(payload()),
            Kind::DeleteRange => {
                let request = DeleteRangeRequest::decode(payload()).unwrap_or_default();
                self.keys_of(&request.key, &request.range_end)
            }
            Kind::Txn => self.keys_of_txn(payload(), 0),
            Kind::LeaseRevoke => {
                let request = LeaseRevokeRequest::decode(payload()).unwrap_or_default();
                state.leases.key_count(request.id) as u64
            }
            Kind::LeaseExpire => ExpiredLeases::decode(payload())
                .map_or(0, |due| due.leases.iter().map(|id| 1 + state.leases.key_count(*id) as u64).sum()),
            _ => 0,
        }
    }

    /// The keys of leases may be too many for a turn.
    fn looks_at_leases(&self) -> bool {
        self.looks > 0 && self.state.leases.attached_count() as u64 > limits::KEYS_PER_COMMAND
    }

    fn keys_of_put(&self, put: Bytes) -> u64 {
        let lease = PutRequest::decode(put).map_or(0, |put| put.lease);
        1 + self.looks.min(self.state.leases.key_count(lease) as u64)
    }

    fn keys_of(&self, key: &Bytes, range_end: &Bytes) -> u64 {
        if range_end.is_empty() {
            return 1;
        }
        self.state.store.reader().count(KeyRange::from_wire(key, range_end), i64::MAX)
    }

    /// Both branches and all nested ones: which are taken shows only later.
    fn keys_of_txn(&self, mut bytes: Bytes, depth: usize) -> u64 {
        let mut keys = 0;
        while let Some((field, mut part)) = txn_message::next_field(&mut bytes).ok().flatten() {
            let visited = match field {
                1 => Compare::decode(part).map_or(0, |compare| {
                    self.keys_of(&compare.key, &compare.range_end)
                        .saturating_mul(keys_per_comparison(&compare))
                }),
                2 | 3 => self.keys_of_op(&mut part, depth),
                _ => 0,
            };
            keys = u64::saturating_add(keys, visited);
            if keys > limits::KEYS_PER_COMMAND {
                break; // it is long, however much is to come
            }
        }
        keys
    }

    /// Requests of one kind are merged when the operation is decoded, and of several kinds the last
    /// one counts: all that were merged visit at least as many keys as the last one alone.
    fn keys_of_op(&self, op: &mut Bytes, depth: usize) -> u64 {
        let (mut delete, mut most, mut nested) = (DeleteRangeRequest::default(), 1, 0);
        while let Some((field, part)) = txn_message::next_field(op).ok().flatten() {
            match field {
                2 if self.looks_at_leases() => most = most.max(self.keys_of_put(part)),
                3 if delete.merge(part.clone()).is_ok() => {
                    most = most.max(self.keys_of(&delete.key, &delete.range_end));
                }
                4 if depth < limits::TXN_DEPTH_MAX => {
                    nested = u64::saturating_add(nested, 1 + self.keys_of_txn(part, depth + 1));
                }
                _ => {} // a range too: it is read by the edge
            }
            if most.max(nested) > limits::KEYS_PER_COMMAND {
                break; // it is long, however much is to come
            }
        }
        most.max(nested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::{CommandId, Origin, encode};
    use crate::apply::outcome::Effect;
    use crate::apply::{CommittedEntry, Machine, MachineConfig, Next};
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use revd_proto::etcdserverpb::compare::TargetUnion;
    use revd_proto::etcdserverpb::request_op::Request;
    use revd_proto::etcdserverpb::{LeaseGrantRequest, RangeRequest, RequestOp, TxnRequest};
    use std::sync::Arc;

    const OWN: Origin = Origin { member: 1, boot: 1 };

    fn command(kind: Kind, message: &impl prost::Message) -> Command {
        Command { id: CommandId::new(0, 1, 2), kind, payload: message.encode_to_vec().into() }
    }

    fn entry(machine: &Machine, commands: &[Command]) -> CommittedEntry {
        let index = machine.store().applied().index + 1;
        CommittedEntry { index, term: 1, data: encode(OWN, commands).into(), change: None }
    }

    /// 501 keys under `a`, attached to a lease, and one more.
    fn machine() -> Machine {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
        let mut machine = Machine::new(store, config).unwrap();
        let mut commands = vec![command(Kind::LeaseGrant, &LeaseGrantRequest { id: 7, ttl: 60 })];
        for key in 0..=limits::KEYS_PER_COMMAND {
            let put = PutRequest { key: format!("a{key}").into(), lease: 7, ..PutRequest::default() };
            commands.push(command(Kind::Put, &put));
        }
        commands.push(command(Kind::Put, &PutRequest { key: "b".into(), ..PutRequest::default() }));
        let all = entry(&machine, &commands);
        machine.apply(&all, 0, &mut Vec::new()).unwrap();
        machine
    }

    fn delete(key: &'static str, range_end: &'static str) -> DeleteRangeRequest {
        DeleteRangeRequest { key: key.into(), range_end: range_end.into(), ..DeleteRangeRequest::default() }
    }

    fn txn(request: Request) -> TxnRequest {
        let op = RequestOp { request: Some(request) };
        TxnRequest { failure: vec![RequestOp::default(), op], ..TxnRequest::default() }
    }

    #[test]
    fn commands_that_visit_many_keys_are_long() {
        let mut machine = machine();
        let all = delete("a", "b");
        let nested = txn(Request::RequestTxn(txn(Request::RequestDeleteRange(all.clone()))));
        let range = RangeRequest { key: "a".into(), range_end: "b".into(), ..RangeRequest::default() };
        let empty = RequestOp { request: Some(Request::RequestTxn(TxnRequest::default())) };
        let empty = TxnRequest { success: vec![empty; 501], ..TxnRequest::default() };
        let other = RequestOp { request: Some(Request::RequestDeleteRange(all.clone())) }.encode_to_vec();
        let put = RequestOp { request: Some(Request::RequestPut(PutRequest::default())) }.encode_to_vec();
        let twice = [vec![0x12, u8::try_from(2 * put.len() + other.len()).unwrap()], put.clone(), other, put]
            .concat();
        let twice = Command { id: CommandId::new(0, 1, 2), kind: Kind::Txn, payload: twice.into() };
        // A range whose key and end come in two requests, and a nested transaction in many.
        let op_of = |requests: &[Request]| {
            let ops = requests.iter().map(|request| RequestOp { request: Some(request.clone()) });
            let op = ops.flat_map(|op| op.encode_to_vec()).collect::<Vec<_>>();
            let mut txn = vec![0x12];
            prost::encoding::encode_varint(op.len() as u64, &mut txn);
            Command { id: CommandId::new(0, 1, 2), kind: Kind::Txn, payload: [txn, op].concat().into() }
        };
        let split = [delete("x", "b"), delete("a", "b")].map(Request::RequestDeleteRange);
        let [mut end, mut key] = [delete("x", "x1"), delete("a", "")];
        (end.range_end, key.range_end) = ("b".into(), Bytes::new());
        let split_key = [end, key].map(Request::RequestDeleteRange);
        let few = txn(Request::RequestDeleteRange(delete("a1", "a2")));
        let many_nested = vec![Request::RequestTxn(few); 20];
        let value = TargetUnion::Value(vec![1; 300 * limits::COMPARED_BYTES_PER_KEY].into());
        let long_value = Compare {
            key: "a1".into(),
            range_end: "a101".into(),
            target_union: Some(value),
            ..Compare::default()
        };
        let compare = Compare { key: "a".into(), range_end: "b".into(), ..Compare::default() };
        let due = [1_u64.to_le_bytes(), 7_u64.to_le_bytes()].concat();
        let expire = Command { id: CommandId::new(0, 1, 2), kind: Kind::LeaseExpire, payload: due.into() };
        for (is_long, command) in [
            (true, command(Kind::DeleteRange, &all)),
            (false, command(Kind::DeleteRange, &delete("a1", ""))),
            (false, command(Kind::DeleteRange, &delete("b", "c"))),
            (true, command(Kind::Txn, &nested)),
            (false, command(Kind::Txn, &txn(Request::RequestRange(range)))),
            (true, command(Kind::Txn, &empty)),
            (true, twice),
            (true, op_of(&split)),
            (true, op_of(&split_key)),
            (true, op_of(&many_nested)),
            (true, command(Kind::Txn, &TxnRequest { compare: vec![long_value], ..TxnRequest::default() })),
            (true, command(Kind::Txn, &TxnRequest { compare: vec![compare], ..TxnRequest::default() })),
            (true, command(Kind::LeaseRevoke, &LeaseRevokeRequest { id: 7 })),
            (false, command(Kind::LeaseRevoke, &LeaseRevokeRequest { id: 8 })),
            (true, expire),
        ] {
            let next = entry(&machine, std::slice::from_ref(&command));
            machine.begin(&next).unwrap();
            let expected = if is_long { Next::LongCommand } else { Next::Command };
            assert_eq!(machine.next(), expected, "{command:?}");
            machine.current = None; // not carried out: the next one meets the same state
        }
    }

    /// In steps or at once, here or elsewhere: the same state and the same outcomes. Only a
    /// whole entry counts as applied.
    #[test]
    fn steps_come_to_what_applying_at_once_does() {
        let (mut at_once, mut in_steps) = (machine(), machine());
        let commands = [
            command(Kind::DeleteRange, &delete("a", "a3")),
            command(Kind::LeaseRevoke, &LeaseRevokeRequest { id: 7 }),
            command(Kind::Put, &PutRequest { key: "c".into(), ..PutRequest::default() }),
        ];
        let next = entry(&at_once, &commands);
        let (mut expected, mut effects) = (Vec::new(), Vec::<Effect>::new());
        at_once.apply(&next, 0, &mut expected).unwrap();
        in_steps.begin(&next).unwrap();
        while in_steps.next() != Next::Nothing {
            assert!(in_steps.is_within_entry());
            assert_eq!(in_steps.store().applied().index, next.index - 1);
            let lessor = in_steps.lend_lessor();
            let elsewhere = std::thread::spawn(move || {
                in_steps.step(0, &mut effects).unwrap();
                (in_steps, effects)
            });
            (in_steps, effects) = elsewhere.join().unwrap();
            in_steps.return_lessor(lessor, &mut effects);
        }
        assert!(!in_steps.is_within_entry());
        assert_eq!(effects, expected);
        assert_eq!(in_steps.store().applied(), at_once.store().applied());
        assert_eq!(in_steps.store().revision(), at_once.store().revision());
        assert_eq!((in_steps.leases().len(), in_steps.lease_counts()), (0, at_once.lease_counts()));
    }
}
