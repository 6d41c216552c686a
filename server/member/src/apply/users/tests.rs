//! Tests of commands in somebody's name.

use std::sync::Arc;

use prost::Message;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_proto::authpb::Permission;
use revd_proto::authpb::permission::Type;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    AuthDisableRequest, AuthEnableRequest, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RequestOp, TxnRequest,
};

use super::*;
use crate::apply::command::{CommandId, Origin, encode};
use crate::apply::{CommittedEntry, MachineConfig, Next};
use crate::auth::User;
use crate::limits;

const OWN: Origin = Origin { member: 1, boot: 1 };

struct Subject {
    machine: Machine,
    tokens: Vec<TokenChange>,
}

impl Subject {
    fn new() -> Self {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
        let mut machine = Machine::new(store, config).unwrap();
        machine.serve(1);
        Self { machine, tokens: Vec::new() }
    }

    /// Root, and `ann`, who may read and write `[b, c)`; rights are needed.
    fn enabled() -> Self {
        let mut subject = Self::new();
        for name in ["root", "ann"] {
            let request = AuthUserAddRequest { name: name.to_owned(), ..AuthUserAddRequest::default() };
            subject.own(Kind::UserAdd, &request).unwrap();
        }
        let role = || "b".to_owned();
        subject.own(Kind::RoleAdd, &AuthRoleAddRequest { name: role() }).unwrap();
        let perm = Permission { perm_type: Type::Readwrite as i32, key: "b".into(), range_end: "c".into() };
        let grant = AuthRoleGrantPermissionRequest { name: role(), perm: Some(perm) };
        subject.own(Kind::RoleGrantPermission, &grant).unwrap();
        subject.grant_role("ann", "b");
        subject.grant_role("root", "root");
        subject.own(Kind::AuthEnable, &AuthEnableRequest {}).unwrap();
        subject
    }

    fn grant_role(&mut self, user: &str, role: &str) {
        let request = AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.own(Kind::UserGrantRole, &request).unwrap();
    }

    fn own(&mut self, kind: Kind, message: &impl Message) -> Result<Bytes, Error> {
        self.send(&Caller::Member, kind, message)
    }

    fn ann(&mut self, kind: Kind, message: &impl Message) -> Result<Bytes, Error> {
        let caller = self.user("ann");
        self.send(&caller, kind, message)
    }

    fn user(&self, name: &str) -> Caller {
        let revision = Some(self.machine.access.revision());
        Caller::User(Arc::new(User { name: name.to_owned(), revision }))
    }

    fn send(&mut self, caller: &Caller, kind: Kind, message: &impl Message) -> Result<Bytes, Error> {
        self.send_bytes(caller, kind, message.encode_to_vec().into())
    }

    fn send_bytes(&mut self, caller: &Caller, kind: Kind, payload: Bytes) -> Result<Bytes, Error> {
        let (kind, payload) = authorized::enclose(caller, 0, kind, payload);
        let data = encode(OWN, &[Command { id: CommandId::new(0, 1, 0), kind, payload }]).into();
        let index = self.machine.store().applied().index + 1;
        let mut effects = Vec::new();
        self.machine.apply(&CommittedEntry { index, term: 1, data, change: None }, 0, &mut effects).unwrap();
        let mut result = None;
        for effect in effects {
            match effect {
                Effect::Reply(_, outcome) => result = Some(outcome.result),
                Effect::Tokens(change) => self.tokens.push(change),
                other => panic!("{other:?}"),
            }
        }
        result.unwrap()
    }
}

fn put(key: &'static str) -> PutRequest {
    PutRequest { key: key.into(), ..PutRequest::default() }
}

fn txn(request: Request) -> TxnRequest {
    TxnRequest { failure: vec![RequestOp { request: Some(request) }], ..TxnRequest::default() }
}

