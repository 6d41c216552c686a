//! Tests of what each change does, and which are refused.

use std::fmt::Debug;
use std::sync::Arc;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_proto::authpb::permission::Type;

use super::*;

struct Subject {
    store: Store,
}

impl Subject {
    fn new() -> Self {
        let options = DbOptions { page_bytes_if_new: 512 };
        Self { store: Store::open(Arc::new(SimDisk::new()), options).unwrap() }
    }

    fn state(&self) -> AuthState {
        schema::auth_state(self.store.tables())
    }

    fn rows(&self) -> (Vec<User>, Vec<Role>) {
        (schema::users(self.store.tables()).collect(), schema::roles(self.store.tables()).collect())
    }

    /// A change that takes effect counts.
    fn counts<T>(&mut self, change: impl FnOnce(&mut Store) -> Result<T, Error>) -> T {
        let before = self.state();
        let done = change(&mut self.store).unwrap();
        assert_eq!(self.state(), AuthState { revision: before.revision + 1, ..before });
        done
    }

    /// A change that is refused changes nothing.
    fn refuses<T: Debug>(&mut self, error: AuthError, change: impl FnOnce(&mut Store) -> Result<T, Error>) {
        let before = (self.state(), self.rows());
        assert_eq!(change(&mut self.store).unwrap_err(), Error::Auth(error));
        assert_eq!((self.state(), self.rows()), before);
    }

    fn add(&mut self, users: &[&str], roles: &[&str]) {
        users.iter().for_each(|name| self.counts(|store| add_user(store, with_password(name, ""))));
        roles.iter().for_each(|name| self.counts(|store| add_role(store, (*name).to_owned())));
    }

    fn grant(&mut self, user: &str, role: &str) {
        self.counts(|store| grant_role(store, user, role));
    }

    fn roles_of(&self, name: &str) -> Vec<String> {
        user(&self.store, name).unwrap().roles
    }
}

fn with_password(name: &str, hash: &str) -> AuthUserAddRequest {
    let (name, hashed_password) = (name.to_owned(), hash.to_owned());
    AuthUserAddRequest { name, hashed_password, ..AuthUserAddRequest::default() }
}

fn without_password(name: &str) -> AuthUserAddRequest {
    let options = Some(UserAddOptions { no_password: true });
    AuthUserAddRequest { options, ..with_password(name, "Zg==") }
}

fn password(name: &str, hash: &str) -> AuthUserChangePasswordRequest {
    let (name, hashed_password) = (name.to_owned(), hash.to_owned());
    AuthUserChangePasswordRequest { name, hashed_password, ..AuthUserChangePasswordRequest::default() }
}

#[test]
fn base64_is_read_as_go_reads_it() {
    assert_eq!(base64("").unwrap(), b"");
    assert_eq!(base64("JDJhJDA0").unwrap(), b"$2a$04");
    assert_eq!(base64("Zm9vYg==").unwrap(), b"foob");
    assert_eq!(base64("Zm9vYmE=").unwrap(), b"fooba");
    assert_eq!(base64("+/AZaz09").unwrap(), [0xfb, 0xf0, 0x19, 0x6b, 0x3d, 0x3d]);
    for bad in ["Zg", "Zg=", "Z===", "====", "Zm9v Yg==", "Zg==Zg==", "Zm9vYg-_"] {
        assert_eq!(base64(bad), None, "{bad}");
    }
}

