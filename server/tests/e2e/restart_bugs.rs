//! Bugs that etcd and others had at a start after a crash, or with a disk that fails, one test
//! each; the numbers are those of the project's list of known bugs.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use revd_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, DeleteRangeRequest, PutRequest, RangeRequest,
};

use crate::harness::{Client, Random, Server, TempDir, free_address, from_env, run, with_restartable_server};

async fn put(client: &Client, key: &str) -> i64 {
    let put = PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() };
    client.kv.clone().put(put).await.unwrap().into_inner().header.unwrap().revision
}

async fn delete(client: &Client, key: &str) -> i64 {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), ..DeleteRangeRequest::default() };
    client.kv.clone().delete_range(delete).await.unwrap().into_inner().header.unwrap().revision
}

/// The revision of the member, and whether the key is there.
async fn read(client: &Client, key: &str) -> (i64, bool) {
    let range = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    let reply = client.kv.clone().range(range).await.unwrap().into_inner();
    (reply.header.unwrap().revision, reply.count > 0)
}

/// etcd #17780: a compaction removed the deletion that was the newest revision; a member that was
/// killed before the compaction was over came back with an older one.
#[test]
fn bug_005_the_revision_of_a_compacted_deletion_stays() {
    with_restartable_server(&[], async |server, mut client| {
        let mut random = Random::new(5);
        for round in 0..from_env("REVD_KILLS", 12) {
            put(&client, "k").await;
            let revision = delete(&client, "k").await;
            let physical = round % 2 == 1;
            client.kv.clone().compact(CompactionRequest { revision, physical }).await.unwrap();
            // Around the checkpoint that saves it.
            tokio::time::sleep(Duration::from_millis(random.below(150))).await;
            server.kill();
            server.start_again();
            client = server.client().await;
            assert_eq!(read(&client, "k").await, (revision, false), "round {round}");
            assert_eq!(put(&client, "k").await, revision + 1, "round {round}");
        }
    });
}

/// etcd #6633: a member of which everything was deleted and compacted found no revision at its
/// start, and refused every read as one of the future.
#[test]
fn bug_006_a_member_without_a_key_can_be_read_after_a_start() {
    with_restartable_server(&[], async |server, mut client| {
        put(&client, "k").await;
        let revision = delete(&client, "k").await;
        client.kv.clone().compact(CompactionRequest { revision, physical: true }).await.unwrap();
        for is_killed in [false, true] {
            if is_killed {
                server.kill();
            } else {
                server.stop();
            }
            server.start_again();
            client = server.client().await;
            assert_eq!(read(&client, "k").await, (revision, false));
            let at = RangeRequest { key: "k".into(), revision, ..RangeRequest::default() };
            assert_eq!(client.kv.clone().range(at).await.unwrap().into_inner().count, 0);
        }
        assert_eq!(put(&client, "k").await, revision + 1);
    });
}

/// etcd #11613: the file that a broken defragmentation had left took part in the next one.
#[test]
fn bug_011_files_that_were_left_behind_take_no_part_in_anything() {
    with_restartable_server(&[], async |server, mut client| {
        for number in 0..100 {
            put(&client, &format!("k{number}")).await;
        }
        server.kill();
        let member = server.data_dir().join("member");
        // A part of a state that is received, a whole one, and pieces of the log.
        let tree = std::fs::read(member.join("tree.revd")).unwrap();
        let half = &tree[..tree.len() / 2];
        let leftovers = ["receiving.tmp", "received.revd", "wal/preparing-0.tmp", "wal/spare.tmp"];
        for (name, content) in leftovers.iter().zip([half, &tree, half, half]) {
            std::fs::write(member.join(name), content).unwrap();
        }
        server.start_again();
        client = server.client().await;
        let revision = put(&client, "k0").await;
        client.kv.clone().compact(CompactionRequest { revision, physical: true }).await.unwrap();
        client.maintenance.clone().defragment(DefragmentRequest {}).await.unwrap();
        server.kill();
        server.start_again();
        client = server.client().await;
        let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
        let reply = client.kv.clone().range(all).await.unwrap().into_inner();
        assert_eq!((reply.header.unwrap().revision, reply.count), (102, 100));
        for name in &leftovers[..3] {
            assert!(!member.join(name).exists(), "{name} is still there");
        }
    });
}