#[test]
fn a_user_changes_what_it_may_write_and_nothing_else() {
    let mut subject = Subject::enabled();
    assert!(subject.ann(Kind::Put, &put("b")).is_ok());
    let before = (
        subject.machine.store().revision(),
        subject
            .machine
            .store()
            .reader()
            .count(revd_engine::mvcc::KeyRange::from_wire(b"\0", b"\0"), i64::MAX),
    );
    for (caller, error) in [
        (subject.user("ann"), Error::Auth(AuthError::PermissionDenied)),
        (subject.user("nobody"), Error::Auth(AuthError::PermissionDenied)),
        // A bare command: proposed while rights were not needed, or by who sent no token.
        (Caller::Nobody, Error::Auth(AuthError::EmptyUser)),
    ] {
        assert_eq!(subject.send(&caller, Kind::Put, &put("c")), Err(error));
    }
    let whole =
        DeleteRangeRequest { key: "b".into(), range_end: "\0".into(), ..DeleteRangeRequest::default() };
    assert_eq!(subject.ann(Kind::DeleteRange, &whole), Err(Error::Auth(AuthError::PermissionDenied)));
    for kind in [Kind::Compact, Kind::Alarm, Kind::AuthDisable, Kind::UserAdd, Kind::RoleDelete] {
        let caller = subject.user("ann");
        assert_eq!(
            subject.send_bytes(&caller, kind, Bytes::new()),
            Err(Error::Auth(AuthError::PermissionDenied))
        );
    }
    let after = (
        subject.machine.store().revision(),
        subject
            .machine
            .store()
            .reader()
            .count(revd_engine::mvcc::KeyRange::from_wire(b"\0", b"\0"), i64::MAX),
    );
    assert_eq!(before, after);
    assert!(subject.own(Kind::Put, &put("c")).is_ok());
}

/// A command is on its way through the log while its user loses the permission.
#[test]
fn a_permission_that_is_revoked_before_a_command_is_applied_counts() {
    let mut subject = Subject::enabled();
    let before = subject.user("ann");
    let revoke = AuthUserRevokeRoleRequest { name: "ann".to_owned(), role: "b".to_owned() };
    subject.own(Kind::UserRevokeRole, &revoke).unwrap();
    assert_eq!(subject.send(&before, Kind::Put, &put("b")), Err(Error::Auth(AuthError::OldAuthRevision)));
    assert_eq!(subject.ann(Kind::Put, &put("b")), Err(Error::Auth(AuthError::PermissionDenied)));
    subject.grant_role("ann", "b");
    assert!(subject.ann(Kind::Put, &put("b")).is_ok());
}

/// CVE-2026-33343, row 81 of the catalogue: transactions in transactions were not looked into.
#[test]
fn bug_81_no_depth_hides_a_forbidden_operation() {
    let mut subject = Subject::enabled();
    let range = |key: &'static str| RangeRequest { key: key.into(), ..RangeRequest::default() };
    let delete = |key: &'static str| DeleteRangeRequest { key: key.into(), ..DeleteRangeRequest::default() };
    let leaves = |key: &'static str| {
        [
            Request::RequestRange(range(key)),
            Request::RequestPut(put(key)),
            Request::RequestDeleteRange(delete(key)),
        ]
    };
    for (allowed, forbidden) in leaves("b").into_iter().zip(leaves("x")) {
        for depth in 0..4 {
            let nest = |leaf: Request| (0..depth).fold(txn(leaf), |inner, _| txn(Request::RequestTxn(inner)));
            assert!(subject.ann(Kind::Txn, &nest(allowed.clone())).is_ok());
            let revision = subject.machine.store().revision();
            assert_eq!(
                subject.ann(Kind::Txn, &nest(forbidden.clone())),
                Err(Error::Auth(AuthError::PermissionDenied))
            );
            let mut compared = nest(allowed.clone());
            compared
                .compare
                .push(revd_proto::etcdserverpb::Compare { key: "x".into(), ..Default::default() });
            assert_eq!(subject.ann(Kind::Txn, &compared), Err(Error::Auth(AuthError::PermissionDenied)));
            assert_eq!(subject.machine.store().revision(), revision);
        }
    }
}

/// CVE-2026-44283, row 82 of the catalogue: options of a put inside a transaction.
#[test]
fn bug_82_options_of_a_put_need_rights_in_transactions_too() {
    let mut subject = Subject::enabled();
    subject.own(Kind::RoleAdd, &AuthRoleAddRequest { name: "w".to_owned() }).unwrap();
    let perm = Permission { perm_type: Type::Write as i32, key: "w".into(), range_end: Bytes::new() };
    let grant = AuthRoleGrantPermissionRequest { name: "w".to_owned(), perm: Some(perm) };
    subject.own(Kind::RoleGrantPermission, &grant).unwrap();
    subject.grant_role("ann", "w");
    for (id, key) in [(1, "x"), (2, "b")] {
        subject.own(Kind::LeaseGrant, &LeaseGrantRequest { id, ttl: 60 }).unwrap();
        subject.own(Kind::Put, &PutRequest { lease: id, ..put(key) }).unwrap();
    }
    let previous = |key| PutRequest { prev_kv: true, ..put(key) };
    let leased = |key, lease| PutRequest { lease, ..put(key) };
    for (request, is_allowed) in [
        (put("w"), true),
        (previous("w"), false),
        (previous("b"), true),
        (leased("w", 1), false), // with a key that is not ann's to end
        (leased("w", 2), true),
    ] {
        let outside = subject.ann(Kind::Put, &request);
        let inside = subject.ann(Kind::Txn, &txn(Request::RequestPut(request.clone())));
        for result in [outside, inside] {
            assert_eq!(result.is_ok(), is_allowed, "{request:?}");
        }
    }
    for (id, result) in [(1, Err(Error::Auth(AuthError::PermissionDenied))), (2, Ok(()))] {
        let revoked = subject.ann(Kind::LeaseRevoke, &LeaseRevokeRequest { id });
        assert_eq!(revoked.map(drop), result);
    }
}

