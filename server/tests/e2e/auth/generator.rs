//! Calls of users, made from a seed.

use bytes::Bytes;
use prost::Message;
use revd_proto::authpb::{Permission, UserAddOptions};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest, AuthRoleRevokePermissionRequest,
    AuthStatusRequest, AuthUserAddRequest, AuthUserChangePasswordRequest, AuthUserDeleteRequest,
    AuthUserGetRequest, AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest,
    AuthenticateRequest, CompactionRequest, Compare, DeleteRangeRequest, HashKvRequest, LeaseGrantRequest,
    LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberListRequest, PutRequest,
    RangeRequest, RequestOp, StatusRequest, TxnRequest, WatchCreateRequest,
};
use revd_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use revd_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest};

use crate::harness::Random;

/// In whose name a call is made: with the token that this user got last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Actor {
    Nobody,
    Garbage,
    User(&'static str),
}

/// The part of a reply that has to be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compared {
    Whole,
    Revision,
    /// All of a lease but the time that it has left.
    Lease,
    /// Leases in any order.
    Leases,
    Nothing,
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) actor: Actor,
    pub(crate) path: &'static str,
    pub(crate) message: Bytes,
    pub(crate) compared: Compared,
    /// The user that gets a token by it.
    pub(crate) login: Option<&'static str>,
    /// Rights may be others afterwards.
    pub(crate) changes_users: bool,
    /// It makes a watch.
    pub(crate) watch: Option<WatchCreateRequest>,
    /// For the message of a failure.
    _shown: String,
}

const USERS: [&str; 4] = ["root", "ann", "bob", "cat"];
const ROLES: [&str; 4] = ["root", "reader", "writer", "all"];
const KEYS: [&str; 8] = ["a", "b", "b1", "c", "d", "e", "f", "g"];

/// The kind of tokens that users have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tokens {
    Simple,
    /// Each change makes them old: users log in more often.
    Signed,
}

pub(crate) struct Generator {
    random: Random,
    tokens: Tokens,
    /// The number of the call, and the newest revision.
    number: u64,
    revision: i64,
    /// Locks and leaderships that somebody got; the newest last.
    locks: Vec<Bytes>,
    leaders: Vec<LeaderKey>,
}

/// Locks and leaderships that are known; the oldest are forgotten.
const HELD_MAX: usize = 4;

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

impl Generator {
    pub(crate) fn new(random: Random, tokens: Tokens) -> Self {
        Self { random, tokens, number: 0, revision: 0, locks: Vec::new(), leaders: Vec::new() }
    }

    /// Takes in a reply, which both have given.
    pub(crate) fn learn(&mut self, call: &Call, revision: i64, body: &Bytes) {
        self.revision = revision;
        match call.path {
            LOCK => self.locks.push(LockResponse::decode(body.clone()).unwrap().key),
            CAMPAIGN => self.leaders.extend(CampaignResponse::decode(body.clone()).unwrap().leader),
            _ => {}
        }
        self.locks.drain(..self.locks.len().saturating_sub(HELD_MAX));
        self.leaders.drain(..self.leaders.len().saturating_sub(HELD_MAX));
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn chance(&mut self, in_ten: u64) -> bool {
        self.below(10) < in_ten
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()]
    }

    fn key(&mut self) -> Bytes {
        self.pick(&KEYS).into()
    }

    /// None that ends before it begins: whether etcd allows these goes by the form of a tree, and
    /// that by the order of roles.
    fn range_end(&mut self, key: &[u8]) -> Bytes {
        match self.below(6) {
            0..3 => Bytes::new(),
            3 => Bytes::from_static(b"\0"),
            _ => {
                let end = Bytes::from(self.pick(&["b", "c", "b2", "e", "h", "a\0"]));
                if &end[..] < key { Bytes::from_static(b"h") } else { end }
            }
        }
    }

    fn lease(&mut self) -> i64 {
        if self.chance(7) { 0 } else { i64::try_from(self.below(4)).unwrap() }
    }