#[test]
fn users_come_change_and_go() {
    let mut subject = Subject::new();
    subject.refuses(AuthError::EmptyUser, |store| add_user(store, with_password("", "")));
    subject.counts(|store| add_user(store, with_password("ann", "Zm9v")));
    subject.refuses(AuthError::UserExists, |store| add_user(store, with_password("ann", "")));
    subject.refuses(AuthError::NoPasswordUser, |store| add_user(store, with_password("bob", "?")));
    // A hash for who has no password is not kept.
    subject.counts(|store| add_user(store, without_password("bob")));
    let passwords =
        |subject: &Subject| ["ann", "bob"].map(|name| user(&subject.store, name).unwrap().password);
    assert_eq!(passwords(&subject), [&b"foo"[..], b""]);
    assert!(has_no_password(&user(&subject.store, "bob").unwrap()));
    assert!(!has_no_password(&user(&subject.store, "ann").unwrap()));

    for name in ["ann", "bob"] {
        let change = subject.counts(|store| change_password(store, password(name, "YmFy")));
        assert_eq!(change, TokenChange::RevokedOf(name.to_owned()));
    }
    assert_eq!(passwords(&subject), [&b"bar"[..], b""]);
    subject.refuses(AuthError::NoPasswordUser, |store| change_password(store, password("ann", "?")));
    subject.refuses(AuthError::UserNotFound, |store| change_password(store, password("eve", "")));

    subject.refuses(AuthError::UserNotFound, |store| delete_user(store, "eve"));
    let gone = subject.counts(|store| delete_user(store, "ann"));
    assert_eq!(gone, TokenChange::RevokedOf("ann".to_owned()));
    subject.refuses(AuthError::UserNotFound, |store| delete_user(store, "ann"));
    let names: Vec<Bytes> = subject.rows().0.into_iter().map(|user| user.name).collect();
    assert_eq!(names, ["bob"]);
}

#[test]
fn names_of_users_are_bounded() {
    let mut subject = Subject::new();
    let named = |bytes| with_password(&"x".repeat(bytes), "");
    subject.counts(|store| add_user(store, named(limits::AUTH_NAME_BYTES_MAX)));
    let too_long = add_user(&mut subject.store, named(limits::AUTH_NAME_BYTES_MAX + 1));
    assert_eq!(too_long, Err(Error::RequestTooLarge));
    assert_eq!(subject.rows().0.len(), 1);
}

#[test]
fn roles_are_granted_once_and_lost_with_their_role() {
    let mut subject = Subject::new();
    subject.add(&["ann", "bob"], &["b", "a"]);
    subject.refuses(AuthError::EmptyRole, |store| add_role(store, String::new()));
    subject.refuses(AuthError::RoleExists, |store| add_role(store, "a".to_owned()));
    subject.refuses(AuthError::UserNotFound, |store| grant_role(store, "eve", "a"));
    subject.refuses(AuthError::RoleNotFound, |store| grant_role(store, "ann", "c"));
    // As with etcd the role `root` need not be there.
    for role in ["root", "b", "a"] {
        subject.grant("ann", role);
    }
    subject.grant("bob", "b");
    assert_eq!(subject.roles_of("ann"), ["a", "b", "root"], "in order");
    let before = subject.state();
    grant_role(&mut subject.store, "ann", "b").unwrap();
    assert_eq!(subject.state(), before, "it had that one");

    subject.refuses(AuthError::UserNotFound, |store| revoke_role(store, "eve", "a"));
    subject.refuses(AuthError::RoleNotGranted, |store| revoke_role(store, "bob", "a"));
    subject.counts(|store| revoke_role(store, "ann", "a"));
    assert_eq!(subject.roles_of("ann"), ["b", "root"]);
    subject.grant("ann", "a");

    subject.refuses(AuthError::RoleNotFound, |store| delete_role(store, "c"));
    subject.counts(|store| delete_role(store, "b"));
    assert_eq!(subject.roles_of("ann"), ["a", "root"]);
    assert_eq!(subject.roles_of("bob"), [""; 0]);
    let roles: Vec<Bytes> = subject.rows().1.into_iter().map(|role| role.name).collect();
    assert_eq!(roles, ["a"]);
}