/// A put with a lease of very many keys: they are looked at once for each interval of its user, and
/// a user with very many intervals is judged on a helper thread.
#[test]
fn keys_of_a_lease_cost_a_put_no_more_than_its_users_intervals() {
    let many = limits::KEYS_PER_COMMAND + 1;
    let mut subject = Subject::enabled();
    subject.own(Kind::LeaseGrant, &LeaseGrantRequest { id: 1, ttl: 60 }).unwrap();
    subject.own(Kind::RoleAdd, &AuthRoleAddRequest { name: "many".to_owned() }).unwrap();
    for number in 0..many {
        let key = Bytes::from(format!("b{number:06}"));
        let put = PutRequest { key: key.clone(), lease: 1, ..PutRequest::default() };
        subject.own(Kind::Put, &put).unwrap();
        let perm = Some(Permission { perm_type: Type::Write as i32, key, range_end: Bytes::new() });
        let grant = AuthRoleGrantPermissionRequest { name: "many".to_owned(), perm };
        subject.own(Kind::RoleGrantPermission, &grant).unwrap();
    }
    subject.own(Kind::UserAdd, &AuthUserAddRequest { name: "bob".to_owned(), ..Default::default() }).unwrap();
    subject.grant_role("bob", "many");
    let put = PutRequest { lease: 1, ..put("b000000") };
    let in_txn = txn(Request::RequestPut(put.clone())).encode_to_vec();
    let mut next = |user: &str, kind, payload: Vec<u8>| {
        let caller = subject.user(user);
        let (kind, payload) = authorized::enclose(&caller, 0, kind, payload.into());
        let data = encode(OWN, &[Command { id: CommandId::new(0, 1, 0), kind, payload }]).into();
        let index = subject.machine.store().applied().index + 1;
        subject.machine.begin(&CommittedEntry { index, term: 1, data, change: None }).unwrap();
        let (next, mut effects) = (subject.machine.next(), Vec::new());
        subject.machine.step(0, &mut effects).unwrap();
        let Some(Effect::Reply(_, outcome)) = effects.pop() else { panic!("no reply") };
        (next, outcome.result.map(drop))
    };
    let (long, short) = (Next::LongCommand, Next::Command);
    // How many intervals a user has is not known before it is judged first.
    for (user, expected) in [("ann", [long, short]), ("bob", [long, long]), ("root", [long, short])] {
        for expected in expected {
            assert_eq!(next(user, Kind::Put, put.encode_to_vec()), (expected, Ok(())), "{user}");
        }
        let [_, expected] = expected;
        assert_eq!(next(user, Kind::Txn, in_txn.clone()), (expected, Ok(())), "{user}");
    }
    let other = PutRequest { lease: 1, ..self::put("x") };
    subject.own(Kind::Put, &other).unwrap();
    for user in ["ann", "bob"] {
        let caller = subject.user(user);
        assert_eq!(subject.send(&caller, Kind::Put, &put), Err(Error::Auth(AuthError::PermissionDenied)));
        let mut may =
            |right| subject.machine.check_lease_rights(&LeaseRights { caller: caller.clone(), right });
        assert_eq!(may(LeaseRight::Write(1)), Err(Error::Auth(AuthError::PermissionDenied)));
        assert_eq!(may(LeaseRight::Read(1)), Err(Error::Auth(AuthError::PermissionDenied)));
        assert_eq!(may(LeaseRight::ReadAll), Err(Error::Auth(AuthError::PermissionDenied)));
        assert_eq!(may(LeaseRight::Write(2)), Ok(()), "no keys are attached to it");
    }
}

