//! Users and roles on three members: bugs of etcd's clusters by their rows in the catalogue.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use revd_proto::authpb::Permission;
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AlarmType, AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGetRequest,
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest, AuthUserGrantRoleRequest,
    AuthUserRevokeRoleRequest, AuthenticateRequest, AuthenticateResponse, CompactionRequest,
    DowngradeRequest, LeaseGrantRequest, MemberAddRequest, MemberAddResponse, MemberListRequest,
    MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest, MoveLeaderRequest, PutRequest,
    RangeRequest, RangeResponse, RequestOp, StatusRequest, StatusResponse, TxnRequest,
};
use tokio::task::JoinHandle;
use tonic::{Code, Status};

use super::bugs::{PASSWORD, hash, must, set_up};
use super::{FLAGS, call};
use crate::harness::{
    Client, Cluster, Product, TempDir, Wiring, from_env, products_of_clusters, run, within,
};

/// Longer than a cluster needs to elect a leader, or to send a state.
const MOMENTS: Duration = Duration::from_secs(120);

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";

fn put(key: &str, lease: i64) -> Bytes {
    PutRequest { key: key.to_owned().into(), value: vec![b'v'; 100].into(), lease, ..PutRequest::default() }
        .encode_to_vec()
        .into()
}

fn range(key: &str) -> Bytes {
    RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() }.encode_to_vec().into()
}

/// A call that is sent again while there is no leader, or while the answer is judged by rights that
/// have just changed; a client of etcd's does so too.
async fn settled(
    client: &Client,
    path: &'static str,
    message: &Bytes,
    token: Option<&str>,
) -> Result<Bytes, Status> {
    within(MOMENTS, "a call does not end", async || {
        let result = call(client, path, message.clone(), token).await;
        let passes = |status: &Status| {
            status.message() == "etcdserver: revision of auth store is old"
                || matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)
        };
        (!result.as_ref().is_err_and(passes)).then_some(result)
    })
    .await
}

/// A token of a user. Logins go through the log: they are asked for again behind a leader that has
/// moved.
async fn login(client: &Client, name: &str) -> String {
    let request = AuthenticateRequest { name: name.to_owned(), password: PASSWORD.to_owned() };
    let request = request.encode_to_vec().into();
    let reply = settled(client, "/etcdserverpb.Auth/Authenticate", &request, None).await.unwrap();
    AuthenticateResponse::decode(reply).unwrap().token
}

