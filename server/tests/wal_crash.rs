//! The log after a crash at any point of any write: the real writer writes, and from what it
//! leaves on disk before and after each frame every image is made that a crash in between could
//! leave: each prefix of the frame's sectors, random subsets of them, and files that were made but
//! not yet filled. Reading an image must give what was acknowledged, or that and the whole frame
//! that was in flight; nothing else.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use revd::clock;
use revd::disk::reserve::Reserve;
use revd::disk::segments::{self, DirDisk, give_back_unused};
use revd_engine::random::Random;
use revd_member::cluster::Identity;
use revd_member::wal::birth::empty_log;
use revd_member::wal::disk::LogDisk as _;
use revd_member::wal::frame::{self, FRAME_HEADER, FrameId, SegmentHeader};
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::reader::{self, Assembly, RecoveredLog};
use revd_member::wal::writer::{WalSeed, WalWriter};
use revd_member::wal::{BLOCK, FrameContent, HardState, LogEntry, LogRestart, WalError};

const OWNER: Identity = Identity { cluster: 11, member: 22 };
const SEGMENT_BYTES: u64 = 16 * BLOCK as u64;
const SECTOR: usize = 512;

/// Segment files by number.
type Files = BTreeMap<u64, Vec<u8>>;

fn files(dir: &Path) -> Files {
    let segment = |path: &Path| u64::from_str_radix(path.file_stem()?.to_str()?, 16).ok();
    let paths = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path());
    let segments = paths.filter(|path| path.extension().is_some_and(|extension| extension == "wal"));
    segments.filter_map(|path| Some((segment(&path)?, std::fs::read(&path).unwrap()))).collect()
}

fn seed(dir: PathBuf) -> WalSeed<DirDisk> {
    let layout =
        LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES / 2, secret: 0x5EED };
    let reserve = Arc::new(Reserve::new(dir.join("reserve"), 0));
    WalSeed { disk: DirDisk::new(dir, true, reserve, None), layout, log: empty_log(OWNER) }
}

/// Frames that were acknowledged.
#[derive(Debug, Clone, PartialEq)]
struct Expected {
    hard_state: HardState,
    /// From index 2 on.
    entries: Vec<LogEntry>,
}

impl Expected {
    fn add(&mut self, frame: &FrameContent) {
        self.hard_state = frame.hard_state.unwrap_or(self.hard_state);
        if let Some(restart) = frame.restart {
            // As if all before it had been released, whatever it was.
            self.entries.clear();
            self.entries.extend((2..=restart.index).map(blank));
        }
        for entry in &frame.entries {
            self.entries.truncate(usize::try_from(entry.index).unwrap() - 2);
            self.entries.push(entry.clone());
        }
    }

    fn is(&self, found: &RecoveredLog) -> bool {
        let released = usize::try_from(found.base.0 - 1).unwrap();
        self.hard_state == found.hard_state
            && released <= self.entries.len()
            && found.entries.iter().eq(&self.entries[released..])
    }
}

/// An entry of no interest.
fn blank(index: u64) -> LogEntry {
    LogEntry { index, term: 0, kind: 0, data: Bytes::new() }
}

fn frame(random: &mut Random, expected: &Expected, released: u64) -> FrameContent {
    let mut frame = FrameContent::default();
    let mut next = 2 + expected.entries.len() as u64;
    // Now and then a new leader replaces the end of the log; what is
    // released was committed and stays.
    if random.below(10) == 0 {
        next = (next - random.below(3)).max(released + 1);
    }
    let term = 1 + random.below(3);
    // Now and then the log begins again behind the state that another member has sent; entries that
    // were not committed do not count then.
    if random.below(12) == 0 {
        let index = released + 1 + random.below(20);
        frame.restart = Some(LogRestart { index, term });
        next = index + 1;
    }
    if random.below(3) == 0 {
        frame.hard_state = Some(HardState { term, vote: random.below(3), commit: next - 1 });
    }
    for _ in 0..random.below(4) + u64::from(frame.hard_state.is_none()) {
        let size = usize::try_from(random.below(9_000)).unwrap();
        let data = Bytes::from((0..size).map(|at| u8::try_from(at * 7 % 256).unwrap()).collect::<Vec<_>>());
        frame.entries.push(LogEntry { index: next, term, kind: 0, data });
        next += 1;
    }
    frame
}

/// Entries behind `base` are read from the segments as they were written.
async fn fetch(writer: &WalWriter<DirDisk>, expected: &Expected, base: u64, random: &mut Random) {
    let last = 1 + expected.entries.len() as u64;
    if last == base {
        return;
    }
    let low = base + 1 + random.below(last - base);
    let (high, bytes_max) = (low + 1 + random.below(20), random.below(60_000));
    let entries = writer.fetch(low, high, bytes_max).await.unwrap();
    let wanted = &expected.entries[usize::try_from(low).unwrap() - 2..];
    assert!(!entries.is_empty() && wanted.starts_with(&entries), "entries {low}..{high} are not those");
    assert!(entries.last().is_some_and(|last| last.index < high));
}