/// An old token does not count for keys that are attached to leases, unless it is root's: as with
/// etcd.
#[test]
fn an_old_token_counts_for_keys_of_leases_if_it_is_roots() {
    let mut subject = Subject::enabled();
    let keys = [("b", 1), ("b1", 1)];
    for id in [1, 2] {
        subject.own(Kind::LeaseGrant, &LeaseGrantRequest { id, ttl: 60 }).unwrap();
    }
    let (root, ann) = (subject.user("root"), subject.user("ann"));
    subject.own(Kind::RoleAdd, &AuthRoleAddRequest { name: "another".to_owned() }).unwrap();
    let may = |subject: &mut Subject, caller: &Caller, right| {
        subject.machine.check_lease_rights(&LeaseRights { caller: caller.clone(), right })
    };
    let rights = [LeaseRight::Write(1), LeaseRight::Read(1), LeaseRight::ReadAll];
    for right in rights {
        assert_eq!(may(&mut subject, &ann, right), Ok(()), "there are no keys");
    }
    for (key, lease) in keys {
        subject.own(Kind::Put, &PutRequest { lease, ..put(key) }).unwrap();
    }
    for right in rights {
        let old = Err(Error::Auth(AuthError::OldAuthRevision));
        assert_eq!(may(&mut subject, &ann, right), old, "{right:?}");
        let new = subject.user("ann");
        assert_eq!(may(&mut subject, &new, right), Ok(()), "{right:?}");
        assert_eq!(may(&mut subject, &root, right), Ok(()), "{right:?}");
    }
    assert_eq!(may(&mut subject, &ann, LeaseRight::Write(2)), Ok(()), "without keys");
    let revoke = LeaseRevokeRequest { id: 1 };
    let old = Err(Error::Auth(AuthError::OldAuthRevision));
    assert_eq!(subject.send(&ann, Kind::LeaseRevoke, &revoke), old);
    assert!(subject.send(&root, Kind::LeaseRevoke, &revoke).is_ok());
}

/// Very many users with the same roles cost what one of them does.
#[test]
fn users_with_the_same_roles_share_their_rights() {
    let mut subject = Subject::enabled();
    for number in 0..50 {
        let name = format!("user {number}");
        let add = AuthUserAddRequest { name: name.clone(), ..AuthUserAddRequest::default() };
        subject.own(Kind::UserAdd, &add).unwrap();
        subject.grant_role(&name, "b");
    }
    let tables = subject.machine.state.store.tables();
    let mut access = Access::of(tables);
    let mut check = |name: &str| {
        let caller = Caller::User(Arc::new(User { name: name.to_owned(), revision: None }));
        let wants = Wants::Read { key: b"b", range_end: b"" };
        assert_eq!(access.check(tables, &caller, &wants, Attached::Unknown), Ok(()), "{name}");
        access.permissions_read()
    };
    let once = check("user 0");
    assert!(once > 0);
    for number in 0..50 {
        assert_eq!(check(&format!("user {number}")), once);
    }
}

#[test]
fn logins_make_tokens_and_changes_end_them() {
    let mut subject = Subject::enabled();
    let login = |name: &str| Login { name: name.to_owned(), digest: Some([7; 32]) }.encode();
    let outcome = subject.send_bytes(&Caller::Nobody, Kind::Authenticate, login("ann")).unwrap();
    let index = subject.machine.store().applied().index;
    assert_eq!(decode_login(outcome), Some((index, subject.machine.access.revision())));
    let made = TokenChange::Made { user: "ann".to_owned(), digest: [7; 32], index };
    assert_eq!(std::mem::take(&mut subject.tokens), [made]);
    let unknown = subject.send_bytes(&Caller::Nobody, Kind::Authenticate, login("eve"));
    assert_eq!(unknown, Err(Error::Auth(AuthError::AuthFailed)));
    let change = AuthUserChangePasswordRequest { name: "ann".to_owned(), ..Default::default() };
    subject.own(Kind::UserChangePassword, &change).unwrap();
    subject.own(Kind::UserDelete, &AuthUserDeleteRequest { name: "ann".to_owned() }).unwrap();
    let root = AuthUserDeleteRequest { name: "root".to_owned() };
    assert_eq!(subject.own(Kind::UserDelete, &root), Err(Error::Auth(AuthError::InvalidAuthManagement)));
    subject.own(Kind::AuthDisable, &AuthDisableRequest {}).unwrap();
    let of_ann = TokenChange::RevokedOf("ann".to_owned());
    assert_eq!(subject.tokens, [of_ann.clone(), of_ann, TokenChange::RevokedAll]);
    assert!(subject.send(&Caller::Nobody, Kind::Put, &put("x")).is_ok(), "nobody is asked any more");
    let off = subject.send_bytes(&Caller::Nobody, Kind::Authenticate, login("root"));
    assert_eq!(off, Err(Error::Auth(AuthError::AuthNotEnabled)));
}

