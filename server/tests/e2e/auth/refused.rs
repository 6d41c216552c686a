//! Calls that are refused, for their bytes or for their callers: they leave nothing in the log, and
//! take no memory for what is in them.

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::{MemberAddRequest, PutRequest, StatusRequest, StatusResponse};
use tonic::Code;

use super::bugs::{must, set_up, told, unary_methods};
use super::{FLAGS, call};
use crate::harness::{Client, Server, with_etcd_beside, with_server};

const TXN: &str = "/etcdserverpb.KV/Txn";
const MEMBER_ADD: &str = "/etcdserverpb.Cluster/MemberAdd";
const MEMBER_UPDATE: &str = "/etcdserverpb.Cluster/MemberUpdate";

async fn log_index(client: &Client, root: &str) -> u64 {
    let reply = must(client, "/etcdserverpb.Maintenance/Status", &StatusRequest {}, Some(root)).await;
    StatusResponse::decode(reply).unwrap().raft_index
}

/// Bytes that are no request of any method, by root, who may make each call: all members would keep
/// them in their logs, and find out only when they apply them.
#[test]
fn bytes_that_are_no_request_do_not_come_into_the_log() {
    with_server(&FLAGS, async |_, client| {
        let (root, _) = set_up(client).await;
        let paths = unary_methods();
        let mut asked = 0;
        for path in paths.into_iter().filter(|path| !path.starts_with("/grpc.health")) {
            // A length beyond the end, a kind of field that there is none of, a cut number.
            for bytes in [&b"\x0a\x7f"[..], b"\x0a\x01a\x0f", b"\x08\x80"] {
                let bytes = Bytes::from_static(bytes);
                let mut lengths = Vec::new();
                // The member may have something of its own to write, now and then.
                for _ in 0..5 {
                    let before = log_index(client, &root).await;
                    let (code, _) = told(call(client, path, bytes.clone(), Some(&root)).await).unwrap_err();
                    assert_eq!(code, Code::Internal, "{path} {bytes:?}");
                    lengths.push(log_index(client, &root).await - before);
                    if lengths.ends_with(&[0]) {
                        break;
                    }
                }
                assert!(lengths.ends_with(&[0]), "{path} {bytes:?} came into the log");
                asked += 1;
            }
        }
        assert!(asked > 100, "only {asked} calls");
    });
}

const MESSAGE_BYTES: usize = 1_500_000;
/// Bytes that a call may take beside its message, and those of some before it.
const MEMORY: u64 = 16 << 20;

/// A field without content, over and over.
fn empty_fields(number: u8) -> Vec<u8> {
    [number << 3 | 2, 0].repeat(MESSAGE_BYTES / 2)
}

/// A field with this content.
fn around(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

/// Both answer these calls alike, and revd takes no more memory for them than for any message that
/// is as long.
async fn takes_no_memory(revd: &Server, etcd: &Server, calls: &[(&'static str, Vec<u8>, &str)]) {
    let (ours, theirs) = (revd.client().await, etcd.client().await);
    let value = Bytes::from(vec![7; MESSAGE_BYTES]);
    let put = PutRequest { key: "k".into(), value, ..PutRequest::default() }.encode_to_vec();
    for _ in 0..20 {
        let _ = call(&ours, "/etcdserverpb.KV/Put", put.clone().into(), Some("garbage")).await;
    }
    for (path, message, why) in calls {
        let before = revd.most_resident();
        for _ in 0..5 {
            let our = told(call(&ours, path, message.clone().into(), None).await);
            assert_eq!(our.as_ref().unwrap_err().1, *why, "{path}");
        }
        let taken = revd.most_resident().saturating_sub(before);
        assert!(taken < MEMORY, "{path} took {taken} bytes");
        let their = told(call(&theirs, path, message.clone().into(), None).await);
        assert_eq!(their.unwrap_err().1, *why, "{path}");
    }
}

/// A request to give a member 750,000 URLs, of a caller that is nobody.
#[test]
fn refused_calls_take_no_memory_for_what_is_in_them() {
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        set_up(&revd.client().await).await;
        set_up(&etcd.client().await).await;
        let mut broken = empty_fields(2);
        broken.push(0x0f);
        let why = "etcdserver: user name is empty";
        takes_no_memory(revd, etcd, &[(MEMBER_UPDATE, empty_fields(2), why)]).await;
        let told_of = |client| {
            let message = Bytes::from(broken.clone());
            async move { told(call(client, MEMBER_UPDATE, message, None).await).unwrap_err().0 }
        };
        let (ours, theirs) = (revd.client().await, etcd.client().await);
        assert_eq!([told_of(&ours).await, told_of(&theirs).await], [Code::Internal; 2], "as it was");
    });
}

/// Transactions of 750,000 operations, which anybody may send.
#[test]
fn transactions_of_very_many_operations_take_no_memory_for_them() {
    with_etcd_beside(&FLAGS, async |revd, etcd| {
        let flat = [1, 2, 3].map(empty_fields);
        let nested = around(2, &around(4, &flat[1]));
        let fields_of_one = around(3, &empty_fields(1));
        let why = "etcdserver: too many operations in txn request";
        let mut calls: Vec<_> = flat.into_iter().map(|message| (TXN, message, why)).collect();
        calls.push((TXN, nested, why));
        takes_no_memory(revd, etcd, &calls).await;
        // One operation whose request comes often: the last one counts for etcd.
        let refused = call(&revd.client().await, TXN, fields_of_one.into(), None).await;
        assert_eq!(refused.unwrap_err().message(), why);
    });
}

/// A request to add a member is decoded before its caller's rights are asked for, as by etcd.
#[test]
fn a_member_has_no_more_urls_than_any_has() {
    with_server(&FLAGS, async |_, client| {
        let (_, ann) = set_up(client).await;
        for (urls, why) in
            [(1_000, "etcdserver: permission denied"), (2_000, "etcdserver: given member URLs are invalid")]
        {
            let peer_ur_ls = (0..urls).map(|number| format!("http://h{number}:1")).collect();
            let add = MemberAddRequest { peer_ur_ls, is_learner: true }.encode_to_vec();
            let refused = call(client, MEMBER_ADD, add.into(), Some(&ann)).await;
            assert_eq!(refused.unwrap_err().message(), why, "{urls} URLs");
        }
    });
}
