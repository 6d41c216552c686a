//! Fuzz targets: functions of bytes that must neither panic nor loop, and that check their own
//! results where there is something to check. `server/fuzz` runs them under libFuzzer,
//! `server/tests/fuzz.rs` with mutated seeds on a stable toolchain.

mod peers;
mod tls;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use revd::api::validate::{self, RequestLimits};
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::meta::Meta;
use revd_engine::mvcc::key_history::KeyHistory;
use revd_engine::mvcc::{Applied, CheckpointKind, Direction, KeyRange, Revision, Store, StoredRecord};
use revd_engine::page::{PageId, PageView};
use revd_http2::hpack::{Decoder, literal};
use revd_http2::{Config, Connection, Event, Role};
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::outcome::Effect;
use revd_member::apply::{CommittedEntry, Machine, MachineConfig, txn_message};
use revd_member::budget::Share;
use revd_member::read::range;
use revd_member::wal::{frame, reader};
use revd_member::watch::{Hub, HubLimits};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    AlarmRequest, CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, request_op,
};

/// A target: its name, what it does with bytes, and bytes to begin with.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "page", run: page, seeds: page_seeds },
    Target { name: "meta", run: meta, seeds: meta_seeds },
    Target { name: "tree_file", run: tree_file, seeds: edits },
    Target { name: "index_checkpoint", run: index_checkpoint, seeds: history_seeds },
    Target { name: "record", run: record, seeds: record_seeds },
    Target { name: "wal_frame", run: wal_frame, seeds: frame_seeds },
    Target { name: "wal_segment", run: wal_segment, seeds: frame_seeds },
    Target { name: "batch", run: batch, seeds: batch_seeds },
    Target { name: "requests", run: requests, seeds: request_seeds },
    Target { name: "ranges", run: ranges, seeds: range_seeds },
    Target { name: "watch", run: watch, seeds: watch_seeds },
    Target { name: "crash_reopen", run: crash_reopen, seeds: edits },
    Target { name: "http2", run: http2, seeds: http2_seeds },
    Target { name: "hpack", run: hpack, seeds: hpack_seeds },
    Target { name: "peer_hello", run: peers::hello, seeds: peers::hello_seeds },
    Target { name: "peer_frames", run: peers::frames, seeds: peers::frame_seeds },
    Target { name: "peer_messages", run: peers::messages, seeds: peers::message_seeds },
    Target { name: "peer_raft", run: peers::raft, seeds: peers::message_seeds },
    Target { name: "tls_certificate", run: tls::certificate, seeds: tls::certificate_seeds },
    Target { name: "tls_handshake", run: tls::handshake, seeds: tls::handshake_seeds },
];

const PAGES: DbOptions = DbOptions { page_bytes_if_new: 512 };
const OWN: Origin = Origin { member: 1, boot: 2 };

fn page(bytes: &[u8]) {
    let Ok(page) = PageView::parse(bytes, PageId(7)) else { return };
    for at in 0..page.len() {
        let _ = (page.cell(at), page.key(at), page.leaf_cell(at), page.branch_cell(at));
    }
}

fn page_seeds() -> Vec<Vec<u8>> {
    let file = sample_file();
    let mut pages: Vec<Vec<u8>> = file.chunks(512).skip(16).take(40).map(<[u8]>::to_vec).collect();
    for page in &mut pages {
        page[8..16].copy_from_slice(&7_u64.to_le_bytes());
    }
    pages
}

fn meta(bytes: &[u8]) {
    if let Some(meta) = Meta::decode(bytes) {
        assert_eq!(Meta::decode(&meta.encode()), Some(meta), "it survives the round trip");
    }
}

fn meta_seeds() -> Vec<Vec<u8>> {
    let file = sample_file();
    vec![file[..4096].to_vec(), file[4096..8192].to_vec(), Meta::empty(512).encode().to_vec()]
}

