//! A member that lags behind `auth enable`: what is judged only where it is asked for is judged by
//! what is newest.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::downgrade_request::DowngradeAction;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AuthEnableRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserGetRequest,
    DefragmentRequest, DowngradeRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, MemberAddRequest,
    MemberListRequest, MemberListResponse, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest,
    PutRequest, RangeRequest, RangeResponse, RequestOp, StatusRequest, TxnRequest,
};
use revd_proto::v3electionpb::LeaderRequest;

use super::bugs::{PASSWORD, login, must, set_up, set_up_users};
use super::key_pairs::write_file;
use super::{FLAGS, call};
use crate::harness::{Client, Cluster, Fault, PATIENT, Product, TempDir, Way, Wiring, peers, run, within};

/// So late is what the leader says to the member that lags behind.
const LATE: Duration = Duration::from_millis(700);

/// Flags of members of which none stands for election while one lags behind, on a busy machine too.
fn patient() -> Vec<&'static str> {
    [&FLAGS[..], &PATIENT].concat()
}

/// A signed token says who its user is, and that one may be news to this member.
#[test]
fn a_user_that_a_member_does_not_know_yet_is_waited_for() {
    run(async {
        let dir = TempDir::new();
        let secret = write_file(dir.path(), "hmac", b"a secret of these three members");
        let tokens = format!("--auth-token=jwt,sign-method=HS256,priv-key={secret},ttl=10m");
        let flags = [&patient()[..], &[&tokens]].concat();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &flags).await;
        let leader = cluster.leader().await;
        let behind = (leader + 1) % 3;
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        let (root, _) = set_up(&at_leader).await;
        // It knows that rights are needed.
        must(&client, "/etcdserverpb.Cluster/MemberList", &MemberListRequest::default(), Some(&root)).await;
        let delay = Fault::Delay { least: LATE, jitter: Duration::ZERO };
        let late = cluster.network().strike(Way::between(leader, behind), delay);
        let (name, password) = ("dan".to_owned(), PASSWORD.to_owned());
        let add = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
        must(&at_leader, "/etcdserverpb.Auth/UserAdd", &add, Some(&root)).await;
        let dan = login(&at_leader, "dan").await;
        let grant = LeaseGrantRequest { id: 77, ttl: 60 };
        must(&client, "/etcdserverpb.Lease/LeaseGrant", &grant, Some(&dan)).await;
        cluster.network().relieve(late);
    });
}

/// A token that its member has yet to hear of: the limit of its user counts all the same.
#[test]
fn observers_with_a_new_token_count() {
    run(async {
        let dir = TempDir::new();
        let flags = [&patient()[..], &["--limit-user=ann=2/s,0/s"]].concat();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &flags).await;
        let leader = cluster.leader().await;
        let behind = (leader + 1) % 3;
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        let (root, _) = set_up(&at_leader).await;
        must(&client, "/etcdserverpb.Cluster/MemberList", &MemberListRequest::default(), Some(&root)).await;
        let delay = Fault::Delay { least: LATE, jitter: Duration::ZERO };
        let late = cluster.network().strike(Way::between(leader, behind), delay);
        let ann = login(&at_leader, "ann").await;
        let observers = (0..20).map(|_| {
            let (client, ann) = (client.clone(), ann.clone());
            let message = Bytes::from(LeaderRequest { name: "b".into() }.encode_to_vec());
            let observe =
                async move { call(&client, "/v3electionpb.Election/Observe", message, Some(&ann)).await };
            tokio::spawn(tokio::time::timeout(Duration::from_secs(8), observe))
        });
        let mut refused = 0;
        for told in observers.collect::<Vec<_>>() {
            let told = told.await.unwrap().ok().and_then(Result::err);
            let is_beyond = |status: tonic::Status| status.message() == "etcdserver: too many requests";
            refused += u32::from(told.is_some_and(is_beyond));
        }
        assert!(refused >= 12, "{refused} of 20");
        cluster.network().relieve(late);
    });
}

