//! A member that lags behind `auth enable`: what is judged only where it is asked for is judged by
//! what is newest.

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use revd_proto::etcdserverpb::downgrade_request::DowngradeAction;
use revd_proto::etcdserverpb::{
    AuthEnableRequest, AuthUserAddRequest, DefragmentRequest, DowngradeRequest, LeaseGrantRequest,
    MemberAddRequest, MemberListRequest, MemberListResponse, MemberPromoteRequest, MemberRemoveRequest,
    MemberUpdateRequest,
};

use super::bugs::{PASSWORD, login, must, set_up, set_up_users};
use super::key_pairs::write_file;
use super::{FLAGS, call};
use crate::harness::{Cluster, Fault, Product, TempDir, Way, Wiring, run};

/// A signed token says who its user is, and that one may be news to this member.
#[test]
fn a_user_that_a_member_does_not_know_yet_is_waited_for() {
    run(async {
        let dir = TempDir::new();
        let secret = write_file(dir.path(), "hmac", b"a secret of these three members");
        let tokens = format!("--auth-token=jwt,sign-method=HS256,priv-key={secret},ttl=10m");
        let flags = [&FLAGS[..], &[&tokens]].concat();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &flags).await;
        let leader = cluster.leader().await;
        let behind = (leader + 1) % 3;
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        let (root, _) = set_up(&at_leader).await;
        // It knows that rights are needed.
        must(&client, "/etcdserverpb.Cluster/MemberList", &MemberListRequest::default(), Some(&root)).await;
        let delay = Fault::Delay { least: Duration::from_millis(700), jitter: Duration::ZERO };
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

#[test]
fn a_member_that_lags_behind_auth_enable_takes_no_change_from_anybody() {
    run(async {
        let dir = TempDir::new();
        let cluster = Cluster::start(Product::Revd, Wiring::Proxied, dir.path(), 3, &FLAGS).await;
        let leader = cluster.leader().await;
        let behind = (leader + 1) % 3;
        let (at_leader, client) = (cluster.client(leader), cluster.client(behind));
        set_up_users(&at_leader).await;
        let (list, all) = ("/etcdserverpb.Cluster/MemberList", MemberListRequest::default());
        let members = MemberListResponse::decode(must(&client, list, &all, None).await).unwrap().members;
        let id = members.iter().find(|member| member.name.ends_with(&behind.to_string())).unwrap().id;
        // Less than an election timeout: the member goes on to follow.
        let delay = Fault::Delay { least: Duration::from_millis(700), jitter: Duration::ZERO };
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