/// A small store with old revisions, long values and deleted keys; and its file.
fn sample_store(disk: &SimDisk) -> Store {
    let mut store = Store::open(Arc::new(disk.clone()), PAGES).unwrap();
    for round in 0..12_u64 {
        let mut txn = store.begin();
        for key in 0..4 {
            let len = if key == 3 { 900 } else { 10 };
            txn.put(format!("k{}", (round * 3 + key) % 10).as_bytes(), &vec![b'v'; len], 0);
        }
        let _ = txn.delete_range(KeyRange::One(format!("k{}", round % 7).as_bytes()));
        txn.commit();
        store.set_applied(Applied { index: round + 1, term: 1 });
        let written = store.checkpoint(CheckpointKind::WithIndex).unwrap().write().unwrap();
        store.finish_checkpoint(written);
    }
    store
}

fn sample_file() -> Vec<u8> {
    let disk = SimDisk::new();
    drop(sample_store(&disk));
    disk.bytes()
}

/// Bytes as edits of a file: where (u16, in the file's length), and what.
fn edited(mut file: Vec<u8>, edits: &[u8]) -> Vec<u8> {
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) * 7 % file.len();
        match edit[2] {
            0 => file.truncate(at.max(1)),
            1 => file[at..].fill(edit[3]),
            _ => file[at] = edit[3],
        }
    }
    file
}

fn edits() -> Vec<Vec<u8>> {
    vec![vec![], vec![10, 20, 2, 3], vec![0, 0, 9, 9, 200, 3, 5, 7], vec![99, 30, 0, 0], vec![1, 9, 1, 255]]
}

/// Reads everything a store has, at a few revisions.
fn read_everything(store: &mut Store) {
    let view = store.view();
    let reader = view.reader();
    for at in [reader.compact_revision().max(1), reader.revision()] {
        for (_, meta) in reader.scan(KeyRange::ALL, at, Direction::Forward) {
            let _ = reader.record(meta.modified);
        }
    }
}

fn tree_file(bytes: &[u8]) {
    let file = edited(sample_file(), bytes);
    if let Ok(mut store) = Store::open(Arc::new(SimDisk::from_bytes(file)), PAGES) {
        read_everything(&mut store);
        let _ = revd_engine::check::check(store.db().unwrap());
        let _ = revd_engine::mvcc::verify::verify(&store);
    }
}

/// Crashes in the middle of the last checkpoint, keeping the writes the bytes
/// choose, and opens what is left.
fn crash_reopen(bytes: &[u8]) {
    let disk = SimDisk::new();
    drop(sample_store(&disk));
    let calls = disk.recorded();
    let stop = calls.len() - usize::from(bytes.first().copied().unwrap_or(0)) % 12;
    let kept = |call: usize, sector: usize| {
        bytes.get((call + sector) % bytes.len().max(1)).is_none_or(|byte| byte & 1 == 0)
    };
    let image = SimDisk::image(&calls[..stop], kept);
    let mut store = Store::open(Arc::new(SimDisk::from_bytes(image)), PAGES).expect("a crash leaves a store");
    read_everything(&mut store);
    revd_engine::check::check(store.db().unwrap()).expect("a crash leaves a whole file");
}

fn index_checkpoint(bytes: &[u8]) {
    if let Some(history) = KeyHistory::decode(bytes) {
        let mut encoded = Vec::new();
        history.encode(&mut encoded);
        assert!(KeyHistory::decode(&encoded).is_some_and(|again| again.changes() == history.changes()));
        let _ = (history.newest(), history.oldest(), history.at(5), history.compacted(5));
    }
}

fn history_seeds() -> Vec<Vec<u8>> {
    let revision = |main| Revision { main, sub: 0 };
    let mut history = KeyHistory::created(revision(2));
    let mut seeds = Vec::new();
    for main in 3..9 {
        if main == 6 {
            assert!(history.delete(revision(main)));
        } else {
            history.put(revision(main));
        }
        let mut seed = Vec::new();
        history.encode(&mut seed);
        seeds.push(seed);
    }
    seeds
}