fn read(dir: &Path, files: &Files) -> Result<Option<RecoveredLog>, WalError> {
    let files: Vec<_> = files.iter().map(|(number, bytes)| (*number, Bytes::from(bytes.clone()))).collect();
    let whole = reader::assemble(dir, &files);
    if let Ok(Some(log)) = &whole {
        forgets_alike(dir, &files, log);
    }
    whole
}

/// A start forgets applied entries between segments, so that they are never in memory together.
fn forgets_alike(dir: &Path, files: &[(u64, Bytes)], whole: &RecoveredLog) {
    let seed = whole.end.offset ^ (whole.end.frame << 32);
    let committed = whole.hard_state.commit.clamp(whole.base.0, whole.last());
    let applied = whole.base.0 + Random::new(seed).below(committed - whole.base.0 + 1);
    let mut assembly = Assembly::new(dir, applied);
    files.iter().for_each(|(number, bytes)| assembly.add(*number, bytes).unwrap());
    let found = assembly.finish().unwrap().unwrap();
    let mut expected = whole.clone();
    expected.forget_applied(applied);
    assert_eq!(found, expected, "with what was applied up to {applied}");
}

/// The sectors in which two states of the files differ, in the order in which they were written.
fn changed_sectors(before: &Files, after: &Files) -> Vec<(u64, usize)> {
    let mut sectors = Vec::new();
    for (number, new) in after {
        let zeros = vec![0; new.len()];
        let old = before.get(number).unwrap_or(&zeros);
        let differs = |sector: &usize| {
            let (start, end) = (sector * SECTOR, (sector + 1) * SECTOR);
            old.get(start..end) != new.get(start..end)
        };
        sectors.extend((0..new.len() / SECTOR).filter(differs).map(|sector| (*number, sector)));
    }
    sectors
}

/// Every image between two states.
fn images(before: &Files, after: &Files, random: &mut Random) -> Vec<Files> {
    let sectors = changed_sectors(before, after);
    let with = |kept: &mut dyn FnMut(usize) -> bool| {
        let mut image = before.clone();
        for (position, (number, sector)) in sectors.iter().enumerate() {
            let new = &after[number];
            let file = image.entry(*number).or_insert_with(|| vec![0; new.len()]);
            if kept(position) {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                file[range.clone()].copy_from_slice(&new[range]);
            }
        }
        image
    };
    let mut images: Vec<Files> = (0..=sectors.len()).map(|prefix| with(&mut |at| at < prefix)).collect();
    // A new segment's header is synced before anything else is written to it:
    // only frames are torn at random.
    if before.len() == after.len() {
        images.extend((0..8).map(|_| with(&mut |_| random.below(2) == 0)));
    }
    images
}

/// The write in which a crash happened lands after all.
fn land(dir: &Path, found: &RecoveredLog, before: &Files, after: &Files) {
    for (number, sector) in changed_sectors(before, after) {
        // A segment whose header was not there is made again, under the same name: another file.
        if number > found.end.segment {
            continue;
        }
        let file = std::fs::File::options().write(true).open(dir.join(reader::segment_name(number))).unwrap();
        let at = sector * SECTOR;
        file.write_all_at(&after[&number][at..at + SECTOR], at as u64).unwrap();
    }
}

/// The files a crash left are opened again by the real writer, which goes
/// on as if nothing had happened.
async fn go_on(image: &Files, found: &RecoveredLog, before: &Files, after: &Files, random: &mut Random) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (number, bytes) in image {
        std::fs::write(dir.path().join(reader::segment_name(*number)), bytes).unwrap();
    }
    give_back_unused(dir.path(), &found.end).unwrap();
    let seed = WalSeed { log: found.clone(), ..seed(dir.path().to_owned()) };
    let mut writer = WalWriter::new(seed);
    let mut expected = Expected { hard_state: found.hard_state, entries: Vec::new() };
    // As if all released entries had been one entry each of no interest.
    expected.entries.extend((2..=found.base.0).map(blank));
    expected.entries.extend(found.entries.iter().cloned());
    let lands_after = random.below(4);
    for written in 0..3 {
        let next = 2 + expected.entries.len() as u64;
        let data = Bytes::from(vec![b'x'; usize::try_from(random.below(5_000)).unwrap()]);
        let entries = vec![LogEntry { index: next, term: 9, kind: 0, data }];
        let frame = FrameContent { entries, ..FrameContent::default() };
        writer.append(&frame).await.unwrap();
        expected.add(&frame);
        if written == lands_after {
            land(dir.path(), found, before, after);
        }
        let again = segments::read(dir.path(), 0).unwrap().unwrap();
        assert!(expected.is(&again), "after a crash and {next} entries");
        fetch(&writer, &expected, found.base.0, random).await;
    }
}

