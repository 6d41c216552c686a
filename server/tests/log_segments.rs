//! Segments of the log are made, prepared and taken away at the same time, as under large values:
//! whatever meets whatever, each segment is there under its name and holds what was written to it.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use glommio::{LocalExecutorBuilder, Placement, PoolPlacement};
use revd::disk::reserve::Reserve;
use revd::disk::segments::{self, DirDisk, DirectoryChange, remove_leftovers};
use revd::limits;
use revd::queues::sleep::sleep;
use revd_engine::random::Random;
use revd_member::cluster::Identity;
use revd_member::wal::birth::empty_log;
use revd_member::wal::disk::LogDisk as _;
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::reader::segment_name;
use revd_member::wal::writer::{FetchError, WalSeed, WalWriter};
use revd_member::wal::{BLOCK, FrameContent, LogEntry, WalError};

const SEGMENT_BYTES: u64 = 1 << 20;

fn on_a_core<F: Future<Output = ()> + 'static>(test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    let core = LocalExecutorBuilder::new(Placement::Unbound)
        .blocking_thread_pool_placement(PoolPlacement::Unbound(4))
        .spawn(|| async move {
            let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            test(dir.path().to_owned()).await;
        });
    core.unwrap().join().unwrap();
}

fn disk(dir: &Path) -> DirDisk {
    disk_behind(dir, None)
}

fn disk_behind(dir: &Path, first: Option<DirectoryChange>) -> DirDisk {
    DirDisk::new(dir.to_owned(), true, Arc::new(Reserve::new(dir.join("reserve"), 0)), first)
}

fn mark(segment: u64) -> Vec<u8> {
    vec![u8::try_from(segment % 250 + 1).unwrap(); BLOCK]
}