fn record(bytes: &[u8]) {
    let _ = StoredRecord::parse(bytes);
}

fn record_seeds() -> Vec<Vec<u8>> {
    let mut store = sample_store(&SimDisk::new());
    let view = store.view();
    let reader = view.reader();
    let keys = reader.scan(KeyRange::ALL, i64::MAX, Direction::Forward);
    keys.map(|(_, meta)| reader.record(meta.modified).unwrap().to_vec()).collect()
}

fn wal_frame(bytes: &[u8]) {
    if let Some(frame) = frame::decode(&Bytes::copy_from_slice(bytes)) {
        let encoded = frame::encode(frame.id, &frame.content);
        let again = frame::decode(&Bytes::from(encoded)).expect("what was encoded");
        assert_eq!(again.content, frame.content);
    }
}

fn wal_segment(bytes: &[u8]) {
    let half = bytes.len() / 2;
    let parts = [(1, Bytes::copy_from_slice(&bytes[..half])), (2, Bytes::copy_from_slice(&bytes[half..]))];
    let _ = reader::assemble(Path::new("log"), &parts);
    let _ = reader::assemble(Path::new("log"), &[(1, Bytes::copy_from_slice(bytes))]);
}

fn frame_seeds() -> Vec<Vec<u8>> {
    use revd_member::cluster::Identity;
    use revd_member::wal::frame::{FrameId, SegmentHeader};
    use revd_member::wal::{FrameContent, HardState, LogEntry, LogRestart};
    let hard_state = HardState { term: 2, vote: 7, commit: 3 };
    let header =
        SegmentHeader { owner: Identity { cluster: 1, member: 7 }, hard_state, last_index: 1, last_term: 1 };
    let first = frame::encode_header(FrameId { life: 5, segment: 1, frame: 1 }, &header);
    let entry = |index| LogEntry { index, term: 2, kind: 0, data: Bytes::from_static(b"some data") };
    let restart = Some(LogRestart { index: 1, term: 1 });
    let content = FrameContent { restart, hard_state: Some(hard_state), entries: vec![entry(2), entry(3)] };
    let second = frame::encode(FrameId { life: 5, segment: 1, frame: 2 }, &content);
    vec![[&first[..], &second].concat(), first, second]
}

fn batch(bytes: &[u8]) {
    if let Ok(batch) = command::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(command::encode(batch.origin, &batch.commands), bytes);
    }
}

fn batch_seeds() -> Vec<Vec<u8>> {
    let commands: Vec<Command> = request_seeds()
        .into_iter()
        .map(|seed| Command { id: CommandId::new(0, 1, 2), kind: Kind::Put, payload: seed.into() })
        .collect();
    vec![command::encode(OWN, &commands[..1]), command::encode(OWN, &commands), command::encode(OWN, &[])]
}