#[test]
fn names_are_bounded() {
    let mut subject = Subject::new();
    for (bytes, result) in [
        (0, Err(Error::Auth(AuthError::EmptyRole))),
        (limits::AUTH_NAME_BYTES_MAX, Ok(())),
        (limits::AUTH_NAME_BYTES_MAX + 1, Err(Error::RequestTooLarge)),
    ] {
        let added = subject.own(Kind::RoleAdd, &AuthRoleAddRequest { name: "x".repeat(bytes) });
        assert_eq!(added.map(drop), result);
    }
}

/// Row 89 of the catalogue: fields that are empty, twice, or no message at all.
#[test]
fn bug_89_malformed_requests_about_users_are_answers() {
    let mut subject = Subject::new();
    for number in 0..=u8::MAX {
        let Some(kind) = Kind::from_byte(number).filter(|kind| !kind.changes_members()) else { continue };
        if matches!(kind, Kind::BeginHash) {
            continue;
        }
        for payload in [&b""[..], b"\xff", b"\x0a\x05abc", b"\x0a\x00\x12\x00", b"\x12\x02\x12\x00"] {
            let _ = subject.send_bytes(&Caller::Nobody, kind, Bytes::from_static(payload));
        }
    }
}

/// As with etcd a certificate may have no name; and those without a token are let in to nothing
/// but what needs no rights.
#[test]
fn callers_without_a_name_or_a_token_are_refused_in_the_order_of_etcd() {
    let subject = Subject::enabled();
    assert!(subject.machine.needs_rights() && !Subject::new().machine.needs_rights());
    let tables = subject.machine.state.store.tables();
    let mut access = Access::of(tables);
    let mut may = |caller: &Caller, wants: Wants<'_>| {
        access.check(tables, caller, &wants, Attached::Unknown).map_err(|error| match error {
            Error::Auth(error) => error,
            other => panic!("{other}"),
        })
    };
    let of = |name: &str, revision| Caller::User(Arc::new(User { name: name.to_owned(), revision }));
    let read = Wants::Read { key: b"b", range_end: b"" };
    let without_keys = [
        Wants::Login,
        Wants::Root,
        Wants::User(""),
        Wants::Role("b"),
        Wants::WriteLease(1),
        Wants::ReadLease(None),
    ];
    for revision in [None, Some(0), Some(1)] {
        let nameless = of("", revision);
        for wants in without_keys {
            assert_eq!(may(&nameless, wants), Err(AuthError::EmptyUser), "{wants:?}");
        }
        assert_eq!(may(&nameless, Wants::Nothing), Ok(()));
    }
    for (revision, error) in [
        (None, AuthError::PermissionDenied),
        (Some(0), AuthError::EmptyUser),
        (Some(1), AuthError::OldAuthRevision),
    ] {
        assert_eq!(may(&of("", revision), read), Err(error.clone()));
        assert_eq!(may(&of("eve", revision), read), Err(error), "a user that is not there");
    }
    for wants in without_keys.into_iter().chain([read]) {
        assert_eq!(may(&Caller::Nobody, wants), Err(AuthError::EmptyUser), "{wants:?}");
        assert_eq!(may(&Caller::BadToken, wants), Err(AuthError::InvalidAuthToken), "{wants:?}");
        assert_eq!(may(&Caller::Member, wants), Ok(()), "{wants:?}");
    }
    assert_eq!(may(&Caller::Nobody, Wants::Nothing), Ok(()));
    assert_eq!(may(&Caller::BadToken, Wants::Nothing), Err(AuthError::InvalidAuthToken));
}

/// Lists of leases, for one, are not held against rights for those who may see all of them.
#[test]
fn only_root_may_do_everything_once_rights_are_needed() {
    let of = |name: &str| Caller::User(Arc::new(User { name: name.to_owned(), revision: None }));
    let callers = [Caller::Member, of("root"), of("ann"), of("eve"), Caller::Nobody, Caller::BadToken];
    for (subject, may) in
        [(Subject::new(), [true; 6]), (Subject::enabled(), [true, true, false, false, false, false])]
    {
        let tables = subject.machine.state.store.tables();
        let mut access = Access::of(tables);
        assert_eq!(callers.each_ref().map(|caller| access.is_root(tables, caller)), may);
    }
}