#[test]
fn a_member_that_lags_behind_auth_enable_takes_no_change_from_anybody() {
    run(async {
        let dir = TempDir::new();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &patient()).await;
        let leader = cluster.leader().await;
        let behind = (leader + 1) % 3;
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        set_up_users(&at_leader).await;
        let (list, all) = ("/etcdserverpb.Cluster/MemberList", MemberListRequest::default());
        let members = MemberListResponse::decode(must(&client, list, &all, None).await).unwrap().members;
        let id = members.iter().find(|member| member.name.ends_with(&behind.to_string())).unwrap().id;
        let delay = Fault::Delay { least: LATE, jitter: Duration::ZERO };
        let late = cluster.network().strike(Way::between(leader, behind), delay);
        must(&at_leader, "/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}, None).await;
        let urls = || vec!["http://127.0.0.1:1".to_owned()];
        let enable = DowngradeAction::Enable as i32;
        let downgrade = DowngradeRequest { action: enable, version: "3.6.0".to_owned() };
        let cancel = DowngradeRequest { action: DowngradeAction::Cancel as i32, ..Default::default() };
        let calls: [(&'static str, Vec<u8>); 7] = [
            ("/etcdserverpb.Maintenance/Defragment", DefragmentRequest {}.encode_to_vec()),
            (
                "/etcdserverpb.Cluster/MemberAdd",
                MemberAddRequest { peer_ur_ls: urls(), is_learner: true }.encode_to_vec(),
            ),
            ("/etcdserverpb.Cluster/MemberRemove", MemberRemoveRequest { id }.encode_to_vec()),
            (
                "/etcdserverpb.Cluster/MemberUpdate",
                MemberUpdateRequest { id, peer_ur_ls: urls() }.encode_to_vec(),
            ),
            ("/etcdserverpb.Cluster/MemberPromote", MemberPromoteRequest { id }.encode_to_vec()),
            ("/etcdserverpb.Maintenance/Downgrade", downgrade.encode_to_vec()),
            ("/etcdserverpb.Maintenance/Downgrade", cancel.encode_to_vec()),
        ];
        let calls = calls.map(|(path, message)| {
            let client = client.clone();
            tokio::spawn(async move { (path, call(&client, path, Bytes::from(message), None).await) })
        });
        for refused in calls {
            let (path, result) = refused.await.unwrap();
            let refused = result.map(drop).map_err(|status| status.message().to_owned());
            assert_eq!(refused, Err("etcdserver: user name is empty".to_owned()), "{path}");
        }
        cluster.network().relieve(late);
        let root = login(&at_leader, "root").await;
        must(&client, "/etcdserverpb.Maintenance/Defragment", &DefragmentRequest {}, Some(&root)).await;
        let after = must(&client, list, &all, Some(&root)).await;
        assert_eq!(MemberListResponse::decode(after).unwrap().members, members);
    });
}

const RANGE: &str = "/etcdserverpb.KV/Range";

fn get() -> RangeRequest {
    RangeRequest { key: "b".into(), ..RangeRequest::default() }
}

/// Both products, where etcd can be had.
fn products() -> impl Iterator<Item = Product> {
    [Product::Revd].into_iter().chain(peers().map(|_| Product::Etcd))
}

/// Calls that read, all at once, by what a member answers to one token: the words of refusals.
async fn read_all(client: &Client, product: Product, token: &str) -> Vec<(&'static str, Result<(), String>)> {
    let read = RequestOp { request: Some(Request::RequestRange(get())) };
    let txn = TxnRequest { success: vec![read], ..TxnRequest::default() };
    let lease = LeaseTimeToLiveRequest { id: 2, keys: true };
    let list = MemberListRequest { linearizable: true };
    let mut calls: Vec<(&'static str, Vec<u8>)> = vec![
        (RANGE, get().encode_to_vec()),
        (RANGE, RangeRequest { range_end: "c".into(), ..get() }.encode_to_vec()),
        ("/etcdserverpb.KV/Txn", txn.encode_to_vec()),
        ("/v3electionpb.Election/Leader", LeaderRequest { name: "b".into() }.encode_to_vec()),
    ];
    if product == Product::Revd {
        // Of these etcd asks for the token before it waits, or for none.
        let own = AuthUserGetRequest { name: "ann".to_owned() };
        calls.push(("/etcdserverpb.Auth/UserGet", own.encode_to_vec()));
        calls.push(("/etcdserverpb.Lease/LeaseTimeToLive", lease.encode_to_vec()));
        calls.push(("/etcdserverpb.Cluster/MemberList", list.encode_to_vec()));
        calls.push(("/etcdserverpb.Maintenance/Alarm", AlarmRequest::default().encode_to_vec()));
    }
    let calls: Vec<_> = calls
        .into_iter()
        .map(|(path, message)| {
            let (client, token) = (client.clone(), token.to_owned());
            let calling = async move { call(&client, path, Bytes::from(message), Some(&token)).await };
            (path, tokio::spawn(calling))
        })
        .collect();
    let mut answers = Vec::new();
    for (path, answer) in calls {
        let answer = answer.await.unwrap().map(drop).map_err(|status| status.message().to_owned());
        answers.push((path, answer));
    }
    answers
}

/// A token that was stolen ends with the password of its user: once that is acknowledged, no
/// member answers a linearizable read to it, however far it lags behind.
#[test]
fn a_member_that_lags_behind_the_end_of_a_token_answers_no_read_to_it() {
    for product in products() {
        run(async {
            let dir = TempDir::new();
            let cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &patient()).await;
            let leader = cluster.leader().await;
            let behind = (leader + 1) % 3;
            let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
            let (root, ann) = set_up(&at_leader).await;
            let led = PutRequest { key: "b/1".into(), ..PutRequest::default() };
            must(&at_leader, "/etcdserverpb.KV/Put", &led, Some(&root)).await;
            for (path, answer) in read_all(&client, product, &ann).await {
                assert_eq!(answer, Ok(()), "{product:?}, {path}");
            }
            let delay = Fault::Delay { least: LATE, jitter: Duration::ZERO };
            let late = cluster.network().strike(Way::between(leader, behind), delay);
            let (name, password) = ("ann".to_owned(), "another".to_owned());
            let change = AuthUserChangePasswordRequest { name, password, ..Default::default() };
            must(&at_leader, "/etcdserverpb.Auth/UserChangePassword", &change, Some(&root)).await;
            for (path, answer) in read_all(&client, product, &ann).await {
                let words = answer.expect_err(path);
                assert!(words.ends_with("etcdserver: invalid auth token"), "{product:?}, {path}: {words}");
            }
            cluster.network().relieve(late);
        });
    }
}