/// Applies commands, as they come from the log, to a small state: a byte for the kind, two for the
/// length, the message. Afterwards the state must be whole, also when it is opened again.
fn requests(bytes: &[u8]) {
    let disk = SimDisk::new();
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
    let mut machine = Machine::new(sample_store(&disk), config).unwrap();
    machine.serve(0);
    machine.set_leadership(Some(1), 0, &mut Vec::new());
    let mut rest = bytes;
    while let [kind, low, high, tail @ ..] = rest {
        let (message, tail) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(tail.len()));
        rest = tail;
        let kinds = [
            Kind::Put,
            Kind::DeleteRange,
            Kind::Txn,
            Kind::Compact,
            Kind::Alarm,
            Kind::LeaseGrant,
            Kind::LeaseRevoke,
            Kind::LeaseExpire,
            Kind::LeaseCheckpoint,
        ];
        let kind = kinds[usize::from(*kind) % kinds.len()];
        let payload = Bytes::copy_from_slice(message);
        let command = Command { id: CommandId::new(0, 1, 2), kind, payload: payload.clone() };
        if !passes_the_api(kind, payload) {
            continue; // never gets into the log
        }
        let index = machine.store().applied().index + 1;
        let before = machine.store().revision();
        let data = command::encode(OWN, &[command]).into();
        let mut effects = Vec::new();
        machine.apply(&CommittedEntry { index, term: 1, data, change: None }, 0, &mut effects).unwrap();
        let after = machine.store().revision();
        assert!(after == before || after == before + 1 || kind == Kind::LeaseExpire);
        for effect in &effects {
            let (Effect::Reply(_, outcome) | Effect::ReplyWhenCompacted(_, outcome, _)) = effect else {
                continue;
            };
            assert!(outcome.revision == after, "the outcome names the revision");
            if outcome.result.is_err() {
                assert_eq!(after, before, "a refused command changes nothing");
            }
        }
    }
    let revision = machine.store().revision();
    let checkpoint = machine.store_mut().checkpoint(CheckpointKind::WithIndex);
    if let Some(checkpoint) = checkpoint {
        let written = checkpoint.write().unwrap();
        machine.store_mut().finish_checkpoint(written);
    }
    let store = Store::open(Arc::new(SimDisk::from_bytes(disk.bytes())), PAGES).unwrap();
    assert_eq!(store.revision(), revision);
    revd_engine::mvcc::verify::verify(&store).unwrap();
    Machine::new(store, config).unwrap();
}

fn passes_the_api(kind: Kind, payload: Bytes) -> bool {
    let limits = RequestLimits { request_bytes_max: 1 << 20, txn_ops_max: 128 };
    match kind {
        Kind::Put => PutRequest::decode(payload).is_ok_and(|put| validate::put(&put).is_ok()),
        Kind::DeleteRange => {
            DeleteRangeRequest::decode(payload).is_ok_and(|delete| validate::delete_range(&delete).is_ok())
        }
        Kind::Txn => {
            txn_message::decode(&payload).is_ok_and(|request| validate::txn(&request, limits).is_ok())
        }
        _ => true,
    }
}

fn request_seeds() -> Vec<Vec<u8>> {
    let put = PutRequest { key: "k1".into(), value: "w".into(), prev_kv: true, ..PutRequest::default() };
    let leased = PutRequest { key: "k2".into(), lease: 5, ..PutRequest::default() };
    let kept = PutRequest { key: "k3".into(), ignore_value: true, ..PutRequest::default() };
    let delete = DeleteRangeRequest { key: "k".into(), range_end: "k5".into(), prev_kv: true };
    let range = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
    let op = |request| RequestOp { request: Some(request) };
    let inner = TxnRequest {
        success: vec![
            op(request_op::Request::RequestDeleteRange(delete.clone())),
            op(request_op::Request::RequestRange(range)),
        ],
        failure: vec![op(request_op::Request::RequestPut(kept.clone()))],
        ..TxnRequest::default()
    };
    let outer = TxnRequest {
        success: vec![op(request_op::Request::RequestTxn(inner.clone()))],
        ..TxnRequest::default()
    };
    let commands = [
        (0, put.encode_to_vec()),
        (5, LeaseGrantRequest { id: 5, ttl: 9 }.encode_to_vec()),
        (0, leased.encode_to_vec()),
        (0, kept.encode_to_vec()),
        (1, delete.encode_to_vec()),
        (2, inner.encode_to_vec()),
        (2, outer.encode_to_vec()),
        (3, CompactionRequest { revision: 9, physical: true }.encode_to_vec()),
        (4, AlarmRequest { action: 1, member_id: 3, alarm: 1 }.encode_to_vec()),
        (6, LeaseGrantRequest { id: 0, ttl: 5 }.encode_to_vec()),
        (7, [1_u64.to_le_bytes(), 5_u64.to_le_bytes()].concat()),
    ];
    let framed = commands.map(|(kind, message): (u8, Vec<u8>)| {
        let [low, high] = u16::try_from(message.len()).unwrap().to_le_bytes();
        [&[kind, low, high], &message[..]].concat()
    });
    let mut seeds = framed.to_vec();
    seeds.push(framed.concat());
    seeds
}