    pub(crate) fn next(&mut self, number: u64) -> Call {
        self.number = number;
        // At first everything is set up, so that there is something to be denied.
        let root = Actor::User("root");
        if let Some(call) = setup(number) {
            return Call { actor: root, ..call };
        }
        let actor = match self.below(20) {
            0 => Actor::Nobody,
            1 => Actor::Garbage,
            2..9 => root,
            _ => Actor::User(self.pick(&USERS)),
        };
        let call = match self.below(10) {
            0..2 => self.login(),
            2..5 if self.tokens == Tokens::Simple || self.chance(2) => {
                Call { changes_users: true, ..self.change() }
            }
            2..4 => self.login(),
            5 => self.look(),
            _ => self.data(),
        };
        Call { actor, ..call }
    }

    fn login(&mut self) -> Call {
        let name = self.pick(&USERS);
        let password = if self.chance(9) { name } else { "wrong" };
        login(name, password)
    }

    fn permission(&mut self) -> Permission {
        let key = self.pick(&KEYS);
        // One end for each key: two that begin alike are granted twice by etcd.
        let range_end = match key {
            "a" => "",
            "b" => "c",
            "b1" => "b2",
            "c" => "d",
            "d" => "\0",
            "e" => "a",
            "f" => "g",
            _ => "",
        };
        let perm_type = i32::try_from(self.below(3)).unwrap();
        let key = if self.chance(1) { Bytes::new() } else { key.into() };
        Permission { perm_type, key, range_end: range_end.into() }
    }

