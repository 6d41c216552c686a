//! `revd check` and `revd inspect` on what a real run, and a killed one, has left; and on damage.

use std::path::Path;
use std::process::Command;

use revd_proto::etcdserverpb::{CompactionRequest, DeleteRangeRequest, PutRequest};

use crate::harness::{Random, Server, TempDir, run};

fn revd(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_revd")).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// Puts, deletes, a compaction; ended by a kill, so that the log has more than the tree file.
fn member(data: &Path) {
    run(async {
        let mut server = Server::revd(data, &["--name", "inspected"]);
        let client = server.client().await;
        let mut kv = client.kv.clone();
        for number in 0..300 {
            let key = format!("key/{:03}", number % 100).into();
            let value = vec![b'v'; number * 7 % 3_000].into();
            kv.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
        }
        let delete = DeleteRangeRequest { key: "key/05".into(), range_end: "key/06".into(), prev_kv: false };
        kv.delete_range(delete).await.unwrap();
        kv.compact(CompactionRequest { revision: 200, physical: true }).await.unwrap();
        kv.put(PutRequest { key: "last".into(), value: "\u{1}x".into(), ..PutRequest::default() })
            .await
            .unwrap();
        let (ok, text) = revd(&["check", data.to_str().unwrap()]);
        assert!(!ok && text.contains("a process uses"), "{text}");
        server.kill();
    });
}

#[test]
fn check_proves_and_inspect_shows_what_a_member_has_left() {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    member(&data);
    let place = data.to_str().unwrap();
    let (ok, text) = revd(&["check", place]);
    assert!(ok && text.contains("all is well"), "{text}");
    // A clean stop puts everything into the tree file.
    Server::revd(&data, &["--name", "inspected"]).stop();
    let (ok, text) = revd(&["check", place]);
    assert!(
        ok && text.contains("up to revision 303, compacted at 200") && text.contains("(91 live)"),
        "{text}"
    );
    assert!(text.contains("0 entries of the log are to be applied"), "{text}");
    let (ok, text) = revd(&["inspect", place, "--records", "--log"]);
    assert!(
        ok && text.contains("name inspected") && text.contains("put: ") && text.contains("entry: "),
        "{text}"
    );
    let (ok, text) = revd(&["inspect", place, "--records", "--json"]);
    assert!(ok);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = lines.iter().find(|line| line["key"] == "last").unwrap();
    assert_eq!(last["value"], "\\x01x");
    assert_eq!(last["revision"], serde_json::json!([303, 0]));
    assert_eq!(lines.iter().filter(|line| line["what"] == "delete").count(), 10);
}

/// Any page of the tree file that is in use and any frame of the log: found, with
/// its place, and said what to do.
#[test]
fn damage_is_found_and_named() {
    let dir = TempDir::new();
    let data = dir.path().join("data");
    member(&data);
    Server::revd(&data, &["--name", "inspected"]).stop();
    let place = data.to_str().unwrap();
    let tree = data.join("member/tree.revd");
    let good = std::fs::read(&tree).unwrap();
    let mut random = Random::new(5);
    let mut found = 0;
    for _ in 0..60 {
        let at = usize::try_from(random.below(good.len() as u64)).unwrap();
        let mut bad = good.clone();
        bad[at] ^= 1 << random.below(8);
        std::fs::write(&tree, &bad).unwrap();
        let (ok, text) = revd(&["check", place]);
        assert!(!text.contains("panicked"), "{text}");
        if !ok {
            assert!(text.contains("tree.revd") && text.contains("restore"), "{text}");
            found += 1;
        }
    }
    std::fs::write(&tree, &good).unwrap();
    println!("{found} of 60 flipped bits lay in pages that are in use");
    assert!(found > 3);
    let wal = data.join("member/wal");
    let segment = std::fs::read_dir(&wal).unwrap().map(|file| file.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|kind| kind == "wal")).min().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[4096 + 21] ^= 1; // the frame's number of the segment
    std::fs::write(&segment, bytes).unwrap();
    let (ok, text) = revd(&["check", place]);
    assert!(!ok && text.contains(".wal is damaged at offset 4096"), "{text}");
}