fn ranges(bytes: &[u8]) {
    let Ok(request) = RangeRequest::decode(bytes) else { return };
    if validate::range(&request).is_err() {
        return;
    }
    let mut store = sample_store(&SimDisk::new());
    let view = store.view();
    if let Ok(body) = range::answer(&request, view.reader(), &Share::new(usize::MAX)) {
        let body = body.concat();
        let reply = revd_proto::etcdserverpb::RangeResponse::decode(&body[..]).expect("a reply");
        assert!(request.limit <= 0 || reply.kvs.len() as i64 <= request.limit);
        assert!(reply.kvs.len() as i64 <= reply.count);
    }
}

fn range_seeds() -> Vec<Vec<u8>> {
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    [
        RangeRequest { limit: 3, sort_target: 4, sort_order: 2, ..all.clone() },
        RangeRequest { revision: 5, keys_only: true, min_mod_revision: 2, ..all.clone() },
        RangeRequest { count_only: true, ..all.clone() },
        all,
    ]
    .map(|request| request.encode_to_vec())
    .to_vec()
}

/// Requests of one watch call, each with two bytes for its length; in between
/// what there is to send is taken.
fn watch(bytes: &[u8]) {
    let mut store = sample_store(&SimDisk::new());
    let mut hub = Hub::new(HubLimits { fragment_bytes: 500, step_work: 7 });
    let stream = hub.open(&Share::new(usize::MAX));
    let mut rest = bytes;
    while let [low, high, tail @ ..] = rest {
        let (message, tail) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(tail.len()));
        rest = tail;
        let Ok(WatchRequest { request_union: Some(request) }) = WatchRequest::decode(message) else {
            continue;
        };
        let view = store.view();
        match request {
            RequestUnion::CreateRequest(create) => hub.create(stream, &create, &view),
            RequestUnion::CancelRequest(cancel) => hub.cancel(stream, cancel.watch_id, &view),
            RequestUnion::ProgressRequest(_) => hub.request_progress(stream, &view),
        }
        let mut txn = store.begin();
        txn.put(b"k1", message, 0);
        txn.commit();
        hub.advance(&store.view()).unwrap();
        while hub.step(&store.view()).unwrap() {}
        while hub.take(stream).is_some() {}
    }
    hub.close(stream);
    assert_eq!(hub.counts().watchers, 0);
}

fn watch_seeds() -> Vec<Vec<u8>> {
    let create =
        |create| WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }.encode_to_vec();
    let all = WatchCreateRequest { key: "k".into(), range_end: "l".into(), ..WatchCreateRequest::default() };
    let past = WatchCreateRequest { start_revision: 2, prev_kv: true, fragment: true, ..all.clone() };
    let future = WatchCreateRequest { start_revision: 99, watch_id: 7, filters: vec![0, 1], ..all.clone() };
    let framed = [create(all), create(past), create(future)]
        .map(|message| [&u16::try_from(message.len()).unwrap().to_le_bytes()[..], &message].concat());
    vec![framed.concat(), framed[1].clone()]
}

/// A connection as a server drives it: every event is answered. Nothing it sends may be more than
/// the client allows, and bytes cut elsewhere must mean the same.
fn http2(bytes: &[u8]) {
    let whole = http2_answers(bytes, usize::MAX);
    let cut = http2_answers(bytes, 1 + bytes.first().map_or(0, |byte| usize::from(*byte)));
    assert_eq!(whole, cut, "the same bytes in other pieces are answered otherwise");
}