    fn change(&mut self) -> Call {
        let name = self.pick(&USERS).to_owned();
        let role = self.pick(&ROLES).to_owned();
        match self.below(24) {
            0..3 => {
                let options = self.chance(1).then_some(UserAddOptions { no_password: true });
                let name = if self.chance(1) { String::new() } else { name };
                let (password, hashed_password) = (name.clone(), String::new());
                let request = AuthUserAddRequest { name, password, options, hashed_password };
                of("/etcdserverpb.Auth/UserAdd", &request)
            }
            3 if self.tokens == Tokens::Simple => {
                of("/etcdserverpb.Auth/UserDelete", &AuthUserDeleteRequest { name })
            }
            3..5 => {
                let hashed_password = String::new();
                let password = name.clone();
                let request = AuthUserChangePasswordRequest { name, password, hashed_password };
                of("/etcdserverpb.Auth/UserChangePassword", &request)
            }
            5..10 => of("/etcdserverpb.Auth/UserGrantRole", &AuthUserGrantRoleRequest { user: name, role }),
            10..12 => {
                let role = if self.chance(5) { "all".to_owned() } else { role };
                of("/etcdserverpb.Auth/UserRevokeRole", &AuthUserRevokeRoleRequest { name, role })
            }
            12..14 => {
                let name = if self.chance(1) { String::new() } else { role };
                of("/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name })
            }
            14 => of("/etcdserverpb.Auth/RoleDelete", &AuthRoleDeleteRequest { role }),
            15..20 => {
                let perm = (!self.chance(1)).then(|| self.permission());
                let request = AuthRoleGrantPermissionRequest { name: role, perm };
                of("/etcdserverpb.Auth/RoleGrantPermission", &request)
            }
            20..22 => {
                let Permission { key, range_end, .. } = self.permission();
                let request = AuthRoleRevokePermissionRequest { role, key, range_end };
                of("/etcdserverpb.Auth/RoleRevokePermission", &request)
            }
            22 if self.chance(3) => of("/etcdserverpb.Auth/AuthDisable", &AuthDisableRequest {}),
            _ => of("/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}),
        }
    }

    fn look(&mut self) -> Call {
        let name = self.pick(&USERS).to_owned();
        let role = self.pick(&ROLES).to_owned();
        match self.below(10) {
            0 => of("/etcdserverpb.Auth/AuthStatus", &AuthStatusRequest {}),
            1..3 => of("/etcdserverpb.Auth/UserGet", &AuthUserGetRequest { name }),
            3 => of("/etcdserverpb.Auth/UserList", &AuthUserListRequest {}),
            4..6 => of("/etcdserverpb.Auth/RoleGet", &AuthRoleGetRequest { role }),
            6 => of("/etcdserverpb.Auth/RoleList", &AuthRoleListRequest {}),
            7 => {
                let call = of("/etcdserverpb.Cluster/MemberList", &MemberListRequest { linearizable: true });
                Call { compared: Compared::Nothing, ..call }
            }
            8 => {
                let call = of(STATUS, &StatusRequest {});
                Call { compared: Compared::Revision, ..call }
            }
            _ => of("/etcdserverpb.Maintenance/Alarm", &AlarmRequest::default()),
        }
    }

    fn range(&mut self) -> RangeRequest {
        let serializable = self.chance(3);
        let key = self.key();
        let range_end = self.range_end(&key);
        RangeRequest { key, range_end, serializable, ..RangeRequest::default() }
    }

    fn put(&mut self) -> PutRequest {
        let (key, lease, prev_kv) = (self.key(), self.lease(), self.chance(3));
        PutRequest { key, value: "v".into(), lease, prev_kv, ..PutRequest::default() }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let (key, prev_kv) = (self.key(), self.chance(3));
        let range_end = self.range_end(&key);
        DeleteRangeRequest { key, range_end, prev_kv }
    }

    fn txn(&mut self, depth: u64) -> TxnRequest {
        let compare = (0..self.below(2)).map(|_| {
            let key = self.key();
            Compare {
                range_end: self.range_end(&key),
                key,
                target: CompareTarget::Version as i32,
                result: CompareResult::Greater as i32,
                target_union: Some(TargetUnion::Version(0)),
            }
        });
        let compare = compare.collect();
        let success = (0..self.below(2)).map(|_| self.op(depth)).collect();
        let failure = vec![self.op(depth)];
        TxnRequest { compare, success, failure }
    }

    fn op(&mut self, depth: u64) -> RequestOp {
        match self.below(6) {
            0..2 => op(Request::RequestRange(self.range())),
            2 => op(Request::RequestPut(self.put())),
            3 => op(Request::RequestDeleteRange(self.delete())),
            _ if depth < 4 => op(Request::RequestTxn(self.txn(depth + 1))),
            _ => op(Request::RequestRange(self.range())),
        }
    }

    fn data(&mut self) -> Call {
        let id = i64::try_from(self.below(4)).unwrap();
        assert!(id <= NEWEST_COMPACTION);
        match self.below(32) {
            24..26 => self.watch(),
            26..32 => self.recipe(),
            0..6 => of(RANGE, &self.range()),
            6..10 => of("/etcdserverpb.KV/Put", &self.put()),
            10..12 => of("/etcdserverpb.KV/DeleteRange", &self.delete()),
            12..18 => of(TXN, &self.txn(0)),
            18 => of("/etcdserverpb.Lease/LeaseGrant", &LeaseGrantRequest { id: id.max(1), ttl: 100_000 }),
            19 => of("/etcdserverpb.Lease/LeaseRevoke", &LeaseRevokeRequest { id: id + 1 }),
            20 => {
                let request = LeaseTimeToLiveRequest { id: id + 1, keys: self.chance(7) };
                let call = of("/etcdserverpb.Lease/LeaseTimeToLive", &request);
                Call { compared: Compared::Lease, ..call }
            }
            21 => Call { compared: Compared::Leases, ..of(LEASES, &LeaseLeasesRequest {}) },
            22 => of("/etcdserverpb.KV/Compact", &CompactionRequest { revision: id, physical: false }),
            _ => {
                // With 0, etcd answers the hash of its first compaction once that is done, at no
                // certain time. No compaction is as new as this.
                let revision = self.revision.max(NEWEST_COMPACTION + 1);
                of(HASH_KV, &HashKvRequest { revision })
            }
        }
    }
}

/// Requests to compact are for revisions up to this.
const NEWEST_COMPACTION: i64 = 3;
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(crate) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

pub(crate) const LEASES: &str = "/etcdserverpb.Lease/LeaseLeases";

pub(crate) const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";

const LOCK: &str = "/v3lockpb.Lock/Lock";
const CAMPAIGN: &str = "/v3electionpb.Election/Campaign";

impl Generator {
    /// From now on, or from shortly before: no compaction of this test goes so far, and there is no
    /// progress to be told of before a watch begins.
    fn watch(&mut self) -> Call {
        let RangeRequest { key, range_end, .. } = self.range();
        let back = i64::try_from(self.below(10)).unwrap();
        let start = self.revision - back;
        let start_revision = if start < 5 || self.chance(5) { 0 } else { start };
        let prev_kv = self.chance(3);
        let create =
            WatchCreateRequest { key, range_end, start_revision, prev_kv, ..WatchCreateRequest::default() };
        Call { watch: Some(create.clone()), ..of("/etcdserverpb.Watch/Watch", &create) }
    }

    /// A lock or a leadership with a name of its own: a second key in one queue is put once more by
    /// revd (docs/COMPAT.md, 19). Without a lease of the caller's the key would be another one at
    /// each server.
    fn recipe(&mut self) -> Call {
        let name = Bytes::from(format!("{}/{}", self.pick(&KEYS), self.number));
        let lease = i64::try_from(1 + self.below(3)).unwrap();
        let known = self.below(HELD_MAX as u64);
        let held = |len: usize| usize::try_from(known).unwrap().min(len.saturating_sub(1));
        let leader = self.leaders.get(held(self.leaders.len())).cloned();
        let leader = leader.filter(|_| !self.chance(1));
        match self.below(9) {
            0..2 => of(LOCK, &LockRequest { name, lease }),
            2 => {
                let key = self.locks.get(held(self.locks.len())).cloned().unwrap_or(name);
                of("/v3lockpb.Lock/Unlock", &UnlockRequest { key })
            }
            3..5 => of(CAMPAIGN, &CampaignRequest { name, lease, value: "v".into() }),
            5..7 => {
                let request = ProclaimRequest { leader, value: "w".into() };
                of("/v3electionpb.Election/Proclaim", &request)
            }
            7 => {
                let name = leader.map_or(name, |leader| leader.name);
                of("/v3electionpb.Election/Leader", &LeaderRequest { name })
            }
            _ => of("/v3electionpb.Election/Resign", &ResignRequest { leader }),
        }
    }
}

fn of(path: &'static str, message: &(impl Message + std::fmt::Debug)) -> Call {
    Call {
        actor: Actor::Nobody,
        path,
        message: message.encode_to_vec().into(),
        compared: Compared::Whole,
        login: None,
        changes_users: false,
        watch: None,
        _shown: format!("{message:?}"),
    }
}

fn login(name: &'static str, password: &str) -> Call {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    Call {
        login: Some(name),
        // The token.
        compared: Compared::Revision,
        ..of("/etcdserverpb.Auth/Authenticate", &request)
    }
}

fn setup(number: u64) -> Option<Call> {
    let add_user = |name: &str| {
        let (name, password) = (name.to_owned(), name.to_owned());
        let request = AuthUserAddRequest { name, password, ..AuthUserAddRequest::default() };
        of("/etcdserverpb.Auth/UserAdd", &request)
    };
    let add_role =
        |name: &str| of("/etcdserverpb.Auth/RoleAdd", &AuthRoleAddRequest { name: name.to_owned() });
    let grant = |user: &str, role: &str| {
        let (user, role) = (user.to_owned(), role.to_owned());
        of("/etcdserverpb.Auth/UserGrantRole", &AuthUserGrantRoleRequest { user, role })
    };
    let permit = |name: &str, perm_type, key: &'static str, range_end: &'static str| {
        let perm = Some(Permission { perm_type, key: key.into(), range_end: range_end.into() });
        let request = AuthRoleGrantPermissionRequest { name: name.to_owned(), perm };
        of("/etcdserverpb.Auth/RoleGrantPermission", &request)
    };
    Some(match number {
        0..4 => add_user(USERS[usize::try_from(number).unwrap()]),
        4..8 => add_role(ROLES[usize::try_from(number - 4).unwrap()]),
        8 => permit("reader", 0, "b", "c"),
        9 => permit("writer", 1, "b", "c"),
        10 => permit("all", 2, "c", "d"),
        11 => grant("root", "root"),
        12 => grant("ann", "reader"),
        13 => grant("ann", "writer"),
        14 => grant("bob", "reader"),
        15 => grant("cat", "all"),
        16 => of("/etcdserverpb.Auth/AuthEnable", &AuthEnableRequest {}),
        17..21 => {
            let name = USERS[usize::try_from(number - 17).unwrap()];
            login(name, name)
        }
        _ => return None,
    })
}
