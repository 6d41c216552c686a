//! Rows of users and roles, and whether they count.

use prost::Message as _;
use revd_engine::mvcc::{SmallTable, Store, Tables};
use revd_proto::authpb::{Role, User};

const AUTH: &[u8] = b"auth";

/// Whether users are asked for their rights, and which state of users and roles this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuthState {
    /// Requests need rights.
    pub enabled: bool,
    /// Counts changes of users, roles and permissions; begins with 1.
    pub revision: u64,
}

impl AuthState {
    /// As it is before anything was said about it.
    pub const NEW: Self = Self { enabled: false, revision: 1 };
}

/// Whether rights are asked for, and the auth revision.
#[must_use]
pub fn auth_state(tables: &Tables) -> AuthState {
    let row = tables.get(SmallTable::Cluster, AUTH).and_then(|row| row.split_first());
    let read = |(enabled, revision): (&u8, &[u8])| {
        let revision = u64::from_le_bytes(revision.try_into().ok()?);
        Some(AuthState { enabled: *enabled != 0, revision })
    };
    row.and_then(read).unwrap_or(AuthState::NEW)
}

/// Writes it.
pub fn put_auth_state(store: &mut Store, state: AuthState) {
    let row = [&[u8::from(state.enabled)][..], &state.revision.to_le_bytes()].concat();
    store.table_put(SmallTable::Cluster, AUTH, &row);
}

/// A user's row.
#[must_use]
pub fn user(tables: &Tables, name: &str) -> Option<User> {
    tables.get(SmallTable::Users, name.as_bytes()).and_then(|row| User::decode(row).ok())
}

/// All users, by name.
pub fn users(tables: &Tables) -> impl Iterator<Item = User> {
    tables.rows(SmallTable::Users).filter_map(|(_, row)| User::decode(row).ok())
}

/// Writes a user's row.
pub fn put_user(store: &mut Store, user: &User) {
    store.table_put(SmallTable::Users, &user.name, &user.encode_to_vec());
}

/// Removes a user's row.
pub fn remove_user(store: &mut Store, name: &str) {
    store.table_remove(SmallTable::Users, name.as_bytes());
}

/// A role's row.
#[must_use]
pub fn role(tables: &Tables, name: &str) -> Option<Role> {
    tables.get(SmallTable::Roles, name.as_bytes()).and_then(|row| Role::decode(row).ok())
}

/// All roles, by name.
pub fn roles(tables: &Tables) -> impl Iterator<Item = Role> {
    tables.rows(SmallTable::Roles).filter_map(|(_, row)| Role::decode(row).ok())
}

/// Writes a role's row.
pub fn put_role(store: &mut Store, role: &Role) {
    store.table_put(SmallTable::Roles, &role.name, &role.encode_to_vec());
}

/// Removes a role's row.
pub fn remove_role(store: &mut Store, name: &str) {
    store.table_remove(SmallTable::Roles, name.as_bytes());
}
