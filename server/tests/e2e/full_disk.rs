//! A disk that is really full: what needs space is refused with etcd's error, everything else goes
//! on, nothing that was acknowledged is lost, and there is a way out of it.

use std::path::PathBuf;
use std::time::Duration;

use revd::disk::segments::{self, give_back_unused};
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest, PutRequest,
    RangeRequest, StatusRequest,
};
use tonic::Code;

use crate::harness::{Client, Server, SmallDisk, TempDir, run, wait_until};

/// Two segments of the log, the reserve, and some 70 MB for the store.
const DISK_BYTES: u64 = 140 << 20;
const VALUE_BYTES: usize = 32 * 1024;

fn key(number: u32) -> String {
    format!("key/{number:05}")
}

async fn put(client: &Client, number: u32) -> Result<i64, tonic::Status> {
    let value = vec![u8::try_from(number % 251).unwrap(); VALUE_BYTES];
    let request = PutRequest { key: key(number).into(), value: value.into(), ..PutRequest::default() };
    let reply = client.kv.clone().put(request).await?;
    Ok(reply.into_inner().header.unwrap().revision)
}

/// Every key of these is there, and whole.
async fn assert_all(client: &Client, numbers: std::ops::Range<u32>) {
    for number in numbers {
        let request = RangeRequest { key: key(number).into(), ..RangeRequest::default() };
        let reply = client.kv.clone().range(request).await.unwrap().into_inner();
        let value = &reply.kvs.first().unwrap_or_else(|| panic!("{} is lost", key(number))).value;
        assert_eq!(value.len(), VALUE_BYTES);
        assert!(value.iter().all(|byte| u32::from(*byte) == number % 251));
    }
}

async fn alarm(client: &Client, action: AlarmAction) -> usize {
    let own = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
    let member_id = own.header.unwrap().member_id;
    let request = AlarmRequest { action: action as i32, member_id, alarm: AlarmType::Nospace as i32 };
    client.maintenance.clone().alarm(request).await.unwrap().into_inner().alarms.len()
}

/// Puts until there is no room; how many were acknowledged.
async fn fill(client: &Client, from: u32) -> u32 {
    let mut count = from;
    loop {
        match put(client, count).await {
            Ok(_) => count += 1,
            // The one that found the disk full may have waited for too
            // long; all later ones are told.
            Err(status) if status.code() == Code::Unavailable => {}
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                assert_eq!(status.message(), "etcdserver: mvcc: database space exceeded");
                return count;
            }
        }
        assert!(u64::from(count) * (VALUE_BYTES as u64) < DISK_BYTES, "the disk does not fill up");
    }
}

#[test]
fn a_full_disk_loses_nothing_and_can_be_left() {
    run(async {
        let dir = TempDir::new();
        let Some(disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else {
            assert!(std::env::var("CI").is_err(), "no file system can be mounted here");
            println!("skipped: no file system can be mounted here");
            return;
        };
        let data = dir.path().join("data");
        let mut server = Server::revd_on(&disk, &data, &[]);
        let client = server.client().await;
        let count = fill(&client, 0).await;
        println!("{count} puts of {VALUE_BYTES} bytes fit a disk of {DISK_BYTES}");
        assert!(count > 500, "only {count}");
        let is_told = || server.log().contains("the disk is full");
        wait_until(Duration::from_secs(30), is_told, || {
            "the log does not say that the disk is full".to_owned()
        });
        assert!(alarm(&client, AlarmAction::Get).await >= 1);
        assert_all(&client, 0..count).await;

        // Killed and started on the full disk it serves as before.
        server.kill();
        server.start_again();
        let client = server.client().await;
        assert_all(&client, 0..count).await;
        assert_eq!(put(&client, count).await.unwrap_err().code(), Code::ResourceExhausted);

        // The way out is etcd's: delete, compact, defragment, disarm.
        let keep = count / 4;
        let request =
            DeleteRangeRequest { key: key(keep).into(), range_end: "key0".into(), ..Default::default() };
        let reply = client.kv.clone().delete_range(request).await.unwrap().into_inner();
        assert_eq!(reply.deleted, i64::from(count - keep));
        let revision = reply.header.unwrap().revision;
        let compact = CompactionRequest { revision, physical: true };
        client.kv.clone().compact(compact).await.unwrap();
        client.maintenance.clone().defragment(DefragmentRequest {}).await.unwrap();
        let mut disarmed = 0;
        let goes_on = loop {
            alarm(&client, AlarmAction::Deactivate).await;
            disarmed += 1;
            match put(&client, keep).await {
                Ok(revision) => break revision,
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}"),
            }
            assert!(disarmed < 60, "there is room but puts are refused");
            tokio::time::sleep(Duration::from_millis(500)).await;
        };
        assert_eq!(goes_on, revision + 1);
        assert_all(&client, 0..keep + 1).await;

        // And once more.
        let count = fill(&client, keep + 1).await;
        assert_all(&client, 0..count).await;
        drop(client);
        server.stop();
        assert!(server.log().contains("\"stopped\""), "{}", server.log());
        server.start_again();
        assert_all(&server.client().await, 0..count).await;
    });
}