async fn crash_everywhere(frames: u64) -> usize {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut random = Random::new(1);
    let mut writer = WalWriter::new(seed(dir.path().to_owned()));
    let mut expected =
        Expected { hard_state: HardState { term: 1, vote: 0, commit: 1 }, entries: Vec::new() };
    let (mut count, mut released) = (0, 1);
    for _ in 0..frames {
        let frame = frame(&mut random, &expected, released);
        let before = files(dir.path());
        writer.append(&frame).await.unwrap();
        let after = files(dir.path());
        let acknowledged = expected.clone();
        expected.add(&frame);
        fetch(&writer, &expected, frame.restart.map_or(released, |restart| restart.index), &mut random).await;
        released = released.max(frame.restart.map_or(0, |restart| restart.index));
        for (position, image) in images(&before, &after, &mut random).into_iter().enumerate() {
            count += 1;
            let found = read(dir.path(), &image);
            let Some(found) = found.unwrap_or_else(|error| panic!("image {position}: {error}")) else {
                // The very first segment's header was torn: there is no log yet.
                assert!(acknowledged.entries.is_empty(), "image {position}: the log is gone");
                continue;
            };
            assert!(acknowledged.is(&found) || expected.is(&found), "image {position} holds something else");
            if random.below(60) == 0 {
                go_on(&image, &found, &before, &after, &mut random).await;
            }
        }
        assert!(expected.is(&read(dir.path(), &after).unwrap().unwrap()), "an acknowledged frame is lost");
        if random.below(6) == 0 {
            let last = 1 + expected.entries.len() as u64;
            released = released.max(last.saturating_sub(random.below(6)));
            writer.release(released);
            writer.settle().await.unwrap();
        }
    }
    count
}

#[test]
fn a_crash_loses_nothing_acknowledged_and_keeps_nothing_torn() {
    let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(|| crash_everywhere(150)).unwrap();
    let count = core.join().unwrap();
    println!("{count} crash images");
    assert!(count > 3_000, "only {count} images");
}

/// A process that is killed as soon as it has written its first frame, or has made a
/// segment for it, again and again.
async fn start_in_vain(dir: PathBuf) {
    const SEGMENT_BYTES: u64 = 256 * BLOCK as u64;
    const STARTS: u64 = 100;
    for start in 0..STARTS {
        let log = segments::read(&dir, 0).unwrap().unwrap_or_else(|| empty_log(OWNER));
        let next = log.entries.back().map_or(log.base.0, |entry| entry.index) + 1;
        assert_eq!(next, start - start.div_ceil(3) + 2, "an entry is lost");
        give_back_unused(&dir, &log.end).unwrap();
        let WalSeed { disk, layout, .. } = seed(dir.clone());
        let segment = log.end.segment + 1;
        if start.is_multiple_of(3) {
            disk.create(segment, SEGMENT_BYTES).await.unwrap();
            continue;
        }
        let layout =
            LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES, ..layout };
        let mut writer = WalWriter::new(WalSeed { disk, layout, log });
        let entries = vec![LogEntry { index: next, term: 9, kind: 0, data: Bytes::new() }];
        writer.append(&FrameContent { entries, ..FrameContent::default() }).await.unwrap();
    }
    let bytes: usize = files(&dir).values().map(Vec::len).sum();
    let bytes_max = SEGMENT_BYTES + STARTS * 2 * BLOCK as u64;
    assert!(bytes as u64 <= bytes_max, "{bytes} bytes after {STARTS} starts");
}

#[test]
fn starts_that_come_to_nothing_leave_little() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().to_owned();
    LocalExecutorBuilder::new(Placement::Unbound).spawn(|| start_in_vain(path)).unwrap().join().unwrap();
}

/// A whole log of several segments.
fn whole_log(dir: &Path) -> Files {
    let path = dir.to_owned();
    let core = LocalExecutorBuilder::new(Placement::Unbound)
        .spawn(move || async move {
            let mut random = Random::new(77);
            let mut writer = WalWriter::new(seed(path));
            let mut expected = Expected { hard_state: HardState::default(), entries: Vec::new() };
            for _ in 0..40 {
                let frame = frame(&mut random, &expected, 1);
                writer.append(&frame).await.unwrap();
                expected.add(&frame);
            }
        })
        .unwrap();
    core.join().unwrap();
    files(dir)
}