fn names(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A roll comes while the next segment is being prepared, and segments are let go of in between.
async fn roll_in_any_order(dir: PathBuf, seed: u64) {
    let disk = disk(&dir);
    let mut random = Random::new(seed);
    let mut live = VecDeque::new();
    for segment in 1..=60 {
        let larger = SEGMENT_BYTES + u64::from(random.below(4) == 0) * BLOCK as u64;
        let file = disk.create(segment, larger).await.unwrap();
        disk.write(&file, 0, &mark(segment)).await.unwrap();
        live.push_back(segment);
        if random.below(3) > 0 {
            disk.prepare(SEGMENT_BYTES);
        }
        while live.len() > 1 && random.below(2) == 0 {
            disk.remove(live.pop_front().unwrap(), (random.below(4) > 0).then_some(SEGMENT_BYTES));
        }
        disk.write(&file, BLOCK as u64, &mark(segment)).await.unwrap();
    }
    disk.settle().await.unwrap();
    for segment in &live {
        let bytes = std::fs::read(dir.join(segment_name(*segment))).unwrap();
        let marks = [mark(*segment), mark(*segment)].concat();
        assert!(bytes.starts_with(&marks), "segment {segment} holds something else");
    }
    let segments: Vec<_> = live.into_iter().map(segment_name).collect();
    let others: Vec<_> = names(&dir).into_iter().filter(|name| !segments.contains(name)).collect();
    assert!(others.is_empty() || others == ["spare.tmp"], "{others:?}");
}

#[test]
fn a_roll_during_a_preparation_waits_for_it() {
    for seed in 1..=6 {
        on_a_core(move |dir| roll_in_any_order(dir, seed));
    }
}

#[test]
fn a_failure_in_the_background_is_told_and_nothing_follows_it() {
    on_a_core(|dir| async move {
        let disk = disk(&dir);
        disk.create(1, SEGMENT_BYTES).await.unwrap();
        disk.create(2, SEGMENT_BYTES).await.unwrap();
        std::fs::remove_file(dir.join(segment_name(1))).unwrap();
        disk.remove(1, None);
        disk.remove(2, None);
        let failed = disk.settle().await;
        assert!(matches!(failed, Err(WalError::Io { what: "releasing", .. })));
        assert!(disk.create(3, SEGMENT_BYTES).await.is_err());
        // The thread that was asked to do it in the background comes after the caller who was told.
        for _ in 0..3 {
            assert!(disk.settle().await.is_err());
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(names(&dir), [segment_name(2)], "the log would have a gap");
    });
}

/// A read for a member that lags behind, while the log lets go of the entries, gives those that
/// were written, or none.
#[test]
fn a_segment_that_is_used_again_while_it_is_read_gives_no_other_entries() {
    on_a_core(|dir| async move {
        let owner = Identity { cluster: 1, member: 2 };
        let layout =
            LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES, secret: 7 };
        let mut writer = WalWriter::new(WalSeed { disk: disk(&dir), layout, log: empty_log(owner) });
        let entry = |index: u64| LogEntry { index, term: 1, kind: 0, data: vec![7; 100_000].into() };
        let (mut next, mut read, mut refused) = (2, 0, 0);
        for round in 0..40 {
            let low = next;
            for index in low..low + 30 {
                let frame = FrameContent { entries: vec![entry(index)], ..FrameContent::default() };
                writer.append(&frame).await.unwrap();
            }
            next = low + 30;
            let reading = glommio::spawn_local(writer.fetch(low, next, SEGMENT_BYTES));
            writer.release(next - 1);
            if round % 2 == 0 {
                writer.settle().await.unwrap();
            }
            let frame = FrameContent { entries: vec![entry(next)], ..FrameContent::default() };
            writer.append(&frame).await.unwrap();
            next += 1;
            match reading.await {
                Ok(entries) => {
                    assert!(!entries.is_empty());
                    assert!(entries.iter().zip(low..).all(|(read, index)| *read == entry(index)));
                    read += 1;
                }
                Err(error) => {
                    assert!(matches!(error, FetchError::Released(_)), "{error}");
                    refused += 1;
                }
            }
        }
        println!("{read} read, {refused} refused");
        assert!(refused > 0, "no segment was gone");
    });
}

#[test]
fn entries_that_are_damaged_are_told_from_those_that_were_released() {
    on_a_core(|dir| async move {
        let owner = Identity { cluster: 1, member: 2 };
        let layout =
            LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES, secret: 7 };
        let mut writer = WalWriter::new(WalSeed { disk: disk(&dir), layout, log: empty_log(owner) });
        let entry = |index: u64| LogEntry { index, term: 1, kind: 0, data: vec![7; 100_000].into() };
        for index in 2..32 {
            let frame = FrameContent { entries: vec![entry(index)], ..FrameContent::default() };
            writer.append(&frame).await.unwrap();
        }
        let first = dir.join(names(&dir).into_iter().find(|name| name.ends_with(".wal")).unwrap());
        let mut bytes = std::fs::read(&first).unwrap();
        bytes[50_000] ^= 1;
        std::fs::write(&first, bytes).unwrap();
        let damaged = writer.fetch(2, 3, SEGMENT_BYTES).await;
        assert!(matches!(damaged, Err(FetchError::Damaged(_))), "{damaged:?}");
        let reading = writer.fetch(2, 3, SEGMENT_BYTES);
        writer.release(31);
        writer.settle().await.unwrap();
        let released = reading.await;
        assert!(matches!(released, Err(FetchError::Released(_))), "{released:?}");
        assert!(writer.fetch(2, 3, SEGMENT_BYTES).await.unwrap().is_empty(), "it is in no segment");
    });
}