fn http2_answers(bytes: &[u8], piece: usize) -> Vec<u8> {
    let mut connection: Connection<u32> = Connection::new(Role::Server, Config::default());
    let mut decoder = Decoder::default();
    let mut waiting = Vec::new();
    for piece in bytes.chunks(piece) {
        waiting.extend_from_slice(piece);
        let mut rest = &waiting[..];
        loop {
            match connection.receive(&mut rest) {
                Ok(Some(Event::Headers { stream, block, end, .. })) => {
                    if decoder.decode(&block, |_, _| {}).is_err() {
                        return Vec::new();
                    }
                    if end && !connection.send_short(stream, &[0x88], &[b"short"], &[0xbe]) {
                        connection.send_head(stream, &[0x88], false);
                        connection.send_data(stream, &[Bytes::from(vec![1; 3_000])]);
                        connection.send_end(stream, Some(&[0x88]));
                    }
                }
                Ok(Some(Event::Data { stream, data, .. })) => connection.credit(stream, data.len()),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => {
                    connection.fail(fault);
                    return sent(&mut connection);
                }
            }
        }
        let used = waiting.len() - rest.len();
        waiting.drain(..used);
    }
    sent(&mut connection)
}

fn sent(connection: &mut Connection<u32>) -> Vec<u8> {
    let mut all = Vec::new();
    while !connection.out().is_empty() {
        let mut slices = [std::io::IoSlice::new(&[])];
        connection.out().fill(&mut slices);
        all.extend_from_slice(&slices[0]);
        let len = slices[0].len();
        connection.out().advance(len);
        connection.pump();
    }
    all
}

fn http2_seeds() -> Vec<Vec<u8>> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let length = u8::try_from(payload.len()).expect("a short payload");
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    };
    let call = frame(1, 4, 1, &[0x83, 0x86, 0x84]);
    let with = |frames: &[Vec<u8>]| [&settings[..], &frames.concat()].concat();
    vec![
        with(&[call.clone(), frame(0, 1, 1, b"abc")]),
        with(&[frame(1, 5, 1, &[0x83, 0x86, 0x84]), frame(1, 5, 3, &[0x83])]),
        with(&[frame(1, 0, 1, &[0x83]), frame(9, 4, 1, &[0x86])]),
        with(&[call.clone(), frame(3, 0, 1, &[0, 0, 0, 8]), frame(8, 0, 0, &[0, 1, 0, 0])]),
        with(&[frame(4, 0, 0, &[0, 4, 0, 0, 0, 9]), frame(1, 5, 1, &[0x83]), frame(8, 0, 1, &[0, 0, 9, 9])]),
        with(&[frame(6, 0, 0, &[1; 8]), frame(7, 0, 0, &[0; 8]), frame(2, 0, 1, &[0, 0, 0, 3, 1])]),
    ]
}

/// Blocks one after the other, each with its length in front.
fn hpack(mut bytes: &[u8]) {
    let mut decoder = Decoder::default();
    while let Some((length, rest)) = bytes.split_first() {
        let (block, behind) = rest.split_at(usize::from(*length).min(rest.len()));
        let (before, mut fields) = (decoder.generation(), 0);
        if decoder.decode(block, |_, _| fields += 1).is_err() {
            return;
        }
        assert!(fields <= block.len());
        if decoder.generation() == before {
            let mut again = 0;
            decoder.decode(block, |_, _| again += 1).expect("it was understood before");
            assert_eq!(fields, again, "a block that changes nothing means the same again");
        }
        bytes = behind;
    }
}

fn hpack_seeds() -> Vec<Vec<u8>> {
    let mut block = Vec::new();
    literal(&mut block, b"content-type", b"application/grpc", true);
    literal(&mut block, b"x-own", b"value", false);
    let first = [&[u8::try_from(block.len()).expect("a short block")], &block[..], &[2, 0x88, 0xbe]].concat();
    let huffman =
        [&[13, 0x41, 0x8c][..], &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4]].concat();
    vec![first, huffman, vec![3, 0x3f, 0x01, 0x88]]
}
