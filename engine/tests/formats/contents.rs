//! All that a store holds, as text. As `script.rs`, this is run by older versions too.

use std::fmt::Write as _;

use revd_engine::mvcc::{Direction, HashKv, KeyRange, Reader, SmallTable, Store, StoredRecord, View};

/// Everything that a caller can see: numbers, rows, each revision that is kept with the hash of its
/// keys and values, and the keys of the newest and of the oldest one.
pub(crate) fn contents(store: &mut Store) -> String {
    let (mut out, view) = (String::new(), store.view());
    let (applied, hash) = (store.applied(), store.state_hash());
    writeln!(
        out,
        "applied {} of term {}, state hash {:016x} since {}",
        applied.index, applied.term, hash.value, hash.since
    )
    .unwrap();
    let tables = [
        SmallTable::Members,
        SmallTable::Cluster,
        SmallTable::Alarms,
        SmallTable::Leases,
        SmallTable::LeaseKeys,
    ];
    for table in tables {
        for (key, row) in store.saved_rows(table).unwrap() {
            writeln!(out, "{table:?} {} = {}", shown(&key), shown(&row)).unwrap();
        }
    }
    let reader = view.reader();
    let (newest, compacted) = (reader.revision(), reader.compact_revision());
    writeln!(out, "revision {newest}, compacted at {compacted}").unwrap();
    if compacted > 1 {
        assert!(reader.resolve(compacted - 1).is_err(), "{} can be read", compacted - 1);
    }
    for at in compacted.max(1)..=newest {
        let count = reader.count(KeyRange::ALL, at);
        writeln!(out, "{at}: {count} keys, {:08x}", hash_kv(&view, at)).unwrap();
    }
    for at in [compacted.max(1), newest] {
        writeln!(out, "keys at {at}: create, change, version, lease").unwrap();
        keys(&mut out, reader, at);
    }
    out
}

fn keys(out: &mut String, reader: Reader<'_>, at: i64) {
    for (key, meta) in reader.scan(KeyRange::ALL, at, Direction::Forward) {
        let record = StoredRecord::parse(reader.record(meta.modified).unwrap()).unwrap();
        let (revision, stamp) = (meta.modified, record.stamp);
        assert_eq!(
            (record.key, stamp.mod_revision, stamp.version),
            (&key.to_vec()[..], revision.main, meta.version)
        );
        assert_eq!(stamp.create_revision, meta.create_revision);
        let (created, version, lease) = (meta.create_revision, meta.version, stamp.lease);
        let value = shown(record.value);
        writeln!(
            out,
            "{} = {value}: {created} {}.{} {version} {lease}",
            shown(record.key),
            revision.main,
            revision.sub
        )
        .unwrap();
    }
}

fn hash_kv(view: &View, at: i64) -> u32 {
    let mut hash = HashKv::new(view.clone(), at).unwrap();
    std::iter::repeat_with(|| hash.step(1_000).unwrap()).flatten().next().unwrap().hash
}

/// Long ones by their beginning, length and checksum.
fn shown(bytes: &[u8]) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match bytes.len() {
        0..=40 => text(bytes),
        len => format!("{}... {len} bytes {:08x}", text(&bytes[..12]), crc32c::crc32c(bytes)),
    }
}
