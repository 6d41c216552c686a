//! Starting, stopping, and what is refused.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use revd_proto::etcdserverpb::{MemberListRequest, PutRequest, RangeRequest, StatusRequest};

use crate::harness::{Server, TempDir, free_address, run, with_restartable_server, with_server};

fn revd(args: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_revd")).args(args).env_clear().output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8(text).unwrap())
}

/// The same as a server on this address.
fn start(data_dir: &Path, url: &str) -> (i32, String) {
    let data_dir = data_dir.to_str().unwrap();
    let peers = ["--listen-peer-urls", "http://127.0.0.1:0"];
    revd(
        &[&["--data-dir", data_dir, "--listen-client-urls", url, "--advertise-client-urls", url], &peers[..]]
            .concat(),
    )
}

fn put(key: &str) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: "v".into(), ..PutRequest::default() }
}

#[test]
fn a_stop_is_graceful_and_the_next_start_has_everything() {
    run(async {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        for cores in ["1", "2", "6"] {
            let mut server = Server::revd(&data, &["--cores", cores]);
            let client = server.client().await;
            client.kv.clone().put(put(&format!("with {cores} cores"))).await.unwrap();
            let status = server.stop();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15), "as etcd ends");
            assert!(server.log().contains("ready to serve client requests"));
        }
        assert_eq!(std::fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
        let server = Server::revd(&data, &[]);
        let client = server.client().await;
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
        assert_eq!(client.kv.clone().range(all).await.unwrap().into_inner().count, 3);
    });
}

#[test]
fn a_second_process_on_the_same_data_is_refused() {
    with_server(&[], async |first, _| {
        let (code, text) = start(first.data_dir(), &format!("http://{}", free_address()));
        assert_eq!(code, 1);
        assert!(text.contains("another process uses the data directory"), "{text}");
    });
}

#[test]
fn a_taken_port_is_named() {
    with_server(&[], async |first, _| {
        let (code, text) = start(&first.data_dir().with_file_name("second"), &first.endpoint());
        assert_eq!(code, 1);
        let names_it = text.contains(&first.address.to_string()) && text.contains("--listen-client-urls");
        assert!(names_it, "{text}");
    });
}

#[test]
fn data_of_an_etcd_is_left_alone() {
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.path().join("member/snap")).unwrap();
    let (code, text) = revd(&["--data-dir", dir.path().to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.contains("holds the data of an etcd"), "{text}");
}

#[test]
fn a_missing_log_is_refused() {
    with_restartable_server(&[], async |server, _| {
        server.stop();
        std::fs::remove_dir_all(server.data_dir().join("member/wal")).unwrap();
        let (code, text) = revd(&["--data-dir", server.data_dir().to_str().unwrap()]);
        assert_eq!(code, 1);
        assert!(text.contains("holds no log"), "{text}");
    });
}

/// The first touch of a huge page would take milliseconds of a turn (decision 0022).
#[test]
fn the_heap_has_no_huge_pages() {
    with_server(&[], async |server, _| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
        assert_eq!(line.expect("Linux 5.0 or newer").trim(), "0");
    });
}

#[test]
fn versions_help_and_slips() {
    let (code, text) = revd(&["--version"]);
    assert_eq!(code, 0);
    assert!(text.starts_with("etcd Version: 3.7.1\n") && text.contains("revd Version: "), "{text}");
    let (code, text) = revd(&["--help"]);
    assert!(code == 0 && text.contains("--data-dir"));
    let (code, text) = revd(&["--data-dri", "x"]);
    assert_eq!(code, 2);
    assert!(text.contains("did you mean --data-dir?"), "{text}");
}

/// With a retention of a second, the first revisions are gone after a
/// second or two, and the newest stays.
#[test]
fn old_revisions_are_compacted_by_themselves() {
    with_server(&["--auto-compaction-retention", "1s"], async |_, client| {
        let mut kv = client.kv.clone();
        let mut newest = 0;
        loop {
            newest = kv.put(put("k")).await.unwrap().into_inner().header.unwrap().revision.max(newest);
            let old = RangeRequest { key: "k".into(), revision: 2, ..RangeRequest::default() };
            match kv.range(old).await {
                Ok(_) => assert!(newest < 100_000, "nothing was ever compacted"),
                Err(status) => {
                    assert_eq!(status.message(), "etcdserver: mvcc: required revision has been compacted");
                    break;
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let now = RangeRequest { key: "k".into(), revision: newest, ..RangeRequest::default() };
        assert_eq!(kv.range(now).await.unwrap().into_inner().kvs[0].mod_revision, newest);
    });
}

#[test]
fn a_member_knows_itself() {
    with_server(&["--name", "alice", "--initial-cluster-token", "t"], async |server, client| {
        let list = client.cluster.clone().member_list(MemberListRequest { linearizable: true }).await;
        let list = list.unwrap().into_inner();
        let header = list.header.unwrap();
        assert_eq!(header.revision, 0, "as etcd's");
        assert_eq!(list.members.len(), 1);
        assert_eq!(list.members[0].id, header.member_id);
        assert_eq!(list.members[0].name, "alice");
        assert_eq!(list.members[0].client_ur_ls, [server.endpoint()]);
        let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.leader, header.member_id);
        assert_eq!((status.version.as_str(), status.storage_version.as_str()), ("3.7.1", "3.7.0"));
        assert!(status.raft_applied_index > 0 && status.raft_applied_index <= status.raft_index);
        assert!(status.db_size > 0 && status.db_size_in_use <= status.db_size);
        assert_eq!(status.db_size_quota, 2 * 1024 * 1024 * 1024);
    });
}

/// Addresses for the tree file, of the process with this number.
fn mapped_bytes(pid: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with("/tree.revd")).expect("the tree file is mapped");
    let (first, last) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    address(last) - address(first)
}

/// A process with few addresses maps its file with less room to grow, and has others for memory.
#[test]
fn a_limit_of_addresses_leaves_most_of_them_for_memory() {
    run(async {
        let dir = TempDir::new();
        for (limit, expected) in [("unlimited", 128 << 30), ("17179869184", 4 << 30)] {
            let server = Server::revd_limited(&format!("--as={limit}"), &dir.path().join("data"), &[]);
            assert_eq!(mapped_bytes(server.pid()), expected, "limit {limit}");
            let client = server.client().await;
            let value = vec![b'v'; 100_000];
            for number in 0..100 {
                let key = format!("{number}").into_bytes();
                let put =
                    PutRequest { key: key.into(), value: value.clone().into(), ..PutRequest::default() };
                client.kv.clone().put(put).await.unwrap();
            }
            let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
            assert_eq!(client.kv.clone().range(all).await.unwrap().into_inner().count, 100);
        }
    });
}
