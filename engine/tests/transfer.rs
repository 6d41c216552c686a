//! A saved state is streamed while its store goes on, and a new store is made of the stream: it
//! equals the old one at that index, and goes on as it does. Anything else than such a stream is
//! refused.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::sync::Arc;

use revd_engine::Error;
use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::limits::TRANSFER_CHUNK_BYTES;
use revd_engine::mvcc::verify::verify;
use revd_engine::mvcc::{
    Applied, CheckpointKind, Direction, HashKv, KeyRange, Revision, SavedState, SmallTable, Store,
    StoreBuilder, View,
};
use revd_engine::random::Random;

const TABLES: [SmallTable; 5] =
    [SmallTable::Members, SmallTable::Cluster, SmallTable::Alarms, SmallTable::Leases, SmallTable::LeaseKeys];

fn open(disk: &SimDisk, page_bytes: u32) -> Store {
    let options = DbOptions { page_bytes_if_new: page_bytes };
    let store = Store::open(Arc::new(disk.clone()), options).unwrap();
    check(store.db().unwrap()).unwrap();
    verify(&store).unwrap();
    store
}

fn key(random: &mut Random) -> Vec<u8> {
    match random.below(12) {
        // Longer than a key of a small page may be.
        0 => vec![b'x'; 70 + usize::try_from(random.below(3)).unwrap()],
        n => format!("k{}", n * 30 + random.below(30)).into_bytes(),
    }
}

/// Applies one entry.
fn change(store: &mut Store, random: &mut Random) {
    let index = store.applied().index + 1;
    match random.below(20) {
        0 => drop(store.compact(store.revision() - i64::try_from(random.below(30)).unwrap())),
        n if n < 4 => {
            let table = TABLES[usize::try_from(random.below(5)).unwrap()];
            let row = [u8::try_from(random.below(9)).unwrap()];
            match random.below(3) {
                0 => store.table_remove(table, &row),
                _ => store.table_put(table, &row, &index.to_le_bytes()),
            }
        }
        n => {
            let mut txn = store.begin();
            for _ in 0..=random.below(n / 4) {
                let key = key(random);
                match random.below(6) {
                    0 => drop(txn.delete_range(KeyRange::from_wire(&key, &[]))),
                    len => {
                        let len = [0, 3, 64, 900, 3_000][usize::try_from(len).unwrap() - 1];
                        txn.put(&key, &vec![b'v'; len], 0);
                    }
                }
            }
            txn.commit();
        }
    }
    store.set_applied(Applied { index, term: 1 + index / 50 });
}

fn save(store: &mut Store, kind: CheckpointKind) {
    if let Some(checkpoint) = store.checkpoint(kind) {
        store.finish_checkpoint(checkpoint.write().unwrap());
    }
}

fn chunks_of(state: &SavedState) -> Vec<Vec<u8>> {
    let (mut stream, mut chunks, mut chunk) = (state.stream(), Vec::new(), Vec::new());
    while stream.next_chunk(&mut chunk).unwrap() {
        assert!(chunk.len() <= TRANSFER_CHUNK_BYTES);
        chunks.push(chunk.clone());
    }
    chunks
}

fn build(disk: &SimDisk, chunks: &[Vec<u8>]) -> Result<(), Error> {
    let mut builder = StoreBuilder::new(Arc::new(disk.clone()))?;
    for chunk in chunks {
        builder.add(chunk)?;
    }
    builder.finish()
}

fn hash(view: &View, at: i64) -> u32 {
    let mut hash = HashKv::new(view.clone(), at).unwrap();
    std::iter::repeat_with(|| hash.step(1_000).unwrap()).flatten().next().unwrap().hash
}

/// Everything that a reader can ask.
fn assert_equal(old: &View, new: &View) {
    assert_eq!((old.applied(), old.revision()), (new.applied(), new.revision()));
    assert_eq!(old.compact_revision(), new.compact_revision());
    for at in old.compact_revision().max(1)..=old.revision() {
        let read = |view: &View| -> Vec<_> {
            let reader = view.reader();
            let keys = reader.scan(KeyRange::ALL, at, Direction::Forward);
            keys.map(|(key, meta)| (key.to_vec(), meta, reader.record(meta.modified).unwrap().to_vec()))
                .collect()
        };
        assert_eq!(read(old), read(new), "at {at}");
        // The hash of a compaction is not in the file, as with a restart.
        if at > old.compact_revision() {
            assert_eq!(hash(old, at), hash(new, at), "hash at {at}");
        }
    }
    let since = |view: &View| {
        let mut records = Vec::new();
        let after = Revision { main: view.compact_revision() - 1, sub: i64::MAX };
        let each = view.reader().each_record_after(after, |key, record| {
            records.push((key, record.to_vec()));
            Ok(true)
        });
        each.map(|()| records).unwrap()
    };
    assert_eq!(since(old), since(new), "the records a watcher can ask for");
}