/// A file of another program fills the disk, and is removed again.
#[test]
fn writes_wait_for_a_disk_that_others_have_filled() {
    run(async {
        let dir = TempDir::new();
        let Some(disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else { return };
        let data = dir.path().join("data");
        let server = Server::revd_on(&disk, &data, &[]);
        let client = server.client().await;
        put(&client, 0).await.unwrap();
        let filler = disk.path(&dir.path().join("filler"));
        let mut file = std::fs::File::create(&filler).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 64 * 1024]).is_ok() {}
        let count = fill(&client, 1).await;
        assert_all(&client, 0..count).await;
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        let mut tries = 0;
        while put(&client, count).await.is_err() {
            alarm(&client, AlarmAction::Deactivate).await;
            tries += 1;
            assert!(tries < 60, "there is room but puts are refused: {}", server.log());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_all(&client, 0..count + 1).await;
    });
}

/// A member that was killed, and a disk on which others have left no room, the
/// reserve's included; the filler too.
async fn start_without_room(dir: &TempDir, disk: &SmallDisk) -> (PathBuf, PathBuf, std::fs::File) {
    let data = dir.path().join("data");
    let mut server = Server::revd_on(disk, &data, &[]);
    put(&server.client().await, 0).await.unwrap();
    server.kill();
    for room in ["reserve", "wal/spare.tmp", "wal/preparing.tmp"] {
        let _ = std::fs::remove_file(disk.path(&data.join("member").join(room)));
    }
    // Space that the start would give back is gone too.
    let wal = disk.path(&data.join("member/wal"));
    give_back_unused(&wal, &segments::read(&wal, 0).unwrap().unwrap().end).unwrap();
    let filler = disk.path(&dir.path().join("filler"));
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[1; 64 * 1024]).is_ok() {}
    (data, filler, file)
}

/// A start takes as long as it takes, here until there is room for the log, and says how far it is.
#[test]
fn a_start_waits_for_longer_than_any_call() {
    run(async {
        let dir = TempDir::new();
        let Some(disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else { return };
        let (data, filler, file) = start_without_room(&dir, &disk).await;
        let emptying = std::thread::spawn(move || {
            #[expect(
                clippy::disallowed_methods,
                reason = "longer than a call may take, whatever the machine does"
            )]
            std::thread::sleep(Duration::from_secs(10));
            drop(file);
            std::fs::remove_file(&filler).unwrap();
        });
        let server = Server::revd_on(&disk, &data, &[]);
        emptying.join().unwrap();
        assert_all(&server.client().await, 0..1).await;
        assert!(server.log().contains("applying the log before clients are served"), "{}", server.log());
    });
}

/// A start that takes long can be given up in good order at any time.
#[test]
fn a_start_that_waits_ends_when_it_is_asked_to() {
    run(async {
        let dir = TempDir::new();
        let Some(disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else { return };
        let (data, filler, file) = start_without_room(&dir, &disk).await;
        let mut server = Server::spawn_revd_on(&disk, &data, &[]);
        let waits = || server.log().contains("applying the log before clients are served");
        wait_until(Duration::from_secs(30), waits, || server.log());
        server.stop();
        assert!(server.log().contains("stopping before the log is applied"), "{}", server.log());
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        server.start_again();
        assert_all(&server.client().await, 0..1).await;
    });
}

/// A start needs no room for a whole segment: killed again and again it still
/// comes up, and the way out is open.
#[test]
fn a_start_on_a_full_disk_takes_little_of_it() {
    run(async {
        let dir = TempDir::new();
        let Some(disk) = SmallDisk::mount(dir.path(), DISK_BYTES) else { return };
        let (data, filler, file) = start_without_room(&dir, &disk).await;
        file.set_len(file.metadata().unwrap().len() - (3 << 20)).unwrap();
        for _ in 0..3 {
            let mut server = Server::revd_on(&disk, &data, &[]);
            assert_all(&server.client().await, 0..1).await;
            server.kill();
        }
        drop(file);
        std::fs::remove_file(&filler).unwrap();
        let server = Server::revd_on(&disk, &data, &[]);
        let client = server.client().await;
        let mut tries = 0;
        while put(&client, 1).await.is_err() {
            alarm(&client, AlarmAction::Deactivate).await;
            tries += 1;
            assert!(tries < 60, "there is room but puts are refused: {}", server.log());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_all(&client, 0..2).await;
    });
}
