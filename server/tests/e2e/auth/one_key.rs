//! Rights to one key, and to a few, against every form of a range that begins there: a request is
//! allowed where the right holds every key that the request is about, and refused otherwise.
//!
//! GHSA-xg4h-6gfc-h4m8, row 83: everything from a key on was taken for the key alone.

use bytes::Bytes;
use prost::Message as _;
use revd_proto::authpb::Permission;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest, AuthUserGrantRoleRequest,
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest,
};

use super::bugs::{PASSWORD, hash, login, must, set_up, watch};
use super::generator::Compared;
use super::{Answer, FLAGS, answer, call};
use crate::harness::{Client, said_of_both};

/// The right of a user, whose name is that of its role too.
struct Right {
    user: &'static str,
    reads: bool,
    writes: bool,
    key: &'static str,
    range_end: &'static str,
}

const RIGHTS: [Right; 5] = [
    Right { user: "kay", reads: true, writes: true, key: "k", range_end: "" },
    Right { user: "reader", reads: true, writes: false, key: "k", range_end: "" },
    Right { user: "writer", reads: false, writes: true, key: "k", range_end: "" },
    Right { user: "exact", reads: true, writes: true, key: "k", range_end: "k\0" },
    Right { user: "bill", reads: true, writes: true, key: "b", range_end: "c" },
];

/// The keys from the first one on, up to a key that does not belong to it, if it has an end.
type Interval = (Vec<u8>, Option<Vec<u8>>);

fn interval(key: &str, range_end: &[u8]) -> Interval {
    let end = match range_end {
        b"" => Some([key.as_bytes(), b"\0"].concat()),
        b"\0" => None,
        end => Some(end.to_vec()),
    };
    (key.into(), end)
}

fn holds(outer: &Interval, inner: &Interval) -> bool {
    let ends_within = match (&outer.1, &inner.1) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => inner <= outer,
    };
    outer.0 <= inner.0 && ends_within
}

/// One key in both forms, everything from the key on, and all keys that begin with it.
fn range_ends(key: &str) -> [Vec<u8>; 4] {
    let mut prefix_end = key.as_bytes().to_vec();
    match prefix_end.last_mut() {
        Some(last) => *last += 1,
        None => prefix_end.push(0),
    }
    [Vec::new(), vec![0], [key.as_bytes(), b"\0"].concat(), prefix_end]
}

/// Ways to ask for a range of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Range,
    Delete,
    DeleteAndShow,
    Compare,
    NestedCompare,
    NestedRange,
    NestedDelete,
    Watch,
}

const WAYS: [Way; 8] = [
    Way::Range,
    Way::Delete,
    Way::DeleteAndShow,
    Way::Compare,
    Way::NestedCompare,
    Way::NestedRange,
    Way::NestedDelete,
    Way::Watch,
];

impl Way {
    fn reads(self) -> bool {
        !matches!(self, Self::Delete | Self::NestedDelete)
    }

    fn writes(self) -> bool {
        matches!(self, Self::Delete | Self::DeleteAndShow | Self::NestedDelete)
    }

    async fn ask(self, client: &Client, (key, range_end): (&str, &[u8]), token: &str) -> Answer {
        let (key, range_end) = (Bytes::from(key.to_owned()), Bytes::copy_from_slice(range_end));
        let range =
            RangeRequest { key: key.clone(), range_end: range_end.clone(), ..RangeRequest::default() };
        let prev_kv = self == Self::DeleteAndShow;
        let delete = DeleteRangeRequest { key: key.clone(), range_end: range_end.clone(), prev_kv };
        let compare = Compare { key: key.clone(), range_end: range_end.clone(), ..Compare::default() };
        let comparing = TxnRequest { compare: vec![compare], ..TxnRequest::default() };
        let (path, message) = match self {
            Self::Range => ("/etcdserverpb.KV/Range", range.encode_to_vec()),
            Self::Delete | Self::DeleteAndShow => ("/etcdserverpb.KV/DeleteRange", delete.encode_to_vec()),
            Self::Compare => ("/etcdserverpb.KV/Txn", comparing.encode_to_vec()),
            Self::NestedCompare => nested(Request::RequestTxn(comparing)),
            Self::NestedRange => nested(Request::RequestRange(range)),
            Self::NestedDelete => nested(Request::RequestDeleteRange(delete)),
            Self::Watch => {
                let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
                let (told, _) = watch(client, create, Some(token)).await;
                assert!(told.created && told.events.is_empty(), "{told:?}");
                return if told.canceled {
                    Answer::Refused(tonic::Code::Ok, told.cancel_reason)
                } else {
                    Answer::Reply { revision: 0, body: Bytes::new() }
                };
            }
        };
        answer(call(client, path, message.into(), Some(token)).await, Compared::Whole)
    }
}

