//! A log that is damaged before its end: it is named, and never taken for a log that ends there.
//! `server/tests/wal_crash.rs` has the same with the real files.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use revd_member::cluster::Identity;
use revd_member::wal::birth::empty_log;
use revd_member::wal::layout::{Layout, LayoutConfig, LogStep};
use revd_member::wal::reader::{self, RecoveredLog};
use revd_member::wal::{BLOCK, FrameContent, HardState, LogEntry, WalError};

type Files = BTreeMap<u64, Vec<u8>>;

const CONFIG: LayoutConfig =
    LayoutConfig { segment_bytes: 5 * BLOCK as u64, first_segment_bytes: 5 * BLOCK as u64, secret: 7 };

/// Frames of one entry each, in segments of a few.
fn log(frames: u64) -> Files {
    let mut files = Files::new();
    let mut layout = Layout::new(CONFIG, &empty_log(Identity { cluster: 1, member: 2 }));
    append(&mut files, &mut layout, 2..2 + frames);
    files
}

fn append(files: &mut Files, layout: &mut Layout, indexes: std::ops::Range<u64>) {
    for index in indexes {
        let entries = vec![LogEntry { index, term: 1, kind: 0, data: Bytes::from_static(b"data") }];
        let hard_state = Some(HardState { term: 1, vote: 2, commit: index - 1 });
        for step in layout.append(&FrameContent { hard_state, entries, ..FrameContent::default() }) {
            match step {
                LogStep::Create { segment, bytes } => {
                    files.insert(segment, vec![0; usize::try_from(bytes).unwrap()]);
                }
                LogStep::Write { segment, offset, bytes } => {
                    let at = usize::try_from(offset).unwrap();
                    files.get_mut(&segment).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
    }
}

fn read(files: &Files) -> Result<Option<RecoveredLog>, WalError> {
    let files: Vec<_> = files.iter().map(|(number, bytes)| (*number, Bytes::from(bytes.clone()))).collect();
    reader::assemble(Path::new("wal"), &files)
}

/// Rows 17 and 23 (FAST 2018, ZooKeeper): damage in the middle was taken for a torn end, and a file
/// that is missing was passed over.
#[test]
fn damage_in_the_middle_of_the_log_is_named() {
    let good = log(14);
    let whole = read(&good).unwrap().unwrap();
    assert_eq!((whole.last(), good.len()), (15, 4));
    for (number, bytes) in &good {
        for at in (0..bytes.len()).step_by(BLOCK) {
            let mut bad = good.clone();
            bad.get_mut(number).unwrap()[at + 50] ^= 4;
            // The last frame may have been cut short, and nothing was written behind it.
            let is_end = *number == whole.end.segment && at as u64 + BLOCK as u64 >= whole.end.offset;
            match read(&bad) {
                Ok(log) => assert!(is_end && log.unwrap().last() >= 14, "{at} of segment {number}"),
                Err(error) => assert!(!is_end && matches!(error, WalError::Damaged { .. }), "{error}"),
            }
        }
    }
    let numbers: Vec<u64> = good.keys().copied().collect();
    for number in &numbers[1..numbers.len() - 1] {
        let mut bad = good.clone();
        bad.remove(number);
        assert!(matches!(read(&bad), Err(WalError::Gap { missing, .. }) if missing == *number));
    }
}

/// A crash has torn the first frame behind the header of the last segment.
#[test]
fn a_log_goes_on_behind_a_segment_that_has_its_header_alone() {
    let mut files = log(14);
    let whole = read(&files).unwrap().unwrap();
    let behind = usize::try_from(whole.end.offset).unwrap() / BLOCK - 1;
    assert!(behind > 0, "{:?}", whole.end);
    files.get_mut(&whole.end.segment).unwrap()[BLOCK..].fill(0);
    let torn = read(&files).unwrap().unwrap();
    assert_eq!(torn.last(), whole.last() - behind as u64);
    assert_eq!((torn.end.segment, torn.end.offset), (whole.end.segment, BLOCK as u64));
    assert_eq!(torn.end.frame, whole.end.frame - behind as u64, "frames are counted through");
    append(&mut files, &mut Layout::new(CONFIG, &torn), torn.last() + 1..torn.last() + 6);
    let longer = read(&files).unwrap().unwrap();
    assert_eq!(longer.last(), torn.last() + 5);
    assert!(longer.entries.iter().map(|entry| entry.index).eq(2..=longer.last()));
}
