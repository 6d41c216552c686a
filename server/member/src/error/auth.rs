//! Errors about users, roles and rights.

use crate::error::status::Code;

/// An error about users, roles or rights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("etcdserver: root user does not exist")]
    RootUserNotFound,
    #[error("etcdserver: root user does not have root role")]
    RootRoleNotGranted,
    #[error("etcdserver: user name already exists")]
    UserExists,
    /// No user is named where one has to be, or no token came with a request.
    #[error("etcdserver: user name is empty")]
    EmptyUser,
    #[error("etcdserver: user name not found")]
    UserNotFound,
    #[error("etcdserver: role name already exists")]
    RoleExists,
    #[error("etcdserver: role name is empty")]
    EmptyRole,
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    /// Members know the public key alone: tokens are made elsewhere.
    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnlyKey,
    #[error("bcrypt: password length exceeds 72 bytes")]
    PasswordTooLong,
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    #[error("etcdserver: invalid auth token")]
    InvalidAuthToken,
    #[error("etcdserver: invalid auth management")]
    InvalidAuthManagement,
    /// Users or roles have changed since the request's token was made, or since it was proposed.
    #[error("etcdserver: revision of auth store is old")]
    OldAuthRevision,
}

impl AuthError {
    /// The gRPC code it travels with.
    #[must_use]
    pub(super) fn code(&self) -> Code {
        match self {
            Self::EmptyUser
            | Self::EmptyRole
            | Self::AuthFailed
            | Self::PermissionNotGiven
            | Self::InvalidAuthManagement
            | Self::OldAuthRevision => Code::InvalidArgument,
            Self::PermissionDenied => Code::PermissionDenied,
            Self::InvalidAuthToken => Code::Unauthenticated,
            Self::NoPasswordUser | Self::PasswordTooLong | Self::VerifyOnlyKey => Code::Unknown,
            Self::RootUserNotFound
            | Self::RootRoleNotGranted
            | Self::UserExists
            | Self::UserNotFound
            | Self::RoleExists
            | Self::RoleNotFound
            | Self::RoleNotGranted
            | Self::PermissionNotGranted
            | Self::AuthNotEnabled => Code::FailedPrecondition,
        }
    }
}