#[test]
fn a_store_made_of_a_stream_equals_the_old_one_and_goes_on_as_it_does() {
    let mut largest = 0;
    for seed in 1..=6_u64 {
        let mut random = Random::new(seed);
        let page_bytes = if seed % 2 == 0 { 512 } else { 4096 };
        let mut old = open(&SimDisk::new(), page_bytes);
        assert!(old.saved_state().is_none(), "nothing was saved yet");
        for round in 1..200 {
            change(&mut old, &mut random);
            if random.below(10) == 0 {
                save(&mut old, CheckpointKind::Auto);
            }
            if round % 60 != 0 {
                continue;
            }
            // Whether a compaction or a sweep is under way is left to the seed.
            save(&mut old, CheckpointKind::Auto);
            let (state, view) = (old.saved_state().unwrap(), old.view());
            let rows = TABLES.map(|table| old.saved_rows(table).unwrap());
            assert_eq!(TABLES.map(|table| state.rows(table).unwrap()), rows);
            // The store goes on before and while the stream is read.
            let (mut stream, mut chunk) = (state.stream(), Vec::new());
            assert_eq!((state.applied(), state.revision()), (view.applied(), view.revision()));
            drop(state);
            let disk = SimDisk::new();
            let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
            let mut goes_on = random.clone();
            loop {
                change(&mut old, &mut goes_on);
                save(&mut old, CheckpointKind::WithIndex);
                if !stream.next_chunk(&mut chunk).unwrap() {
                    break;
                }
                builder.add(&chunk).unwrap();
                assert_eq!(builder.applied(), Some(view.applied()));
            }
            assert!(builder.is_whole());
            builder.finish().unwrap();
            largest = largest.max(disk.bytes().len());
            let mut new = open(&disk, 8192);
            assert_equal(&view, &new.view());
            assert_eq!(TABLES.map(|table| new.saved_rows(table).unwrap()), rows);
            // The same entries follow in both.
            while new.applied().index < old.applied().index {
                change(&mut new, &mut random);
                if random.clone().below(3) == 0 {
                    save(&mut new, CheckpointKind::Auto);
                }
            }
            while old.compaction_pending() || new.compaction_pending() {
                save(&mut old, CheckpointKind::WithIndex);
                save(&mut new, CheckpointKind::WithIndex);
            }
            assert_equal(&old.view(), &new.view());
            check(new.db().unwrap()).unwrap();
            save(&mut new, CheckpointKind::Auto);
            verify(&open(&disk, 512)).unwrap();
            old = new;
        }
    }
    assert!(largest > TRANSFER_CHUNK_BYTES, "{largest} bytes were one chunk");
}

/// Values and rows of every length around that of a chunk, and several chunks long.
#[test]
fn rows_are_cut_wherever_a_chunk_ends() {
    let mut store = open(&SimDisk::new(), 4096);
    for len in [0, 1, 50_000, TRANSFER_CHUNK_BYTES - 40, TRANSFER_CHUNK_BYTES, 1_000_000, 2_000, 131_000] {
        let mut txn = store.begin();
        txn.put(format!("key {len}").as_bytes(), &vec![b'v'; len], 0);
        txn.commit();
        store.set_applied(Applied { index: store.applied().index + 1, term: 1 });
        save(&mut store, CheckpointKind::Auto);
    }
    let state = store.saved_state().unwrap();
    let chunks = chunks_of(&state);
    assert!(chunks.len() > 10);
    let disk = SimDisk::new();
    build(&disk, &chunks).unwrap();
    assert_equal(&store.view(), &open(&disk, 512).view());
    let pages = disk.bytes().len() as u64;
    assert_eq!(pages, open(&disk, 512).sizes().in_use, "no page of the new file is free");
    assert!(
        (pages..2 * pages).contains(&state.bytes()),
        "{} bytes were said, {pages} it takes",
        state.bytes()
    );
}

/// A saved store, of so many chunks at least.
fn saved(chunks_min: usize) -> Vec<Vec<u8>> {
    let mut store = open(&SimDisk::new(), 512);
    let mut random = Random::new(7);
    loop {
        (0..60).for_each(|_| change(&mut store, &mut random));
        save(&mut store, CheckpointKind::WithIndex);
        let chunks = chunks_of(&store.saved_state().unwrap());
        if chunks.len() >= chunks_min {
            return chunks;
        }
    }
}