#[test]
fn root_stays_while_rights_are_needed() {
    let mut subject = Subject::new();
    subject.refuses(AuthError::RootUserNotFound, enable);
    subject.add(&["root", "ann"], &["root", "a"]);
    subject.grant("root", "a");
    subject.refuses(AuthError::RootRoleNotGranted, enable);
    for user in ["root", "ann"] {
        subject.grant(user, "root");
    }
    subject.grant("ann", "a");
    let revision = subject.state().revision;
    for _ in 0..2 {
        enable(&mut subject.store).unwrap();
        assert_eq!(subject.state(), AuthState { enabled: true, revision }, "as with etcd that is no change");
    }
    subject.refuses(AuthError::InvalidAuthManagement, |store| delete_user(store, "root"));
    subject.refuses(AuthError::InvalidAuthManagement, |store| delete_role(store, "root"));
    subject.refuses(AuthError::InvalidAuthManagement, |store| revoke_role(store, "root", "root"));
    // Others than root, and other roles, are no matter.
    subject.counts(|store| revoke_role(store, "root", "a"));
    subject.counts(|store| revoke_role(store, "ann", "root"));
    subject.counts(|store| delete_role(store, "a"));
    subject.counts(|store| delete_user(store, "ann"));

    let revision = subject.state().revision;
    for ended in [Some(TokenChange::RevokedAll), None] {
        assert_eq!(disable(&mut subject.store), ended);
        assert_eq!(subject.state(), AuthState { enabled: false, revision: revision + 1 });
    }
    subject.counts(|store| revoke_role(store, "root", "root"));
    subject.counts(|store| delete_role(store, "root"));
    subject.counts(|store| delete_user(store, "root"));
}

#[test]
fn users_with_passwords_log_in_while_rights_are_needed() {
    let mut subject = Subject::new();
    subject.add(&["root", "ann"], &[]);
    subject.grant("root", "root");
    subject.counts(|store| add_user(store, without_password("bob")));
    subject.refuses(AuthError::AuthNotEnabled, |store| check_login(store, "ann"));
    enable(&mut subject.store).unwrap();
    check_login(&subject.store, "ann").unwrap();
    subject.refuses(AuthError::AuthFailed, |store| check_login(store, "bob"));
    subject.refuses(AuthError::AuthFailed, |store| check_login(store, "eve"));
}

#[test]
fn a_permission_is_named_by_its_key_and_its_range_end() {
    let mut subject = Subject::new();
    subject.add(&[], &["r"]);
    let permission = |perm_type: Type, key: &'static str, range_end: &'static str| Permission {
        perm_type: perm_type as i32,
        key: key.into(),
        range_end: range_end.into(),
    };
    let grant =
        |name: &str, perm: Option<Permission>| AuthRoleGrantPermissionRequest { name: name.to_owned(), perm };
    let read = |key, range_end| permission(Type::Read, key, range_end);
    subject.refuses(AuthError::PermissionNotGiven, |store| grant_permission(store, grant("r", None)));
    // The range is looked at before the role.
    for (key, range_end) in [("", "b"), ("", "\0"), ("b", "a"), ("b", "b")] {
        let perm = Some(read(key, range_end));
        subject.refuses(AuthError::InvalidAuthManagement, |store| grant_permission(store, grant("x", perm)));
    }
    let unknown = || grant("x", Some(read("a", "")));
    subject.refuses(AuthError::RoleNotFound, |store| grant_permission(store, unknown()));
    for (key, range_end) in [("b", "c"), ("a", "\0"), ("b", ""), ("a", "b"), ("c", "d")] {
        subject.counts(|store| grant_permission(store, grant("r", Some(read(key, range_end)))));
    }
    let held = |subject: &Subject| role(&subject.store, "r").unwrap().key_permission;
    let expected = [("a", "\0"), ("a", "b"), ("b", "c"), ("b", ""), ("c", "d")];
    assert_eq!(held(&subject), expected.map(|(key, end)| read(key, end)), "by key");

    // The type of the one that is there changes, and no other.
    let write = permission(Type::Write, "b", "");
    subject.counts(|store| grant_permission(store, grant("r", Some(write.clone()))));
    let mut expected = expected.map(|(key, end)| read(key, end));
    expected[3] = write;
    assert_eq!(held(&subject), expected);

    let revoke = |role: &str, key: &'static str, range_end: &'static str| AuthRoleRevokePermissionRequest {
        role: role.to_owned(),
        key: key.into(),
        range_end: range_end.into(),
    };
    let missing = revoke("x", "b", "c");
    subject.refuses(AuthError::RoleNotFound, |store| revoke_permission(store, &missing));
    let other_end = revoke("r", "b", "d");
    subject.refuses(AuthError::PermissionNotGranted, |store| revoke_permission(store, &other_end));
    subject.counts(|store| revoke_permission(store, &revoke("r", "b", "c")));
    let left: Vec<_> = expected.iter().filter(|one| **one != read("b", "c")).cloned().collect();
    assert_eq!(held(&subject), left);
}
