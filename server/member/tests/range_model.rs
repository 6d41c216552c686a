//! Ranges against a naive twin, in turns of any length; and how much is done in a turn.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::cmp::Ordering;
use std::sync::Arc;

use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, Direction, KeyRange, Reader, Store, StoredRecord, View};
use revd_engine::random::Random;
use revd_member::budget::Share;
use revd_member::read::range::RangeRun;
use revd_proto::etcdserverpb::{RangeRequest, RangeResponse};
use revd_proto::mvccpb::KeyValue;

fn store() -> Store {
    Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap()
}

/// One revision.
fn change(store: &mut Store, change: impl FnOnce(&mut revd_engine::mvcc::Txn<'_>)) {
    let index = store.applied().index + 1;
    let mut txn = store.begin();
    change(&mut txn);
    txn.commit();
    store.set_applied(Applied { index, term: 1 });
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:06}").into_bytes()
}

/// The answer, the turns it took, and the most bytes one of them made.
fn answer(request: &RangeRequest, reader: Reader<'_>, keys_max: usize) -> (RangeResponse, usize, usize) {
    let budget = Share::new(usize::MAX);
    let mut run = RangeRun::new(request, reader, &budget).unwrap();
    let (mut bytes, mut turns, mut most) = (Vec::new(), 0, 0);
    loop {
        let is_done = run.turn(keys_max).unwrap();
        let part = run.take_body().finish().concat();
        most = most.max(part.len());
        turns += 1;
        bytes.extend(part);
        if is_done {
            return (RangeResponse::decode(&bytes[..]).unwrap(), turns, most);
        }
    }
}

fn ascending(target: i32, left: &KeyValue, right: &KeyValue) -> Ordering {
    match target {
        1 => left.version.cmp(&right.version),
        2 => left.create_revision.cmp(&right.create_revision),
        3 => left.mod_revision.cmp(&right.mod_revision),
        4 => left.value.cmp(&right.value),
        _ => left.key.cmp(&right.key),
    }
}

/// All at once, from a scan and the standard library's stable sort.
fn naive(request: &RangeRequest, reader: Reader<'_>) -> RangeResponse {
    let at = reader.resolve(request.revision).unwrap();
    let range = KeyRange::from_wire(&request.key, &request.range_end);
    let decoded = |(_, meta): (revd_engine::key_parts::KeyParts<'_>, revd_engine::mvcc::KeyMeta)| {
        KeyValue::decode(reader.record(meta.modified).unwrap()).unwrap()
    };
    let all: Vec<KeyValue> = reader.scan(range, at, Direction::Forward).map(decoded).collect();
    let count = i64::try_from(all.len()).unwrap();
    if request.count_only {
        return RangeResponse { count, ..RangeResponse::default() };
    }
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let has_filter = request.min_mod_revision != 0 || request.max_create_revision != 0;
    let taken = if request.sort_order == 0 && !has_filter { limit.saturating_add(1) } else { usize::MAX };
    let mut kvs: Vec<KeyValue> = all.into_iter().take(taken).collect();
    kvs.retain(|kv| {
        kv.mod_revision >= request.min_mod_revision
            && (request.max_create_revision == 0 || kv.create_revision <= request.max_create_revision)
    });
    kvs.sort_by(|left, right| {
        let order = ascending(request.sort_target, left, right);
        if request.sort_order == 2 { order.reverse() } else { order }
    });
    let more = kvs.len() > limit;
    kvs.truncate(limit);
    if request.keys_only {
        kvs.iter_mut().for_each(|kv| kv.value = "".into());
    }
    RangeResponse { header: None, kvs, more, count }
}

