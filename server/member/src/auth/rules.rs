//! How users and roles change: etcd's rules, on the rows of the store.
//!
//! Each change counts the auth revision up, so that tokens and remembered rights of before are
//! known to be old. Passwords arrive as bcrypt hashes; the server has made them.

use bytes::Bytes;
use revd_engine::mvcc::Store;
use revd_proto::authpb::{Permission, Role, User, UserAddOptions};
use revd_proto::etcdserverpb::{
    AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest,
};

use crate::auth::ROOT;
use crate::error::{AuthError, Error};
use crate::limits;
use crate::schema::{self, AuthState};

/// The meaning of a change for tokens that members have in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenChange {
    /// A user has logged in: its token is the one whose first part has this digest, and whose
    /// second part is this index.
    Made {
        /// The user.
        user: String,
        /// SHA-256 of the first part.
        digest: [u8; 32],
        /// The index of the entry.
        index: u64,
    },
    /// The tokens of a user are none any more.
    RevokedOf(String),
    /// No token counts any more.
    RevokedAll,
}

fn count(store: &mut Store) {
    let state = schema::auth_state(store.tables());
    schema::put_auth_state(store, AuthState { revision: state.revision + 1, ..state });
}

fn is_enabled(store: &Store) -> bool {
    schema::auth_state(store.tables()).enabled
}

fn user(store: &Store, name: &str) -> Result<User, Error> {
    schema::user(store.tables(), name).ok_or(Error::Auth(AuthError::UserNotFound))
}

fn role(store: &Store, name: &str) -> Result<Role, Error> {
    schema::role(store.tables(), name).ok_or(Error::Auth(AuthError::RoleNotFound))
}

/// From now on requests need rights. As with etcd this does not count as a change.
pub(crate) fn enable(store: &mut Store) -> Result<(), Error> {
    let state = schema::auth_state(store.tables());
    if state.enabled {
        return Ok(());
    }
    let root = schema::user(store.tables(), ROOT).ok_or(Error::Auth(AuthError::RootUserNotFound))?;
    if !root.roles.iter().any(|role| role == ROOT) {
        return Err(Error::Auth(AuthError::RootRoleNotGranted));
    }
    schema::put_auth_state(store, AuthState { enabled: true, ..state });
    Ok(())
}

/// From now on requests need no rights; all tokens end.
pub(crate) fn disable(store: &mut Store) -> Option<TokenChange> {
    let state = schema::auth_state(store.tables());
    if !state.enabled {
        return None;
    }
    schema::put_auth_state(store, AuthState { enabled: false, revision: state.revision + 1 });
    Some(TokenChange::RevokedAll)
}

/// A user whose password the server has checked logs in.
pub(crate) fn check_login(store: &Store, name: &str) -> Result<(), Error> {
    if !is_enabled(store) {
        return Err(Error::Auth(AuthError::AuthNotEnabled));
    }
    let user = schema::user(store.tables(), name).ok_or(Error::Auth(AuthError::AuthFailed))?;
    if has_no_password(&user) { Err(Error::Auth(AuthError::AuthFailed)) } else { Ok(()) }
}

/// The user can only be named by a certificate.
#[must_use]
pub fn has_no_password(user: &User) -> bool {
    user.options.is_some_and(|options| options.no_password)
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.len() > limits::AUTH_NAME_BYTES_MAX { Err(Error::RequestTooLarge) } else { Ok(()) }
}

pub(crate) fn add_user(store: &mut Store, request: AuthUserAddRequest) -> Result<(), Error> {
    let AuthUserAddRequest { name, options, hashed_password, .. } = request;
    if name.is_empty() {
        return Err(Error::Auth(AuthError::EmptyUser));
    }
    check_name(&name)?;
    if schema::user(store.tables(), &name).is_some() {
        return Err(Error::Auth(AuthError::UserExists));
    }
    let options = options.unwrap_or(UserAddOptions { no_password: false });
    let password = if options.no_password { Bytes::new() } else { decoded(&hashed_password)? };
    let user = User { name: name.into(), password, roles: Vec::new(), options: Some(options) };
    schema::put_user(store, &user);
    count(store);
    Ok(())
}

/// The hash in the wire's form. Other characters than those of base64 are refused with etcd's
/// error.
fn decoded(hash: &str) -> Result<Bytes, Error> {
    base64(hash).map(Bytes::from).ok_or(Error::Auth(AuthError::NoPasswordUser))
}

/// Standard base64 with padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (groups, []) = text.as_bytes().as_chunks::<4>() else { return None };
    let mut out = Vec::with_capacity(3 * groups.len());
    for (at, group) in groups.iter().enumerate() {
        let padding = group.iter().rev().take_while(|byte| **byte == b'=').count();
        if padding > 2 || (padding > 0 && at + 1 < groups.len()) {
            return None;
        }
        let mut bits = 0_u32;
        for byte in &group[..4 - padding] {
            bits = bits << 6 | u32::from(digit(*byte)?);
        }
        bits <<= 6 * padding;
        out.extend_from_slice(&bits.to_be_bytes()[1..4 - padding]);
    }
    Some(out)
}

