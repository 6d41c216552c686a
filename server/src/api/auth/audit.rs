//! Lines of the log for an operator who asks who was refused, from where, and who changed users or
//! roles.
//!
//! They have names, methods and addresses, but no keys, values, passwords or tokens. The name of a
//! login that failed is left out unless there is such a user: people type their passwords there.
//! Refusals can be caused by anybody who reaches a port: an edge writes so many lines a second, and
//! a later line says how many it has not written.

use std::time::Duration;

use revd_engine::mvcc::View;
use revd_member::apply::command::Kind;
use revd_member::auth::Caller;
use revd_member::error::{AuthError, Code, Error, Status};
use revd_member::schema;
use revd_proto::authpb::permission::Type;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserChangePasswordRequest,
    AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest,
};
use serde_json::{Value, json};

use crate::api::call::{Metadata, Source};
use crate::api::context::ServiceContext;
use crate::api::named_method::NamedMethod;
use crate::edge::change_line::{ChangeLine, NamedField, shown};
use crate::observe::calls::CountedCall;
use crate::observe::log;
use crate::{clock, limits};

/// Kinds of refusals, each with lines of its own: many of one hide none of another.
const LOGINS: usize = 0;
const TOKENS: usize = 1;
const PERMISSIONS: usize = 2;
const WATCHERS: usize = 3;

/// The names in a change of users or roles.
pub(crate) trait Subject {
    /// As fields of a line, of bounded length.
    fn subject(&self) -> Vec<NamedField>;
}

macro_rules! subjects {
    ($($request:ident: $($field:ident)+;)*) => {$(
        impl Subject for $request {
            fn subject(&self) -> Vec<NamedField> {
                vec![$((stringify!($field), Some(shown(&self.$field).into()))),+]
            }
        }
    )*};
}

subjects! {
    AuthUserAddRequest: name;
    AuthUserDeleteRequest: name;
    AuthUserChangePasswordRequest: name;
    AuthUserGrantRoleRequest: user role;
    AuthUserRevokeRoleRequest: name role;
    AuthRoleAddRequest: name;
    AuthRoleDeleteRequest: role;
    AuthRoleRevokePermissionRequest: role;
}

impl Subject for AuthRoleGrantPermissionRequest {
    /// As in etcd's log, the kind of the permission, and not its keys.
    fn subject(&self) -> Vec<NamedField> {
        let kind = self.perm.as_ref().and_then(|permission| Type::try_from(permission.perm_type).ok());
        vec![("name", Some(shown(&self.name).into())), ("permission", kind.map(|it| it.as_str_name().into()))]
    }
}

impl Subject for () {
    fn subject(&self) -> Vec<NamedField> {
        Vec::new()
    }
}

impl ServiceContext {
    /// Counts the end of a call, and tells of it if it was refused.
    pub(crate) fn end_call(
        &self,
        call: CountedCall<'_>,
        method: &NamedMethod,
        metadata: &Metadata,
        refused: Option<&Status>,
    ) {
        if let Some(status) = refused {
            self.tell_refusal(method, metadata, status);
        }
        call.end(refused.map_or(0, |status| status.code() as u8));
    }

    /// A call was refused; nothing is said if that was not for want of rights. Logins have lines
    /// of their own.
    #[cold]
    fn tell_refusal(&self, method: &NamedMethod, metadata: &Metadata, status: &Status) {
        if method.name != "Authenticate" && is_for_rights(status) {
            let is_of_user = status.code() == Code::PermissionDenied;
            let pace = if is_of_user { PERMISSIONS } else { TOKENS };
            self.tell("a request was refused", pace, metadata.source, || {
                let caller = self.identify_now(&metadata.caller).unwrap_or(Caller::BadToken);
                let certificate =
                    metadata.caller.as_ref().and_then(|identity| identity.common_name.as_deref());
                let method = format!("/{}/{}", method.service, method.name);
                json!({
                    "grpc-method": method, "user-name": name(&caller), "common-name": certificate,
                    "error": status.message(),
                })
            });
        }
    }