#[test]
fn ranges_equal_their_twin_in_turns_of_any_length() {
    let mut random = Random::new(14);
    let mut store = store();
    for _ in 0..3_000 {
        let number = random.below(700);
        let value = random.below(40).to_string();
        let deletes = random.one_in(3);
        change(&mut store, |txn| {
            if deletes {
                let end = [&key(number)[..], b"\0"].concat();
                txn.delete_range(KeyRange::from_wire(&key(number), &end));
            } else {
                txn.put(&key(number), value.as_bytes(), 0);
            }
        });
    }
    let view = store.view();
    for _ in 0..3_000 {
        let mut request = RangeRequest {
            key: key(random.below(300)).into(),
            range_end: key(300 + random.below(500)).into(),
            limit: i64::try_from(random.below(3) * random.below(400)).unwrap(),
            sort_order: i32::try_from(random.below(3)).unwrap(),
            sort_target: i32::try_from(random.below(5)).unwrap(),
            keys_only: random.one_in(4),
            count_only: random.one_in(10),
            ..RangeRequest::default()
        };
        if random.one_in(3) {
            request.revision = 2 + i64::try_from(random.below(2_500)).unwrap();
        }
        if random.one_in(3) {
            request.min_mod_revision = i64::try_from(random.below(1_500)).unwrap();
            request.max_create_revision = i64::try_from(random.below(3_000)).unwrap();
        }
        let expected = naive(&request, view.reader());
        for keys_max in [1, 7, 2_000, usize::MAX] {
            let (found, _, _) = answer(&request, view.reader(), keys_max);
            assert!(found == expected, "{request:?} in turns of {keys_max}:\n{found:?}\n{expected:?}");
        }
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "key/".into(), range_end: "key0".into(), ..RangeRequest::default() }
}

const KEYS: u64 = 40_000;

/// Many keys, then all but two are deleted: the state before, and the one after.
fn mostly_dead() -> (View, View) {
    let mut store = store();
    for number in 0..KEYS {
        change(&mut store, |txn| {
            txn.put(&key(number), number.to_string().as_bytes(), 0);
        });
    }
    let before = store.view();
    change(&mut store, |txn| {
        txn.delete_range(KeyRange::Span { start: &key(1), end: &key(KEYS - 1) });
    });
    (before, store.view())
}

#[test]
fn a_turn_is_bounded_by_the_work_it_does() {
    let (before, after) = mostly_dead();
    let revision = before.revision();
    for request in [
        RangeRequest { sort_target: 4, ..all() },
        RangeRequest { sort_target: 3, sort_order: 2, limit: 10, ..all() },
        RangeRequest { sort_target: 2, sort_order: 2, limit: 30_000, ..all() },
        RangeRequest { min_mod_revision: i64::MAX, ..all() },
        RangeRequest { max_mod_revision: 3, limit: 1, sort_order: 2, ..all() },
    ] {
        let (_, turns, _) = answer(&request, before.reader(), 200);
        assert!(turns >= 9, "{turns} turns for {request:?}");
    }
    // Dead keys that are not compacted yet are passed at once now ...
    for request in
        [all(), RangeRequest { count_only: true, ..all() }, RangeRequest { sort_target: 3, ..all() }]
    {
        let (found, turns, _) = answer(&request, after.reader(), 200);
        assert_eq!(found.count, 2);
        assert!(turns <= 3, "{turns} turns for {request:?}");
        // ... and at the revision before they died each is visited, in turns.
        let request = RangeRequest { revision, ..request };
        let (found, turns, _) = answer(&request, after.reader(), 200);
        assert_eq!(found.count, i64::try_from(KEYS).unwrap());
        assert!(turns >= 9, "{turns} turns for {request:?}");
    }
    // Keys that came later are none at an old revision: visited, not answered.
    let request = RangeRequest { revision: 2, ..all() };
    let (found, turns, _) = answer(&request, after.reader(), 200);
    assert_eq!((found.kvs.len(), found.count), (1, 1));
    assert!(turns >= 9, "{turns} turns");
}

#[test]
fn large_values_end_a_turn_early() {
    let mut store = store();
    for number in 0..60 {
        change(&mut store, |txn| {
            txn.put(&key(number), &vec![0; 1_000_000], 0);
        });
    }
    let view = store.view();
    for sort_target in [0, 4] {
        let request = RangeRequest { sort_target, ..all() };
        let (found, turns, most) = answer(&request, view.reader(), 2_000);
        assert_eq!(found.kvs.len(), 60);
        assert!(most <= 12_000_000 && turns >= 6, "{most} bytes in one of {turns} turns");
    }
    let parsed =
        StoredRecord::parse(view.reader().record(view.reader().get(&key(1), 100).unwrap().modified).unwrap());
    assert_eq!(parsed.unwrap().value.len(), 1_000_000);
}