/// The segments of a log, oldest first.
fn segments(data_dir: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(data_dir.join("member/wal")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        folder.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).collect();
    segments.sort();
    segments
}

/// Where the last frame of a segment is, as docs/FORMAT.md draws them.
fn last_frame(segment: &[u8]) -> Range<usize> {
    let (mut last, mut at) = (0..0, 0);
    while segment[at..].starts_with(b"RWAL") {
        let bytes = u32::from_le_bytes(segment[at + 32..at + 36].try_into().unwrap()) as usize;
        last = at..at + (40 + bytes).next_multiple_of(4096);
        at = last.end;
    }
    last
}

/// Bytes that the last write of a machine that lost its power may have left behind the log: the
/// beginning of a frame, cut at a sector, or sectors of anything.
fn torn(segment: &[u8], round: u64, random: &mut Random) -> Vec<u8> {
    let mut frame = segment[last_frame(segment)].to_vec();
    let number = u64::from_le_bytes(frame[24..32].try_into().unwrap());
    frame[24..32].copy_from_slice(&(number + 1).to_le_bytes());
    match round % 5 {
        0 => frame.truncate(512),
        1 => frame.truncate(3_584),
        2 => frame[32..36].copy_from_slice(&u32::MAX.to_le_bytes()),
        3 => frame[32..].fill(0),
        _ => frame.iter_mut().for_each(|byte| *byte = random.byte()),
    }
    frame
}

/// etcd #5230, #15068, #11488: a record at the end of the log that was torn, or zeros, kept a
/// member from starting after a power cut.
#[test]
fn bug_015_bug_016_a_torn_end_of_the_log_is_cut_off_and_nothing_acknowledged_with_it() {
    with_restartable_server(&[], async |server, mut client| {
        let mut random = Random::new(15);
        let mut revision = 1;
        for round in 0..from_env("REVD_KILLS", 10) {
            for key in 0..=round % 3 {
                revision = put(&client, &format!("{round}/{key}")).await;
            }
            server.kill();
            let last = segments(server.data_dir()).pop().unwrap();
            let mut bytes = std::fs::read(&last).unwrap();
            let (end, torn) = (last_frame(&bytes).end, torn(&bytes, round, &mut random));
            bytes[end..end + torn.len()].copy_from_slice(&torn);
            std::fs::write(&last, bytes).unwrap();
            server.start_again();
            client = server.client().await;
            for earlier in 0..=round {
                for key in 0..=earlier % 3 {
                    assert_eq!(read(&client, &format!("{earlier}/{key}")).await, (revision, true));
                }
            }
        }
    });
}

/// etcd #16596: a power cut during the first start left a directory that could not be started. The
/// files of this one are as far as its process was.
#[test]
fn bug_019_a_first_start_that_was_killed_anywhere_can_be_made_again() {
    run(async {
        let mut random = Random::new(19);
        for round in 0..from_env("REVD_KILLS", 12) {
            let dir = TempDir::new();
            let mut server = Server::spawn_revd(free_address(), &dir.path().join("data"), &[]);
            tokio::time::sleep(Duration::from_micros(random.below(400_000))).await;
            server.kill();
            server.start_again();
            let client = server.client().await;
            assert_eq!(put(&client, "k").await, 2, "round {round}");
        }
    });
}

/// A disk that cannot read a page of a mapped file ends its reader by a signal: here the page is
/// not in the file any more. The process ends with a line that names it, and says so to its
/// supervisor.
#[test]
fn bug_026_a_page_that_the_disk_does_not_give_is_named() {
    with_restartable_server(&[], async |server, client| {
        for number in 0..200 {
            let put = PutRequest {
                key: format!("k{number:03}").into(),
                value: vec![b'v'; 20_000].into(),
                ..PutRequest::default()
            };
            client.kv.clone().put(put).await.unwrap();
        }
        // Values are read from the file after a start.
        server.stop();
        server.start_again();
        let client = server.client().await;
        let tree = server.data_dir().join("member/tree.revd");
        std::fs::File::options().write(true).open(tree).unwrap().set_len(64 * 1024).unwrap();
        let all = RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() };
        assert!(client.kv.clone().range(all).await.is_err());
        assert_eq!(server.wait().code(), Some(1));
        let log = server.log();
        let words = "the disk does not give a page of the tree file";
        assert!(log.contains(words) && log.contains("offset"), "{log}");
    });
}
