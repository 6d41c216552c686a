//! Data directories that earlier versions wrote can be read by this one. `format/v1` was
//! written by a member that was killed: its log goes on behind its tree file. Zeros at
//! the ends of files are left out.

use std::path::Path;

use revd_proto::etcdserverpb::{LeaseTimeToLiveRequest, PutRequest, RangeRequest};

use crate::harness::{Client, Server, TempDir, run};

/// Version 1: files, with their lengths.
const V1: [(&str, &str, u64); 2] = [
    ("tree.revd", "member/tree.revd", 1 << 20),
    ("0000000000000001.wal", "member/wal/0000000000000001.wal", 16 << 20),
];

fn unpack(data: &Path) {
    for (name, place, bytes) in V1 {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format/v1").join(name);
        let to = data.join(place);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, &to).unwrap();
        std::fs::File::options().write(true).open(&to).unwrap().set_len(bytes).unwrap();
    }
}

async fn read(client: &Client, revision: i64) -> Vec<String> {
    let all = RangeRequest { key: vec![0].into(), range_end: vec![0].into(), revision, ..Default::default() };
    let reply = client.kv.clone().range(all).await.unwrap().into_inner();
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

#[test]
fn a_directory_of_version_1_is_read_and_written() {
    run(async {
        let dir = TempDir::new();
        let data = dir.path().join("data");
        unpack(&data);
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
        assert_eq!(read(&client, 0).await, expected);
        assert_eq!(read(&client, 4).await, ["first = two: 2 3 2", "gone = soon: 4 4 1"]);
        let compacted = RangeRequest { key: "first".into(), revision: 2, ..RangeRequest::default() };
        assert!(client.kv.clone().range(compacted).await.unwrap_err().message().contains("compacted"));
        let request = RangeRequest { key: "leased".into(), ..RangeRequest::default() };
        let lease = client.kv.clone().range(request).await.unwrap().into_inner().kvs[0].lease;
        let request = LeaseTimeToLiveRequest { id: lease, keys: true };
        let lease = client.lease.clone().lease_time_to_live(request).await.unwrap().into_inner();
        assert_eq!((lease.granted_ttl, lease.keys), (1_000_000_000, vec!["leased".into()]));

        let put = PutRequest { key: "first".into(), value: "four".into(), ..PutRequest::default() };
        client.kv.clone().put(put).await.unwrap();
        server.kill();
        server.start_again();
        let client = server.client().await;
        assert_eq!(read(&client, 0).await[2], "first = four: 2 13 4");
    });
}