/// A start makes its first segment and reads the last one before it knows what the state holds.
#[test]
fn a_log_that_a_start_has_begun_with_is_read_as_any_other() {
    on_a_core(|dir| async move {
        assert!(segments::begin(&dir).is_none(), "there is no segment");
        assert_eq!(names(&dir), ["spare.tmp"]);
        let spare_bytes = || std::fs::metadata(dir.join("spare.tmp")).unwrap().len();
        assert_eq!(spare_bytes(), limits::FIRST_SEGMENT_BYTES);
        let layout =
            LayoutConfig { segment_bytes: SEGMENT_BYTES / 2, first_segment_bytes: SEGMENT_BYTES, secret: 7 };
        let owner = Identity { cluster: 1, member: 2 };
        let mut writer = WalWriter::new(WalSeed { disk: disk(&dir), layout, log: empty_log(owner) });
        for index in 2..32 {
            let entry = LogEntry { index, term: 1, kind: 0, data: vec![7; 100_000].into() };
            writer.append(&FrameContent { entries: vec![entry], ..FrameContent::default() }).await.unwrap();
        }
        writer.settle().await.unwrap();
        std::fs::write(dir.join("spare.tmp"), vec![0; usize::try_from(limits::SEGMENT_BYTES).unwrap()])
            .unwrap();
        let read = |begun| segments::read_behind(&dir, 20, begun).map_err(|error| error.to_string());
        let (begun, whole) = (segments::begin(&dir), read(None).unwrap().unwrap());
        assert_eq!(spare_bytes(), limits::SEGMENT_BYTES, "a whole one is taken as it is");
        assert_eq!((whole.base.0, whole.entries.len()), (20, 11));
        assert!(begun.is_some());
        assert_eq!(read(begun).unwrap().unwrap(), whole);
        // One that cannot be read, or is not there any more, is not passed over.
        let last = dir.join(names(&dir).into_iter().rfind(|name| name.ends_with(".wal")).unwrap());
        let (bytes, begun) = (std::fs::read(&last).unwrap(), segments::begin(&dir));
        std::fs::remove_file(&last).unwrap();
        assert!(read(begun).unwrap().unwrap().last() < 31);
        std::fs::create_dir(&last).unwrap();
        let begun = segments::begin(&dir);
        std::fs::remove_dir(&last).unwrap();
        std::fs::write(&last, bytes).unwrap();
        assert!(read(begun).unwrap_err().starts_with("reading"));
        // The next segment is the file that was made.
        std::fs::remove_file(dir.join("spare.tmp")).unwrap();
        drop(segments::begin(&dir));
        let number = |name: &str| std::fs::metadata(dir.join(name)).unwrap().ino();
        let spare = number("spare.tmp");
        disk(&dir).create(99, segments::first_segment_bytes(&dir)).await.unwrap();
        assert_eq!(number(&segment_name(99)), spare);
        // A file that another process has open is left to it.
        let preparing = dir.join("preparing.tmp");
        std::fs::write(&preparing, b"of another process").unwrap();
        let other = std::fs::File::open(&preparing).unwrap();
        drop(segments::begin(&dir));
        assert_eq!((other.metadata().unwrap().len(), preparing.exists()), (18, false));
    });
}

/// The log goes on behind what the start does to its directory, and learns that it failed.
#[test]
fn the_first_segment_waits_for_what_a_start_has_begun() {
    on_a_core(|dir| async move {
        let done = dir.join("done");
        let change = done.clone();
        let log = disk_behind(
            &dir,
            Some(Box::new(move || {
                std::fs::write(change, []).unwrap();
                Ok(())
            })),
        );
        assert!(!done.exists());
        log.create(1, SEGMENT_BYTES).await.unwrap();
        assert!(done.exists());
        let source = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let failure = WalError::Io { what: "giving back room in", path: dir.clone(), source: source() };
        let log = disk_behind(&dir, Some(Box::new(move || Err(failure))));
        let failed = log.create(2, SEGMENT_BYTES).await.map(drop).unwrap_err();
        assert!(failed.to_string().starts_with("giving back room in"), "{failed}");
        assert!(!names(&dir).contains(&segment_name(2)));
    });
}

#[test]
fn a_segment_that_a_dead_process_was_preparing_is_removed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for name in ["preparing.tmp", "preparing-7.tmp", "spare.tmp", "0000000000000001.wal"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    remove_leftovers(dir.path()).unwrap();
    assert_eq!(names(dir.path()), ["0000000000000001.wal", "spare.tmp"]);
}
