//! Commands that change users and roles, logins, and whether callers may do what they ask for.

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_engine::mvcc::Store;
use revd_proto::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest, AuthUserAddRequest, AuthUserChangePasswordRequest,
    AuthUserDeleteRequest, AuthUserGrantRoleRequest, AuthUserRevokeRoleRequest, LeaseRevokeRequest,
};

use crate::apply::command::{Command, Kind};
use crate::apply::key_change::KeyChange;
use crate::apply::local::{LeaseRight, LeaseRights};
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::apply::state::State;
use crate::apply::{Machine, Moment, authorized};
use crate::auth::rules::{self, TokenChange};
use crate::auth::{Access, Attached, Caller, Wants};
use crate::error::{AuthError, Error};

/// A login whose password was checked; the payload of its command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub name: String,
    /// SHA-256 of the first part of the token that is made for it, if members keep tokens.
    pub digest: Option<[u8; 32]>,
}

impl Login {
    /// As the payload of a command.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(1 + 32 + self.name.len());
        out.put_u8(u8::from(self.digest.is_some()));
        out.put_slice(&self.digest.unwrap_or_default());
        out.put_slice(self.name.as_bytes());
        out.into()
    }

    fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < 1 + 32 {
            return None;
        }
        let has_digest = bytes.get_u8() != 0;
        let mut digest = [0; 32];
        bytes.copy_to_slice(&mut digest);
        let name = String::from_utf8(bytes.into()).ok()?;
        Some(Self { name, digest: has_digest.then_some(digest) })
    }
}

/// The outcome of a login: the index of its entry, and the auth revision.
#[must_use]
pub fn decode_login(mut outcome: Bytes) -> Option<(u64, u64)> {
    (outcome.len() == 16).then(|| (outcome.get_u64_le(), outcome.get_u64_le()))
}

/// Carries a command about users or roles out, in the entry of this index. Replies have no fields
/// but the header.
fn run(store: &mut Store, command: &Command, index: u64) -> Result<(Bytes, Option<TokenChange>), Error> {
    let payload = command.payload.clone();
    let mut tokens = None;
    match command.kind {
        Kind::AuthEnable => rules::enable(store)?,
        Kind::AuthDisable => tokens = rules::disable(store),
        Kind::UserAdd => rules::add_user(store, AuthUserAddRequest::decode(payload)?)?,
        Kind::UserDelete => {
            tokens = Some(rules::delete_user(store, &AuthUserDeleteRequest::decode(payload)?.name)?);
        }
        Kind::UserChangePassword => {
            tokens = Some(rules::change_password(store, AuthUserChangePasswordRequest::decode(payload)?)?);
        }
        Kind::UserGrantRole => {
            let AuthUserGrantRoleRequest { user, role } = AuthUserGrantRoleRequest::decode(payload)?;
            rules::grant_role(store, &user, &role)?;
        }
        Kind::UserRevokeRole => {
            let AuthUserRevokeRoleRequest { name, role } = AuthUserRevokeRoleRequest::decode(payload)?;
            rules::revoke_role(store, &name, &role)?;
        }
        Kind::RoleAdd => rules::add_role(store, AuthRoleAddRequest::decode(payload)?.name)?,
        Kind::RoleDelete => rules::delete_role(store, &AuthRoleDeleteRequest::decode(payload)?.role)?,
        Kind::RoleGrantPermission => {
            rules::grant_permission(store, AuthRoleGrantPermissionRequest::decode(payload)?)?;
        }
        Kind::RoleRevokePermission => {
            rules::revoke_permission(store, &AuthRoleRevokePermissionRequest::decode(payload)?)?;
        }
        _ => return login(store, payload, index),
    }
    Ok((Bytes::new(), tokens))
}

fn login(store: &Store, payload: Bytes, index: u64) -> Result<(Bytes, Option<TokenChange>), Error> {
    let Login { name, digest } = Login::decode(payload).ok_or(Error::Malformed("a login is none"))?;
    rules::check_login(store, &name)?;
    let mut reply = Vec::with_capacity(16);
    reply.put_u64_le(index);
    reply.put_u64_le(crate::schema::auth_state(store.tables()).revision);
    Ok((reply.into(), digest.map(|digest| TokenChange::Made { user: name, digest, index })))
}

impl Machine {
    /// Requests need rights.
    #[must_use]
    pub fn needs_rights(&self) -> bool {
        self.access.is_enabled()
    }