#[test]
fn damage_before_the_end_is_named_and_never_taken_for_the_end() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let good = whole_log(dir.path());
    let whole = read(dir.path(), &good).unwrap().unwrap();
    assert!(good.len() > 3);
    let last_frame = {
        let end = usize::try_from(whole.end.offset).unwrap();
        (whole.end.segment, end)
    };
    let mut refused = 0;
    for (number, bytes) in &good {
        let used = if *number == last_frame.0 { last_frame.1 } else { bytes.len() };
        for block in 0..used / BLOCK {
            let mut bad = good.clone();
            let at = block * BLOCK + 21;
            bad.get_mut(number).unwrap()[at] ^= 0x40;
            match read(dir.path(), &bad) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(".wal") && text.contains("offset"), "{text}");
                    refused += 1;
                }
                // Zeros behind a segment's last frame; or the very last frame,
                // which looks like one cut short.
                Ok(found) => {
                    let found = found.unwrap();
                    let lost = whole.end.frame - found.end.frame;
                    assert!(
                        lost <= 1,
                        "damage in segment {number}, block {block} lost {lost} frames silently"
                    );
                    assert!(lost == 0 || *number == last_frame.0);
                }
            }
        }
        if *number != last_frame.0 && good.first_key_value().unwrap().0 != number {
            let mut bad = good.clone();
            bad.remove(number);
            assert!(matches!(read(dir.path(), &bad), Err(WalError::Gap { .. })));
        }
    }
    println!("{refused} damages refused");
    assert!(refused > 30);
}

/// A segment of these frames, and the number of the first entry it would hold next.
fn segment(number: u64, frames: std::ops::Range<u64>, first_index: u64) -> (u64, Bytes) {
    let id = |frame| FrameId { life: number * 7, segment: number, frame };
    let (hard_state, last_index) = (HardState::default(), first_index - 1);
    let header = SegmentHeader { owner: OWNER, hard_state, last_index, last_term: u64::from(last_index > 1) };
    let mut bytes = frame::encode_header(id(frames.start), &header);
    for (position, number) in frames.skip(1).enumerate() {
        let entry = LogEntry { index: first_index + position as u64, term: 1, kind: 0, data: Bytes::new() };
        bytes.extend(frame::encode(
            id(number),
            &FrameContent { entries: vec![entry], ..FrameContent::default() },
        ));
    }
    bytes.resize(8 * BLOCK, 0);
    (number, bytes.into())
}

#[test]
fn one_late_frame_counts_for_nothing_and_two_or_a_missing_one_are_damage() {
    let dir = Path::new("log");
    let read = |second: (u64, Bytes)| reader::assemble(dir, &[segment(1, 1..5, 2), second]);
    // Frames 2 to 4 hold entries 2 to 4.
    let entries = |log: RecoveredLog| log.entries.iter().map(|entry| entry.index).collect::<Vec<_>>();
    assert_eq!(entries(read(segment(2, 5..7, 5)).unwrap().unwrap()), [2, 3, 4, 5]);
    let late = read(segment(2, 4..6, 4)).unwrap().unwrap();
    assert_eq!((entries(late.clone()), late.end.frame), (vec![2, 3, 4], 6));
    for (next, index) in [(3, 3), (2, 2), (1, 2), (6, 6), (4, 5), (5, 4)] {
        let refused = read(segment(2, next..next + 2, index));
        assert!(matches!(refused, Err(WalError::Damaged { .. })), "frame {next}, entry {index}");
    }
}

/// Bytes that look like frames, each up to the file's end, are a client's own: it wrote them
/// into an earlier use of the file: no life fits, so none of it is summed up. Before, all of it
/// was, two thousand times the file.
#[test]
fn frames_that_a_client_wrote_into_a_value_cost_a_start_nothing() {
    const BLOCKS: usize = 4 * 1024;
    let (number, bytes) = segment(1, 1..5, 2);
    let mut bytes = bytes[..5 * BLOCK].to_vec();
    bytes.resize(BLOCKS * BLOCK, 0xAB);
    let content = FrameContent::default();
    for block in 5..BLOCKS {
        let at = block * BLOCK;
        let head = frame::encode(FrameId { life: 99, segment: number, frame: 9 }, &content);
        bytes[at..at + FRAME_HEADER].copy_from_slice(&head[..FRAME_HEADER]);
        let payload = u32::try_from((BLOCKS - block) * BLOCK - FRAME_HEADER).unwrap();
        bytes[at + 32..at + 36].copy_from_slice(&payload.to_le_bytes());
    }
    let bytes = Bytes::from(bytes);
    let sum_up = |_| {
        let began = clock::now();
        assert!(frame::decode(&bytes.slice(5 * BLOCK..)).is_none());
        clock::since(began)
    };
    let once = (0..5).map(sum_up).min().unwrap();
    let began = clock::now();
    let log = reader::assemble(Path::new("log"), &[(number, bytes.clone())]).unwrap().unwrap();
    let took = clock::since(began);
    assert_eq!(log.end.frame, 5);
    assert!(took < once * 200, "{took:?}, and {once:?} to sum it up once");
}