    /// A watcher was refused or ended, for want of rights.
    #[cold]
    pub(crate) fn tell_refused_watcher(&self, source: Source, caller: &Caller, error: &Error) {
        self.tell(
            "a watcher was refused",
            WATCHERS,
            source,
            || json!({ "user-name": name(caller), "error": error.to_string() }),
        );
    }

    /// A login failed; nothing is said if that was not for its name or its password.
    #[cold]
    pub(super) fn tell_failed_login(&self, source: Source, user: &str, error: &Error) {
        use AuthError::{AuthFailed, NoPasswordUser};
        if matches!(error, Error::Auth(AuthFailed | NoPasswordUser) | Error::TooManyRequests) {
            let is_user = |view: &View| schema::user(view.tables(), user).is_some();
            self.tell("a login was refused", LOGINS, source, || {
                let user = self.views.look(is_user).then_some(user);
                json!({ "user-name": user, "error": error.to_string() })
            });
        }
    }

    fn tell(&self, line: &str, pace: usize, source: Source, fields: impl FnOnce() -> Value) {
        let (now, second) = (clock::coarse_milliseconds(), Duration::from_secs(1));
        let lines_max = limits::AUDIT_LINES_PER_SECOND;
        let Some(unwritten) = self.audit_paces[pace].may_tell_some(now, second, lines_max) else { return };
        let mut fields = fields();
        fields["remote-addr"] = source.address.to_string().into();
        fields["others-since-the-last-line"] = unwritten.into();
        log::warn(line, fields);
    }
}

/// The line that tells of a change of users or roles.
pub(super) fn change_line(kind: Kind, caller: &Caller, source: Source, of: &impl Subject) -> ChangeLine {
    ChangeLine::new(kind, of.subject(), name(caller), &source.address.to_string())
}

fn name(caller: &Caller) -> Option<&str> {
    match caller {
        Caller::User(user) => Some(&user.name),
        Caller::Nobody | Caller::BadToken | Caller::Member => None,
    }
}

fn is_for_rights(status: &Status) -> bool {
    let is_of_nobody = || *status == Status::from(Error::Auth(AuthError::EmptyUser));
    matches!(status.code(), Code::PermissionDenied | Code::Unauthenticated) || is_of_nobody()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A megabyte in each name: the line waits as long as the change.
    #[test]
    fn a_line_keeps_no_more_of_a_change_than_it_shows() {
        let (long, source) = ("n".repeat(1 << 20), Source::default());
        let grant = AuthUserGrantRoleRequest { user: long.clone(), role: long.clone() };
        let permit = AuthRoleGrantPermissionRequest { name: long.clone(), perm: None };
        let add = AuthUserAddRequest { name: long, password: "hidden".to_owned(), ..Default::default() };
        for line in [
            change_line(Kind::UserGrantRole, &Caller::Nobody, source, &grant),
            change_line(Kind::RoleGrantPermission, &Caller::Nobody, source, &permit),
            change_line(Kind::UserAdd, &Caller::Nobody, source, &add),
        ] {
            let kept = format!("{line:?}");
            assert!(kept.len() < 2_000 && kept.contains("nnn") && !kept.contains("hidden"), "{kept}");
        }
    }

    #[test]
    fn refusals_for_want_of_rights_are_told_and_others_are_not() {
        let tells = |error: AuthError| is_for_rights(&Status::from(Error::Auth(error)));
        assert!(tells(AuthError::PermissionDenied) && tells(AuthError::InvalidAuthToken));
        assert!(tells(AuthError::EmptyUser));
        // Clients log in anew by themselves; the others are mistakes of one who has the rights.
        assert!(!tells(AuthError::OldAuthRevision) && !tells(AuthError::UserExists));
    }
}