/// Writes by callers of root's, so many.
async fn write_much(client: &Client, root: &str, writes: u64) {
    let left = Rc::new(Cell::new(writes));
    let callers = (0..32).map(|_| {
        let (left, client, root) = (Rc::clone(&left), client.clone(), root.to_owned());
        tokio::task::spawn_local(async move {
            while let Some(number) = left.get().checked_sub(1) {
                left.set(number);
                let put = put(&format!("much/{:04}", number % 5_000), 0);
                settled(&client, PUT, &put, Some(&root)).await.unwrap();
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}

/// A cluster of which one member, whose number the test gets, hears nobody while `meanwhile` runs
/// with a client of another one and root's token there, and is sent the state afterwards.
async fn with_a_state_sent(
    product: Product,
    meanwhile: impl AsyncFnOnce(&Client, &str),
    test: impl AsyncFnOnce(&Cluster, usize),
) {
    let dir = TempDir::new();
    let flags = [&FLAGS[..], &["--snapshot-count=50", "--snapshot-catchup-entries=5"]].concat();
    let cluster = Cluster::start(product, Wiring::Proxied, dir.path(), 3, &flags).await;
    let away = (cluster.leader().await + 1) % 3;
    set_up(&cluster.client(away)).await;
    let other = cluster.client((away + 1) % 3);
    let root = login(&other, "root").await;
    cluster.isolate(away);
    meanwhile(&other, &root).await;
    let writes = from_env("REVD_AWAY_WRITES", 20_000);
    tokio::task::LocalSet::new().run_until(write_much(&other, &root, writes)).await;
    cluster.mend();
    let newest = hash(&other, &root).await;
    let client = cluster.client(away);
    within(MOMENTS, "the member that was away does not come back", async || {
        let request = AuthenticateRequest { name: "root".to_owned(), password: PASSWORD.to_owned() };
        let reply =
            call(&client, "/etcdserverpb.Auth/Authenticate", request.encode_to_vec().into(), None).await;
        let token = AuthenticateResponse::decode(reply.ok()?).unwrap().token;
        call(&client, RANGE, range("a"), Some(&token)).await.ok()?;
        (hash(&client, &token).await == newest).then_some(())
    })
    .await;
    if product == Product::Revd {
        cluster.members[away].wait_until_says("received a state", "it had all it needs");
    }
    test(&cluster, away).await;
}

fn denied(result: Result<Bytes, Status>) -> bool {
    match result {
        Ok(_) => false,
        Err(status) => {
            assert_eq!(status.message(), "etcdserver: permission denied");
            true
        }
    }
}

/// etcd #14571, #14355: the rights of users were not read again when a state was installed, and
/// members did different things with the same entry. Here rights of a user change, another user and
/// its role come, while a member is away; and it judges, and applies, as the others.
#[test]
fn bug_010_rights_are_those_of_an_installed_state() {
    for product in products_of_clusters() {
        run(with_a_state_sent(
            product,
            async |other, root| {
                let perm = |key: &str, end: &str| {
                    let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
                    Some(Permission { perm_type: 2, key, range_end })
                };
                let revoke = AuthRoleRevokePermissionRequest {
                    role: "b".to_owned(),
                    key: "b".into(),
                    range_end: "c".into(),
                };
                must(other, "/etcdserverpb.Auth/RoleRevokePermission", &revoke, Some(root)).await;
                let grant = AuthRoleGrantPermissionRequest { name: "b".to_owned(), perm: perm("x", "y") };
                must(other, "/etcdserverpb.Auth/RoleGrantPermission", &grant, Some(root)).await;
                let bob = AuthUserAddRequest {
                    name: "bob".to_owned(),
                    password: PASSWORD.to_owned(),
                    ..AuthUserAddRequest::default()
                };
                must(other, "/etcdserverpb.Auth/UserAdd", &bob, Some(root)).await;
                let role = AuthRoleAddRequest { name: "c".to_owned() };
                must(other, "/etcdserverpb.Auth/RoleAdd", &role, Some(root)).await;
                let grant = AuthRoleGrantPermissionRequest { name: "c".to_owned(), perm: perm("c", "d") };
                must(other, "/etcdserverpb.Auth/RoleGrantPermission", &grant, Some(root)).await;
                let role = AuthUserGrantRoleRequest { user: "bob".to_owned(), role: "c".to_owned() };
                must(other, "/etcdserverpb.Auth/UserGrantRole", &role, Some(root)).await;
            },
            async |cluster, away| {
                for member in [away, (away + 1) % 3, (away + 2) % 3] {
                    let client = cluster.client(member);
                    for (name, may, may_not) in [("ann", "x1", "b1"), ("bob", "c1", "x1")] {
                        let token = Some(login(&client, name).await);
                        let token = token.as_deref();
                        for (key, is_allowed) in [(may, true), (may_not, false)] {
                            let written = settled(&client, PUT, &put(key, 0), token).await;
                            assert_eq!(
                                !denied(written),
                                is_allowed,
                                "{name} writes {key} by member {member}"
                            );
                            let read = settled(&client, RANGE, &range(key), token).await;
                            assert_eq!(!denied(read), is_allowed, "{name} reads {key} by member {member}");
                        }
                    }
                }
                let mut hashes = Vec::new();
                for client in cluster.clients() {
                    let root = login(&client, "root").await;
                    settled(&client, RANGE, &range("a"), Some(&root)).await.unwrap();
                    hashes.push(hash(&client, &root).await);
                }
                assert!(hashes.iter().all(|hash| *hash == hashes[0]), "members differ: {hashes:?}");
            },
        ));
    }
}

async fn status(client: &Client, root: &str) -> StatusResponse {
    let status = must(client, "/etcdserverpb.Maintenance/Status", &StatusRequest {}, Some(root)).await;
    StatusResponse::decode(status).unwrap()
}

const MOVE_LEADER: &str = "/etcdserverpb.Maintenance/MoveLeader";

/// The request that makes this member the leader.
async fn move_to(cluster: &Cluster, member: usize) -> MoveLeaderRequest {
    let client = cluster.client(member);
    let root = login(&client, "root").await;
    let target_id = status(&client, &root).await.header.unwrap().member_id;
    MoveLeaderRequest { target_id }
}

/// Makes this member the leader, by the one that leads.
async fn lead(cluster: &Cluster, member: usize) {
    let to = move_to(cluster, member).await;
    let client = cluster.client(member);
    let root = login(&client, "root").await;
    within(MOMENTS, "leadership does not move", async || {
        for client in cluster.clients() {
            let root = login(&client, "root").await;
            drop(call(&client, MOVE_LEADER, to.encode_to_vec().into(), Some(&root)).await);
        }
        (status(&client, &root).await.leader == to.target_id).then_some(())
    })
    .await;
}

/// etcd #13205: leases did not end any more on a member that was sent a state with users. It leads
/// from then on, so that it is the one that ends them: one from before, one that came while it was
/// away, and one of its own.
#[test]
fn bug_078_leases_end_on_a_member_that_was_sent_users() {
    let key = |lease: i64| format!("leased/{lease}");
    for product in products_of_clusters() {
        run(with_a_state_sent(
            product,
            async |other, root| {
                for (id, ttl) in [(21, 8), (22, 600)] {
                    let grant = LeaseGrantRequest { id, ttl };
                    must(other, "/etcdserverpb.Lease/LeaseGrant", &grant, Some(root)).await;
                    call(other, PUT, put(&key(id), id), Some(root)).await.unwrap();
                }
            },
            async |cluster, away| {
                let client = cluster.client(away);
                let root = login(&client, "root").await;
                lead(cluster, away).await;
                let grant = LeaseGrantRequest { id: 23, ttl: 2 }.encode_to_vec().into();
                settled(&client, "/etcdserverpb.Lease/LeaseGrant", &grant, Some(&root)).await.unwrap();
                settled(&client, PUT, &put(&key(23), 23), Some(&root)).await.unwrap();
                for (member, client) in cluster.clients().iter().enumerate() {
                    let root = login(client, "root").await;
                    let exists = async |lease: i64| {
                        let reply = settled(client, RANGE, &range(&key(lease)), Some(&root)).await.unwrap();
                        RangeResponse::decode(reply).unwrap().count == 1
                    };
                    for lease in [21, 23] {
                        let why = format!("lease {lease} does not end on member {member}");
                        within(MOMENTS, &why, async || (!exists(lease).await).then_some(())).await;
                    }
                    assert!(exists(22).await, "a lease of ten minutes has ended on member {member}");
                }
            },
        ));
    }
}

/// Calls for which a user needs its rights on `b`, by themselves and in transactions.
fn calls_of_b() -> [(&'static str, Bytes); 4] {
    let txn = |request| {
        let success = vec![RequestOp { request: Some(request) }];
        ("/etcdserverpb.KV/Txn", TxnRequest { success, ..TxnRequest::default() }.encode_to_vec().into())
    };
    let writes = PutRequest { key: "b".into(), ..PutRequest::default() };
    let reads = RangeRequest { key: "b".into(), ..RangeRequest::default() };
    let (writes, reads) = (Request::RequestPut(writes), Request::RequestRange(reads));
    [(PUT, put("b", 0)), (RANGE, range("b")), txn(writes), txn(reads)]
}

/// etcd #14227: rights were read while they changed. A role comes and goes, by way of one member
/// after the other; a change that is acknowledged holds on every member at once, and callers beside
/// it get an answer or are denied, nothing else.
#[test]
fn bug_090_rights_that_come_and_go_hold_everywhere_at_once() {
    for product in products_of_clusters() {
        run(tokio::task::LocalSet::new().run_until(async {
            let dir = TempDir::new();
            let cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &FLAGS).await;
            set_up(&cluster.client(0)).await;
            let (mut roots, mut anns, clients) = (Vec::new(), Vec::new(), cluster.clients());
            for client in &clients {
                roots.push(login(client, "root").await);
                anns.push(login(client, "ann").await);
            }
            let is_over = Rc::new(Cell::new(false));
            let answers: Rc<Cell<[[u32; 2]; 3]>> = Rc::default();
            let beside = clients.iter().cloned().zip(anns.clone()).enumerate();
            let beside = beside.map(|(member, (client, ann))| {
                let (is_over, answers) = (Rc::clone(&is_over), Rc::clone(&answers));
                tokio::task::spawn_local(async move {
                    while !is_over.get() {
                        for (path, message) in &calls_of_b() {
                            let is_denied = denied(settled(&client, path, message, Some(&ann)).await);
                            let mut counts = answers.get();
                            counts[member][usize::from(is_denied)] += 1;
                            answers.set(counts);
                        }
                    }
                })
            });
            let beside: Vec<_> = beside.collect();
            let (user, role) = (|| "ann".to_owned(), || "b".to_owned());
            let rounds = usize::try_from(from_env("REVD_AUTH_ROUNDS", 12)).unwrap();
            // On a busy machine it takes more rounds until each caller beside has met both answers.
            let has_met = |counts: [[u32; 2]; 3]| counts.iter().flatten().all(|count| *count > 0);
            for round in 0.. {
                if round >= rounds && has_met(answers.get()) || beside.iter().any(JoinHandle::is_finished) {
                    break; // a caller that has failed says why below
                }
                assert!(round < rounds + 600, "allowed and denied, by member: {:?}", answers.get());
                let by = round % 3;
                let is_taken = round % 2 == 0;
                let (path, message) = if is_taken {
                    let revoke = AuthUserRevokeRoleRequest { name: user(), role: role() };
                    ("/etcdserverpb.Auth/UserRevokeRole", revoke.encode_to_vec())
                } else {
                    let grant = AuthUserGrantRoleRequest { user: user(), role: role() };
                    ("/etcdserverpb.Auth/UserGrantRole", grant.encode_to_vec())
                };
                settled(&clients[by], path, &message.into(), Some(&roots[by])).await.unwrap();
                for (member, client) in clients.iter().enumerate() {
                    for (path, message) in &calls_of_b() {
                        let is_denied = denied(settled(client, path, message, Some(&anns[member])).await);
                        assert_eq!(is_denied, is_taken, "round {round}: {path} by member {member}");
                    }
                }
            }
            is_over.set(true);
            for task in beside {
                task.await.unwrap();
            }
        }));
    }
}

/// The calls of an operator that any member takes and passes on, or answers for itself. An
/// alarm is taken back by the next call.
fn calls_of_operators(number: usize) -> Vec<(&'static str, Vec<u8>)> {
    let downgrade = DowngradeRequest { action: 0, version: "3.6.0".to_owned() };
    let compaction = CompactionRequest { revision: 2 + i64::try_from(number).unwrap(), physical: true };
    let alarm = |action: AlarmAction| {
        let (action, alarm) = (action as i32, AlarmType::Nospace as i32);
        AlarmRequest { action, member_id: 7, alarm }.encode_to_vec()
    };
    vec![
        ("/etcdserverpb.Cluster/MemberList", MemberListRequest { linearizable: true }.encode_to_vec()),
        ("/etcdserverpb.Maintenance/Status", Vec::new()),
        ("/etcdserverpb.Maintenance/Hash", Vec::new()),
        ("/etcdserverpb.Maintenance/HashKV", Vec::new()),
        ("/etcdserverpb.Maintenance/Alarm", Vec::new()),
        ("/etcdserverpb.Maintenance/Alarm", alarm(AlarmAction::Activate)),
        ("/etcdserverpb.Maintenance/Alarm", alarm(AlarmAction::Deactivate)),
        ("/etcdserverpb.Maintenance/Defragment", Vec::new()),
        ("/etcdserverpb.Maintenance/Downgrade", downgrade.encode_to_vec()),
        ("/etcdserverpb.KV/Compact", compaction.encode_to_vec()),
        ("/etcdserverpb.Lease/LeaseLeases", Vec::new()),
    ]
}

/// The calls that are about users and roles, in an order in which they can be made.
fn calls_about_users(number: usize) -> Vec<(&'static str, Vec<u8>)> {
    let (user, role) = (format!("user{number}"), format!("role{number}"));
    let named = |name: &str| name.to_owned();
    let (key, range_end) = (Bytes::from_static(b"r"), Bytes::from_static(b"s"));
    let add =
        AuthUserAddRequest { name: user.clone(), password: named(PASSWORD), ..AuthUserAddRequest::default() };
    let change = AuthUserChangePasswordRequest {
        name: user.clone(),
        password: named("another"),
        ..AuthUserChangePasswordRequest::default()
    };
    let perm = Some(Permission { perm_type: 2, key: key.clone(), range_end: range_end.clone() });
    let permit = AuthRoleGrantPermissionRequest { name: role.clone(), perm };
    let forbid = AuthRoleRevokePermissionRequest { role: role.clone(), key, range_end };
    let grant = AuthUserGrantRoleRequest { user: user.clone(), role: role.clone() };
    let revoke = AuthUserRevokeRoleRequest { name: user.clone(), role: role.clone() };
    vec![
        ("/etcdserverpb.Auth/AuthStatus", Vec::new()),
        ("/etcdserverpb.Auth/AuthEnable", Vec::new()),
        ("/etcdserverpb.Auth/UserAdd", add.encode_to_vec()),
        ("/etcdserverpb.Auth/UserChangePassword", change.encode_to_vec()),
        ("/etcdserverpb.Auth/UserGet", AuthUserGetRequest { name: user.clone() }.encode_to_vec()),
        ("/etcdserverpb.Auth/UserList", Vec::new()),
        ("/etcdserverpb.Auth/RoleAdd", AuthRoleAddRequest { name: role.clone() }.encode_to_vec()),
        ("/etcdserverpb.Auth/RoleGrantPermission", permit.encode_to_vec()),
        ("/etcdserverpb.Auth/RoleGet", AuthRoleGetRequest { role: role.clone() }.encode_to_vec()),
        ("/etcdserverpb.Auth/RoleRevokePermission", forbid.encode_to_vec()),
        ("/etcdserverpb.Auth/RoleList", Vec::new()),
        ("/etcdserverpb.Auth/UserGrantRole", grant.encode_to_vec()),
        ("/etcdserverpb.Auth/UserRevokeRole", revoke.encode_to_vec()),
        ("/etcdserverpb.Auth/RoleDelete", AuthRoleDeleteRequest { role }.encode_to_vec()),
        ("/etcdserverpb.Auth/UserDelete", AuthUserDeleteRequest { name: user }.encode_to_vec()),
    ]
}

/// The leader moves its office when root asks it to; others say that they do not lead.
async fn move_leader(cluster: &Cluster, by: usize) {
    let to = move_to(cluster, (by + 1) % 3).await.encode_to_vec();
    within(MOMENTS, "leadership is not moved", async || {
        lead(cluster, by).await;
        let mut has_moved = false;
        for member in [(by + 2) % 3, by] {
            let client = cluster.client(member);
            call(&client, MOVE_LEADER, to.clone().into(), None).await.expect_err("by nobody");
            let root = login(&client, "root").await;
            let told = call(&client, MOVE_LEADER, to.clone().into(), Some(&root)).await;
            has_moved = told.is_ok();
            let is_judged = told.as_ref().is_err_and(|status| {
                status.message() == "etcdserver: not leader" || status.code() == Code::Unavailable
            });
            assert!(has_moved || is_judged, "by member {member}: {told:?}");
        }
        has_moved.then_some(())
    })
    .await;
}

/// Rights are needed no more, and again. The token that root has then.
async fn disable_and_enable(client: &Client, root: &str) -> String {
    let (disable, enable) = ("/etcdserverpb.Auth/AuthDisable", "/etcdserverpb.Auth/AuthEnable");
    call(client, disable, Bytes::new(), None).await.expect_err("by nobody");
    settled(client, disable, &Bytes::new(), Some(root)).await.expect("rights are not needed any more");
    settled(client, enable, &Bytes::new(), None).await.expect("anybody may do anything");
    call(client, RANGE, range("a"), None).await.expect_err("rights are needed again");
    login(client, "root").await
}

/// etcd #21494: a follower passed a promotion on without the name of its caller. Every call of an
/// operator works by way of every member, with root's token alone; those that change the members
/// too, a learner is added, updated, promoted and removed by each.
#[test]
fn bug_091_operators_may_ask_any_member() {
    for product in products_of_clusters() {
        run(async {
            let dir = TempDir::new();
            let mut cluster = Cluster::start(product, Wiring::Direct, dir.path(), 3, &FLAGS).await;
            set_up(&cluster.client(0)).await;
            for by in 0..3 {
                let client = cluster.client(by);
                let root = login(&client, "root").await;
                for (path, message) in [calls_of_operators(by), calls_about_users(by)].concat() {
                    if !path.ends_with("AuthStatus") && !path.ends_with("UserGet") {
                        call(&client, path, message.clone().into(), None).await.expect_err(path);
                    }
                    let reply = settled(&client, path, &message.into(), Some(&root)).await;
                    assert!(reply.is_ok(), "{path} by member {by}: {reply:?}");
                }
                move_leader(&cluster, by).await;
                let root = disable_and_enable(&client, &root).await;
                change_members(&mut cluster, &dir, by, &client, &root).await;
            }
        });
    }
}

/// A learner comes, is promoted and goes.
async fn change_members(cluster: &mut Cluster, dir: &TempDir, by: usize, client: &Client, root: &str) {
    let place = cluster.place();
    let add = MemberAddRequest { peer_ur_ls: vec![format!("http://{}", place.1)], is_learner: true }
        .encode_to_vec();
    let reply = within(MOMENTS, "no member can be added", async || {
        let path = "/etcdserverpb.Cluster/MemberAdd";
        match call(client, path, add.clone().into(), Some(root)).await {
            Ok(reply) => Some(MemberAddResponse::decode(reply).unwrap()),
            // All have to be connected for five seconds.
            Err(status) if status.message() == "etcdserver: unhealthy cluster" => None,
            Err(status) => panic!("adding by member {by}: {status}"),
        }
    })
    .await;
    let id = reply.member.unwrap().id;
    let number = cluster.join(dir.path(), place, &reply.members, &FLAGS);
    let promote = MemberPromoteRequest { id }.encode_to_vec();
    within(MOMENTS, "the learner is not promoted", async || {
        match call(client, "/etcdserverpb.Cluster/MemberPromote", promote.clone().into(), Some(root)).await {
            Ok(_) => Some(()),
            Err(status) => {
                let text = status.message();
                let is_for_now = text.contains("in sync with leader") || text.contains("unhealthy");
                assert!(
                    is_for_now || status.code() == Code::Unavailable,
                    "promoting by member {by}: {status}"
                );
                None
            }
        }
    })
    .await;
    let peer_ur_ls = vec![format!("http://{}", place.1)];
    let update = MemberUpdateRequest { id, peer_ur_ls }.encode_to_vec().into();
    settled(client, "/etcdserverpb.Cluster/MemberUpdate", &update, Some(root)).await.unwrap();
    cluster.forget(number);
    let remove = MemberRemoveRequest { id }.encode_to_vec().into();
    within(MOMENTS, "the member is not removed", async || {
        match call(client, "/etcdserverpb.Cluster/MemberRemove", Bytes::clone(&remove), Some(root)).await {
            Ok(_) => Some(()),
            Err(status) if status.message() == "etcdserver: member not found" => Some(()),
            Err(_) => None,
        }
    })
    .await;
    cluster.wait_until_ends(number).await;
}
