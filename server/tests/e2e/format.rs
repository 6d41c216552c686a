//! Data directories that earlier versions wrote can be read by this one. Those below `format` were
//! written by members that were killed: their logs go on behind their tree files. Zeros at the ends
//! of files are left out. `v1` is of the first version; `tree-5`, of 1f25e70, has users and a
//! first segment of 1 MiB (`format/write.sh`).

use std::path::Path;

use prost::Message as _;
use revd_proto::etcdserverpb::{
    AuthUserListRequest, AuthUserListResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest,
    RangeRequest, RangeResponse,
};
use tonic::{Code, Status};

use crate::harness::{Client, Server, TempDir, call, login, run};

/// Of all users of `tree-5` that have one.
const PASSWORD: &str = "correct-horse-battery";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// A directory below `format`, with as long a segment of the log.
fn unpack(folder: &str, segment: u64, data: &Path) {
    let files = [
        ("tree.revd", "member/tree.revd", 1 << 20),
        ("0000000000000001.wal", "member/wal/0000000000000001.wal", segment),
    ];
    for (name, place, bytes) in files {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format").join(folder).join(name);
        let to = data.join(place);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, &to).unwrap();
        std::fs::File::options().write(true).open(&to).unwrap().set_len(bytes).unwrap();
    }
}

async fn read(client: &Client, revision: i64, token: Option<&str>) -> Vec<String> {
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), revision, ..Default::default() };
    let reply = call(client, RANGE, all.encode_to_vec().into(), token).await.unwrap();
    let reply = RangeResponse::decode(reply).unwrap();
    let short = |bytes: &[u8]| match bytes.len() {
        0..40 => String::from_utf8_lossy(bytes).into_owned(),
        len => format!("{len} x {}", char::from(bytes[0])),
    };
    let shown = reply.kvs.iter().map(|kv| {
        let (create, modified, version) = (kv.create_revision, kv.mod_revision, kv.version);
        format!("{} = {}: {create} {modified} {version}", short(&kv.key), short(&kv.value))
    });
    shown.collect()
}

/// Revision 2 is compacted, and a key has a lease.
async fn check_compaction_and_lease(client: &Client, token: Option<&str>) {
    let compacted = RangeRequest { key: "first".into(), revision: 2, ..RangeRequest::default() };
    let refused = call(client, RANGE, compacted.encode_to_vec().into(), token).await.unwrap_err();
    assert!(refused.message().contains("compacted"), "{refused}");
    let leased = RangeRequest { key: "leased".into(), ..RangeRequest::default() };
    let leased = call(client, RANGE, leased.encode_to_vec().into(), token).await.unwrap();
    let id = RangeResponse::decode(leased).unwrap().kvs[0].lease;
    let lease = LeaseTimeToLiveRequest { id, keys: true };
    let lease = call(client, "/etcdserverpb.Lease/LeaseTimeToLive", lease.encode_to_vec().into(), token)
        .await
        .unwrap();
    let lease = LeaseTimeToLiveResponse::decode(lease).unwrap();
    assert_eq!((lease.granted_ttl, lease.keys), (1_000_000_000, vec!["leased".into()]));
}

async fn put_four(client: &Client, token: Option<&str>) {
    let put = PutRequest { key: "first".into(), value: "four".into(), ..PutRequest::default() };
    call(client, "/etcdserverpb.KV/Put", put.encode_to_vec().into(), token).await.unwrap();
}

#[test]
fn a_directory_of_version_1_is_read_and_written() {
    run(async {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        unpack("v1", 16 << 20, &data);
        let mut server = Server::revd(&data, &[]);
        let client = server.client().await;
        let long_key = "1500 x k = long-key: 8 8 1";
        let expected = [
            "after = again: 10 11 2",
            "both = at-once: 11 11 1",
            "first = three: 2 12 3",
            "half = 3000 x w: 7 7 1",
            long_key,
            "leased = here: 9 9 1",
            "long = 6000 x v: 6 6 1",
        ];
        assert_eq!(read(&client, 0, None).await, expected);
        assert_eq!(read(&client, 4, None).await, ["first = two: 2 3 2", "gone = soon: 4 4 1"]);
        check_compaction_and_lease(&client, None).await;

        put_four(&client, None).await;
        server.kill();
        server.start_again();
        let client = server.client().await;
        assert_eq!(read(&client, 0, None).await[2], "first = four: 2 13 4");
    });
}

#[test]
fn a_directory_of_tree_format_5_is_read_and_written() {
    run(async {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        unpack("tree-5", 1 << 20, &data);
        // Both slots of the tree file say so (docs/FORMAT.md).
        let tree = std::fs::read(data.join("member/tree.revd")).unwrap();
        assert_eq!([tree[8], tree[4096 + 8]], [5, 5]);
        let mut server = Server::revd(&data, &["--bcrypt-cost=4"]);
        let client = server.client().await;
        let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), ..Default::default() };
        let told = |refused: Status| (refused.code(), refused.message().to_owned());
        let refused = call(&client, RANGE, all.encode_to_vec().into(), None).await.map_err(told);
        assert_eq!(refused, Err((Code::InvalidArgument, "etcdserver: user name is empty".to_owned())));
        let ann = login(&client, "ann", PASSWORD).await;
        let refused = call(&client, RANGE, all.encode_to_vec().into(), Some(&ann)).await.map_err(told);
        assert_eq!(refused, Err((Code::PermissionDenied, "etcdserver: permission denied".to_owned())));

        let pods = RangeRequest {
            key: "/registry/".into(),
            range_end: "/registry0".into(),
            count_only: true,
            ..Default::default()
        };
        let pods = call(&client, RANGE, pods.encode_to_vec().into(), Some(&ann)).await.unwrap();
        assert_eq!(RangeResponse::decode(pods).unwrap().count, 499);

        let root = login(&client, "root", PASSWORD).await;
        // Five transactions, revisions 9 to 13; one of their keys was deleted behind them.
        let living = (100..600).filter(|number| *number != 107);
        let shown = |number| {
            let revision = number / 100 + 8;
            format!("/registry/pods/default/pod-{number} = value: {revision} {revision} 1")
        };
        let mut expected: Vec<String> = living.map(shown).collect();
        let first = expected.len() + 1;
        expected.extend(
            [
                "after = checkpoint: 15 15 1",
                "first = three: 2 14 3",
                "1500 x k = long-key: 5 5 1",
                "leased = here: 8 8 1",
                "long = 6000 x v: 4 4 1",
            ]
            .map(str::to_owned),
        );
        assert_eq!(read(&client, 0, Some(&root)).await, expected);
        let earlier = read(&client, 6, Some(&root)).await;
        assert_eq!(earlier[0], "first = two: 2 3 2");
        assert_eq!(earlier[1], "gone = soon: 6 6 1");
        check_compaction_and_lease(&client, Some(&root)).await;
        let users = AuthUserListRequest::default();
        let users = call(&client, "/etcdserverpb.Auth/UserList", users.encode_to_vec().into(), Some(&root))
            .await
            .unwrap();
        assert_eq!(AuthUserListResponse::decode(users).unwrap().users, ["ann", "bob", "root"]);

        put_four(&client, Some(&root)).await;
        server.kill();
        server.start_again();
        let client = server.client().await;
        let root = login(&client, "root", PASSWORD).await;
        expected[first] = "first = four: 2 17 4".to_owned();
        assert_eq!(read(&client, 0, Some(&root)).await, expected);
    });
}