/// An operation of a transaction in a transaction.
fn nested(leaf: Request) -> (&'static str, Vec<u8>) {
    let op = |request| vec![RequestOp { request: Some(request) }];
    let inner = TxnRequest { success: op(leaf), ..TxnRequest::default() };
    let outer = TxnRequest { success: op(Request::RequestTxn(inner)), ..TxnRequest::default() };
    ("/etcdserverpb.KV/Txn", outer.encode_to_vec())
}

const KEYS: [&str; 7] = ["a", "b", "b1", "c", "k", "k1", "l"];

/// Each key has a value again.
async fn put_all(client: &Client, root: &str) {
    for key in KEYS {
        let put = PutRequest { key: key.into(), value: "secret".into(), ..PutRequest::default() };
        must(client, "/etcdserverpb.KV/Put", &put, Some(root)).await;
    }
}

/// The user of a right, and the right; the token of the user.
async fn add_user(client: &Client, root: &str, right: &Right) -> String {
    let (name, root) = (|| right.user.to_owned(), Some(root));
    let password = PASSWORD.to_owned();
    let user = AuthUserAddRequest { name: name(), password, ..AuthUserAddRequest::default() };
    must(client, "/etcdserverpb.Auth/UserAdd", &user, root).await;
    must(client, "/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name: name() }, root).await;
    let perm_type = match (right.reads, right.writes) {
        (true, true) => 2,
        (is_read, _) => i32::from(!is_read),
    };
    let perm = Some(Permission { perm_type, key: right.key.into(), range_end: right.range_end.into() });
    let grant = AuthRoleGrantPermissionRequest { name: name(), perm };
    must(client, "/etcdserverpb.Auth/RoleGrantPermission", &grant, root).await;
    let grant = AuthUserGrantRoleRequest { user: name(), role: name() };
    must(client, "/etcdserverpb.Auth/UserGrantRole", &grant, root).await;
    login(client, right.user).await
}

/// All requests in the name of one user, each answered by its right; the answers.
async fn ask_all(client: &Client, root: &str, right: &Right) -> Vec<Answer> {
    let token = add_user(client, root, right).await;
    let held = interval(right.key, right.range_end.as_bytes());
    let mut answers = Vec::new();
    for key in [right.key, &format!("{}1", right.key), "a", ""] {
        for range_end in range_ends(key) {
            for way in WAYS {
                let before = hash(client, root).await;
                let said = way.ask(client, (key, &range_end), &token).await;
                let has_kind = (right.reads || !way.reads()) && (right.writes || !way.writes());
                let is_allowed = !key.is_empty() && has_kind && holds(&held, &interval(key, &range_end));
                let is_reply = matches!(said, Answer::Reply { .. });
                let user = right.user;
                assert_eq!(is_reply, is_allowed, "{user}: {way:?} {key:?} {range_end:?}: {said:?}");
                if way.writes() && is_allowed {
                    put_all(client, root).await;
                } else {
                    let why = || format!("{user} has changed something: {way:?} {key:?} {range_end:?}");
                    assert_eq!(hash(client, root).await, before, "{}", why());
                }
                answers.push(said);
            }
        }
    }
    answers
}

#[test]
fn bug_083_a_right_to_one_key_is_none_to_those_behind_it() {
    let seen = said_of_both(&FLAGS, async |server| {
        let client = server.client().await;
        let (root, _) = set_up(&client).await;
        put_all(&client, &root).await;
        let mut seen = Vec::new();
        for right in &RIGHTS {
            seen.extend(ask_all(&client, &root, right).await);
        }
        seen
    });
    let allowed = seen.iter().filter(|said| matches!(said, Answer::Reply { .. })).count();
    // One key in its two forms: in all ways by kay and exact, in five by reader, in two by writer.
    // Two keys in three forms by bill.
    assert_eq!(allowed, (2 + 2 + 6) * 8 + 2 * 5 + 2 * 2, "{seen:?}");
}