    /// Whether a caller may do what depends on keys of leases.
    ///
    /// # Errors
    /// The error that the client gets.
    pub fn check_lease_rights(&mut self, rights: &LeaseRights) -> Result<(), Error> {
        let wants = match rights.right {
            LeaseRight::Write(lease) => Wants::WriteLease(lease),
            LeaseRight::Read(lease) => Wants::ReadLease(Some(lease)),
            LeaseRight::ReadAll => Wants::ReadLease(None),
        };
        let attached = Attached::Leases(&self.state.leases);
        self.access.check(self.state.store.tables(), &rights.caller, &wants, attached)
    }

    /// Carries a command out, if its caller may have it.
    pub(super) fn run(&mut self, command: &Command, moment: Moment, effects: &mut Vec<Effect>) -> Effect {
        if command.kind == Kind::Authorized
            && let Some(envelope) = authorized::open(command)
        {
            let caller = envelope.caller(&self.last_caller);
            let effect = self.run_for(&caller, &envelope.bare, moment, effects);
            self.last_caller = caller;
            return effect;
        }
        self.run_for(&Caller::Nobody, command, moment, effects)
    }

    fn run_for(
        &mut self,
        caller: &Caller,
        command: &Command,
        moment: Moment,
        effects: &mut Vec<Effect>,
    ) -> Effect {
        let change = KeyChange::decode(command);
        if self.access.is_enabled()
            && let Err(error) = check(&mut self.access, &self.state, caller, command, change.as_ref())
        {
            return self.reply(command, Err(error));
        }
        match change {
            Some(change) => self.change(command, change, moment.is_own),
            None => self.carry_out(command, moment, effects),
        }
    }

    pub(super) fn reply(&self, command: &Command, result: Result<Bytes, Error>) -> Effect {
        Effect::Reply(command.id, Outcome { revision: self.state.store.revision(), result, rest: Rest::NONE })
    }

    /// Carries out a command about users or roles, or a login.
    pub(super) fn change_users(
        &mut self,
        command: &Command,
        index: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<Bytes, Error> {
        let (reply, tokens) = run(&mut self.state.store, command, index)?;
        self.access.follow(self.state.store.tables());
        // A start that applies the log again makes no token anew: its time may be over.
        effects.extend(tokens.filter(|_| self.serves).map(Effect::Tokens));
        Ok(reply)
    }
}

/// Whether the caller of a command may have it carried out in the state of now. Requests that
/// cannot be decoded are refused by what carries them out.
pub(super) fn check(
    access: &mut Access,
    state: &State,
    caller: &Caller,
    command: &Command,
    change: Option<&Result<KeyChange, Error>>,
) -> Result<(), Error> {
    let payload = || command.payload.clone();
    let mut check = |wants: &Wants<'_>| {
        access.check(state.store.tables(), caller, wants, Attached::Leases(&state.leases))
    };
    match command.kind {
        Kind::Put | Kind::DeleteRange | Kind::Txn => match change {
            Some(Ok(KeyChange::Put(put))) => check(&Wants::Put(put)),
            Some(Ok(KeyChange::DeleteRange(delete))) => check(&Wants::Delete(delete)),
            Some(Ok(KeyChange::Txn(txn))) => check(&Wants::Txn(txn)),
            _ => Ok(()),
        },
        Kind::LeaseRevoke => LeaseRevokeRequest::decode(payload())
            .map_or(Ok(()), |revoke| check(&Wants::WriteLease(revoke.id))),
        Kind::LeaseGrant => check(&Wants::Login),
        Kind::Compact
        | Kind::Alarm
        | Kind::Downgrade
        | Kind::AuthEnable
        | Kind::AuthDisable
        | Kind::UserAdd
        | Kind::UserDelete
        | Kind::UserChangePassword
        | Kind::UserGrantRole
        | Kind::UserRevokeRole
        | Kind::RoleAdd
        | Kind::RoleDelete
        | Kind::RoleGrantPermission
        | Kind::RoleRevokePermission => check(&Wants::Root),
        // No kind of a command in an envelope.
        Kind::Authorized => Err(Error::Auth(AuthError::PermissionDenied)),
        // A login is how rights begin. Changes of members are judged where they are proposed, for
        // raft has counted votes by the time they are applied. The others are the member's own.
        Kind::Authenticate
        | Kind::MemberAdd
        | Kind::MemberRemove
        | Kind::MemberUpdate
        | Kind::MemberPromote
        | Kind::LeaseExpire
        | Kind::LeaseCheckpoint
        | Kind::BeginHash
        | Kind::Corrupt
        | Kind::MemberAttributes
        | Kind::ClusterVersion => Ok(()),
    }
}

#[cfg(test)]
mod tests;