#[test]
fn a_damaged_stream_is_refused() {
    let chunks = saved(4);
    let refused = |chunks: &[Vec<u8>], what: &str| {
        let disk = SimDisk::new();
        let error = build(&disk, chunks).unwrap_err();
        assert!(matches!(error, Error::Stream(_)), "{what}: {error}");
        assert!(!error.is_fatal());
    };
    build(&SimDisk::new(), &chunks).unwrap();
    let mut random = Random::new(1);
    for at in 0..chunks.len() {
        for _ in 0..20 {
            let mut damaged = chunks.clone();
            let bit = usize::try_from(random.below(damaged[at].len() as u64 * 8)).unwrap();
            damaged[at][bit / 8] ^= 1 << (bit % 8);
            refused(&damaged, &format!("bit {bit} of chunk {at}"));
        }
        let mut cut = chunks.clone();
        cut[at].pop();
        refused(&cut, "a chunk too short");
        refused(&chunks[..at], "the last chunks are missing");
        refused(&[&chunks[..at], &chunks[at + 1..]].concat(), "a chunk is missing");
        refused(&[&chunks[..=at], &chunks[at..]].concat(), "a chunk comes twice");
    }
    let mut swapped = chunks.clone();
    swapped.swap(1, 2);
    refused(&swapped, "two chunks are swapped");
    refused(&[&chunks[..], &[vec![0; 4]]].concat(), "an empty chunk");
    refused(&[vec![1, 2]], "not even a checksum");
    refused(&[vec![0; TRANSFER_CHUNK_BYTES + 1]], "a chunk too long");
    // After an error nothing is taken any more.
    let mut builder = StoreBuilder::new(Arc::new(SimDisk::new())).unwrap();
    builder.add(&chunks[1]).unwrap_err();
    assert!(matches!(builder.add(&chunks[0]), Err(Error::Poisoned)));
    assert!(matches!(builder.finish(), Err(Error::Poisoned)));
    assert!(StoreBuilder::new(Arc::new(SimDisk::from_bytes(vec![0]))).is_err(), "not on an old file");
}

/// The checksums are right and what they cover is not: no panic, no endless loop, and a store that
/// opens can be saved and read.
#[test]
fn forged_streams_never_panic() {
    let stream: Vec<u8> = saved(1).iter().flat_map(|chunk| chunk[4..].to_vec()).collect();
    let sealed = |stream: &[u8]| -> Vec<Vec<u8>> {
        let mut crc = 0;
        let seal = |bytes: &[u8]| {
            let mut hasher = crc32fast::Hasher::new_with_initial(crc);
            hasher.update(bytes);
            crc = hasher.finalize();
            [&crc.to_le_bytes()[..], bytes].concat()
        };
        stream.chunks(TRANSFER_CHUNK_BYTES - 4).map(seal).collect()
    };
    build(&SimDisk::new(), &sealed(&stream)).unwrap();
    let (mut random, mut built) = (Random::new(3), 0);
    for round in 0..300_u64 {
        let mut forged = stream.clone();
        for _ in 0..=random.below(3) {
            // The head more often than the rest.
            let end = if round % 3 == 0 { 200 } else { forged.len() as u64 };
            let at = usize::try_from(random.below(end)).unwrap();
            forged[at] = u8::try_from(random.below(256)).unwrap();
        }
        if round % 7 == 0 {
            forged.truncate(usize::try_from(random.below(forged.len() as u64)).unwrap());
        }
        let disk = SimDisk::new();
        if build(&disk, &sealed(&forged)).is_err() {
            continue;
        }
        built += 1;
        let Ok(mut store) = Store::open(Arc::new(disk.clone()), DbOptions::default()) else { continue };
        let view = store.view();
        let reader = view.reader();
        for (_, meta) in reader.scan(KeyRange::ALL, i64::MAX, Direction::Forward).take(200) {
            let _ = reader.record(meta.modified);
        }
    }
    assert!(built > 50, "only {built} forged streams were taken");
}

/// The file that a crash leaves before `finish` has returned opens as a store without anything, or
/// as the whole one, or not at all; never as a part.
#[test]
fn a_crash_while_the_file_is_made_leaves_nothing_or_everything() {
    let (chunks, mut random) = (saved(4), Random::new(9));
    let disk = SimDisk::new();
    let mut builder = StoreBuilder::new(Arc::new(disk.clone())).unwrap();
    for chunk in &chunks {
        builder.add(chunk).unwrap();
        builder.sync()().unwrap();
    }
    let applied = builder.applied().unwrap();
    builder.finish().unwrap();
    let calls = disk.recorded();
    let (mut empty, mut whole) = (0, 0);
    for cut in 0..=calls.len() {
        for variant in 0..4 {
            let image = SimDisk::image(&calls[..cut], |_, _| match variant {
                0 => true,
                1 => false,
                _ => random.below(2) == 0,
            });
            let opened = Store::open(Arc::new(SimDisk::from_bytes(image)), DbOptions::default());
            let Ok(store) = opened else { continue };
            if store.applied() == applied {
                check(store.db().unwrap()).unwrap();
                verify(&store).unwrap();
                whole += 1;
            } else {
                assert_eq!(store.applied(), Applied::default(), "a part of the state, after {cut} calls");
                assert!(cut < calls.len(), "finish has returned");
                empty += 1;
            }
        }
    }
    assert!(empty > 4 && whole >= 4, "{empty} images were empty, {whole} whole");
}

#[test]
fn a_full_or_failing_disk_ends_the_making_of_a_file() {
    let chunks = saved(4);
    let disk = SimDisk::new();
    disk.limit(Some(200_000));
    assert!(build(&disk, &chunks).unwrap_err().is_no_space());
    for calls in 0..200 {
        let disk = SimDisk::new();
        disk.fail_after(calls);
        if build(&disk, &chunks).is_ok() {
            assert!(calls > 4);
            return;
        }
    }
    panic!("it never ends well");
}