/// A member that does not know yet that rights are needed takes a token for what it is, once it
/// knows.
#[test]
fn a_member_that_lags_behind_auth_enable_answers_a_read_to_a_token_it_does_not_know() {
    for product in products() {
        run(async {
            let dir = TempDir::new();
            let cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &patient()).await;
            let leader = cluster.leader().await;
            let behind = (leader + 1) % 3;
            let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
            set_up_users(&at_leader).await;
            cluster.wait_until_answers(behind).await;
            let delay = Fault::Delay { least: LATE, jitter: Duration::ZERO };
            let late = cluster.network().strike(Way::between(leader, behind), delay);
            must(&at_leader, "/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}, None).await;
            let ann = login(&at_leader, "ann").await;
            let reply = must(&client, RANGE, &get(), Some(&ann)).await;
            assert_eq!(RangeResponse::decode(reply).unwrap().kvs[0].value, "secret", "{product:?}");
            cluster.network().relieve(late);
        });
    }
}

/// Only the leader and one other know that rights are needed, and the leader is gone: a change
/// that this member is asked for meanwhile waits for a leader who knows.
#[test]
fn a_member_without_a_leader_that_lags_behind_auth_enable_takes_no_change_from_anybody() {
    run(async {
        let dir = TempDir::new();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &FLAGS).await;
        let leader = cluster.leader().await;
        let (behind, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        set_up_users(&at_leader).await;
        let (list, all) = ("/etcdserverpb.Cluster/MemberList", MemberListRequest::default());
        let members = MemberListResponse::decode(must(&client, list, &all, None).await).unwrap().members;
        let id = members.iter().find(|member| member.name.ends_with(&leader.to_string())).unwrap().id;
        cluster.network().cut(leader, behind);
        must(&at_leader, "/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}, None).await;
        let root = login(&at_leader, "root").await;
        within(Duration::from_secs(30), "the member has its leader still", async || {
            let status = client.maintenance.clone().status(StatusRequest {}).await.unwrap().into_inner();
            (status.leader == 0).then_some(())
        })
        .await;
        let urls = || vec!["http://127.0.0.1:1".to_owned()];
        let cancel = DowngradeRequest { action: DowngradeAction::Cancel as i32, ..Default::default() };
        let calls: [(&'static str, Vec<u8>); 3] = [
            ("/etcdserverpb.Cluster/MemberRemove", MemberRemoveRequest { id }.encode_to_vec()),
            (
                "/etcdserverpb.Cluster/MemberUpdate",
                MemberUpdateRequest { id, peer_ur_ls: urls() }.encode_to_vec(),
            ),
            ("/etcdserverpb.Maintenance/Downgrade", cancel.encode_to_vec()),
        ];
        let calls = calls.map(|(path, message)| {
            let client = client.clone();
            tokio::spawn(async move { (path, call(&client, path, Bytes::from(message), None).await) })
        });
        // The calls are under way: then the one that knows is to lead.
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.network().cut(leader, other);
        for refused in calls {
            let (path, result) = refused.await.unwrap();
            let refused = result.map(drop).map_err(|status| status.message().to_owned());
            assert_eq!(refused, Err("etcdserver: user name is empty".to_owned()), "{path}");
        }
        let after = must(&client, list, &MemberListRequest { linearizable: true }, Some(&root)).await;
        assert_eq!(MemberListResponse::decode(after).unwrap().members, members);
    });
}