pub(crate) fn delete_user(store: &mut Store, name: &str) -> Result<TokenChange, Error> {
    if is_enabled(store) && name == ROOT {
        return Err(Error::Auth(AuthError::InvalidAuthManagement));
    }
    user(store, name)?;
    schema::remove_user(store, name);
    count(store);
    Ok(TokenChange::RevokedOf(name.to_owned()))
}

pub(crate) fn change_password(
    store: &mut Store,
    request: AuthUserChangePasswordRequest,
) -> Result<TokenChange, Error> {
    let AuthUserChangePasswordRequest { name, hashed_password, .. } = request;
    let mut user = user(store, &name)?;
    user.password = if has_no_password(&user) { Bytes::new() } else { decoded(&hashed_password)? };
    schema::put_user(store, &user);
    count(store);
    Ok(TokenChange::RevokedOf(name))
}

/// The role has to exist, but for `root`.
pub(crate) fn grant_role(store: &mut Store, name: &str, granted: &str) -> Result<(), Error> {
    let mut user = user(store, name)?;
    if granted != ROOT {
        role(store, granted)?;
    }
    if let Err(at) = user.roles.binary_search_by(|role| role.as_str().cmp(granted)) {
        user.roles.insert(at, granted.to_owned());
        schema::put_user(store, &user);
        count(store);
    }
    Ok(())
}

pub(crate) fn revoke_role(store: &mut Store, name: &str, revoked: &str) -> Result<(), Error> {
    if is_enabled(store) && name == ROOT && revoked == ROOT {
        return Err(Error::Auth(AuthError::InvalidAuthManagement));
    }
    let mut user = user(store, name)?;
    if !remove_role(&mut user, revoked) {
        return Err(Error::Auth(AuthError::RoleNotGranted));
    }
    schema::put_user(store, &user);
    count(store);
    Ok(())
}

fn remove_role(user: &mut User, revoked: &str) -> bool {
    let before = user.roles.len();
    user.roles.retain(|role| role != revoked);
    user.roles.len() < before
}

pub(crate) fn add_role(store: &mut Store, name: String) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::Auth(AuthError::EmptyRole));
    }
    check_name(&name)?;
    if schema::role(store.tables(), &name).is_some() {
        return Err(Error::Auth(AuthError::RoleExists));
    }
    schema::put_role(store, &Role { name: name.into(), key_permission: Vec::new() });
    count(store);
    Ok(())
}

/// Its users lose it. As in etcd, all users are looked at: a table of the users of each role would
/// have to be kept by every grant, for something that is done by hand and seldom. Those that have
/// the role are in memory together, and no others.
pub(crate) fn delete_role(store: &mut Store, name: &str) -> Result<(), Error> {
    if is_enabled(store) && name == ROOT {
        return Err(Error::Auth(AuthError::InvalidAuthManagement));
    }
    role(store, name)?;
    schema::remove_role(store, name);
    let has_lost = |mut user: User| remove_role(&mut user, name).then_some(user);
    let losers: Vec<User> = schema::users(store.tables()).filter_map(has_lost).collect();
    losers.iter().for_each(|user| schema::put_user(store, user));
    count(store);
    Ok(())
}

/// A permission on the same key and range end takes another type.
pub(crate) fn grant_permission(
    store: &mut Store,
    request: AuthRoleGrantPermissionRequest,
) -> Result<(), Error> {
    let permission = request.perm.ok_or(Error::Auth(AuthError::PermissionNotGiven))?;
    if !is_range(&permission) {
        return Err(Error::Auth(AuthError::InvalidAuthManagement));
    }
    let mut role = role(store, &request.name)?;
    let is_same =
        |other: &&mut Permission| other.key == permission.key && other.range_end == permission.range_end;
    if let Some(same) = role.key_permission.iter_mut().find(is_same) {
        same.perm_type = permission.perm_type;
    } else {
        let at = role.key_permission.partition_point(|other| other.key <= permission.key);
        role.key_permission.insert(at, permission);
    }
    schema::put_role(store, &role);
    count(store);
    Ok(())
}

/// There are keys in it.
fn is_range(permission: &Permission) -> bool {
    let Permission { key, range_end, .. } = permission;
    !key.is_empty() && (range_end.is_empty() || key < range_end || &range_end[..] == b"\0")
}

pub(crate) fn revoke_permission(
    store: &mut Store,
    request: &AuthRoleRevokePermissionRequest,
) -> Result<(), Error> {
    let mut role = role(store, &request.role)?;
    let before = role.key_permission.len();
    role.key_permission.retain(|other| other.key != request.key || other.range_end != request.range_end);
    if role.key_permission.len() == before {
        return Err(Error::Auth(AuthError::PermissionNotGranted));
    }
    schema::put_role(store, &role);
    count(store);
    Ok(())
}

#[cfg(test)]
mod tests;
