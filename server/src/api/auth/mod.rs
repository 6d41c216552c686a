//! The Auth service: users, roles, logins.
//!
//! Rights are judged in `revd_member::auth`; passwords and tokens are here, for they need secrets,
//! threads and time.

mod audit;
pub mod found;
pub mod identity;
pub mod jwt;
mod jwt_keys;
mod known;
mod logins;
pub mod parts;
mod password_hash;
mod password_queue;
pub mod passwords;
mod recent;
pub mod tokens;
pub mod user_limits;
pub(super) mod with_password;

use std::rc::Rc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::apply::command::Kind;
use revd_member::apply::users::{Login, decode_login};
use revd_member::auth::{Caller, ROOT, Wants, rules};
use revd_member::error::{AuthError, Error};
use revd_member::limits::AUTH_NAME_BYTES_MAX;
use revd_member::schema::{self, AuthState};
use revd_proto::authpb::Permission;
use revd_proto::authpb::permission::Type;
use revd_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleListRequest, AuthRoleListResponse,
    AuthStatusRequest, AuthStatusResponse, AuthUserAddRequest, AuthUserChangePasswordRequest,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserListRequest, AuthUserListResponse, AuthenticateRequest,
    AuthenticateResponse,
};

use crate::api::auth::audit::{Subject, change_line};
use crate::api::auth::parts::TokenKind;
use crate::api::auth::password_queue::Password;
use crate::api::auth::with_password::SetsPassword as _;
use crate::api::call::{Credentials, Message, Source, decoded};
use crate::api::context::ServiceContext;
use crate::api::validate;
use crate::limits;
use crate::secret::{Secret, fill_random};

/// The letters of a new token.
fn letters() -> Secret {
    const ALPHABET: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut letters = Vec::with_capacity(tokens::LETTERS);
    while letters.len() < tokens::LETTERS {
        let mut drawn = [0; 32];
        fill_random(&mut drawn);
        // Those above would make some letters likelier than others.
        let even = drawn.iter().filter(|byte| usize::from(**byte) < 4 * ALPHABET.len());
        letters
            .extend(even.take(tokens::LETTERS - letters.len()).map(|byte| ALPHABET[usize::from(*byte) % 52]));
    }
    letters.into()
}

/// Edge view.
#[derive(Debug)]
pub(super) struct Auth {
    context: Rc<ServiceContext>,
}

impl Auth {
    pub(super) fn new(context: &Rc<ServiceContext>) -> Self {
        Self { context: Rc::clone(context) }
    }

    /// Enables or disables: a request without a field, which has to be one all the same.
    pub(super) async fn switch(
        &self,
        caller: &Caller,
        source: Source,
        kind: Kind,
        message: Bytes,
    ) -> Result<Message, Error> {
        decoded(AuthEnableRequest::decode(message))?;
        let line = change_line(kind, caller, source, &());
        self.context.submit_told(caller, kind, Bytes::new(), line).await
    }

    /// Changes users or roles in a way that needs no password. Bytes that are no such request
    /// are not for the log, in which all members would keep them.
    pub(super) async fn change<R: prost::Message + Default + Subject>(
        &self,
        caller: &Caller,
        source: Source,
        kind: Kind,
        message: Bytes,
    ) -> Result<Message, Error> {
        let line = change_line(kind, caller, source, &decoded(R::decode(message.clone()))?);
        self.context.submit_told(caller, kind, message, line).await
    }

    /// The same of a request that has a hash in it now.
    async fn change_hashed<R: prost::Message + Subject>(
        &self,
        credentials: &Credentials,
        source: Source,
        kind: Kind,
        request: R,
    ) -> Result<Message, Error> {
        let caller = &self.root_after_wait(credentials).await?;
        let (line, message) = (change_line(kind, caller, source, &request), request.encode_to_vec().into());
        drop(request); // it does not wait beside its message
        self.context.submit_told(caller, kind, message, line).await
    }

    /// A new user: the password stays here, its hash goes through the log.
    pub(super) async fn user_add(
        &self,
        source: Source,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let bytes = message.len();
        let (request, password) = with_password::decode::<AuthUserAddRequest>(message);
        let mut request = decoded(request)?;
        if request.place_of_hash(&password).is_some() {
            request.hashed_password = self.hashed(source, password).await?;
        } else {
            // Of a password that counts for nothing, etcd's proposal has all.
            validate::proposal_size(bytes, self.context.limits)?;
            request.hashed_password = String::new();
        }
        self.change_hashed(credentials, source, Kind::UserAdd, request).await
    }

    /// Another password, or the hash of one.
    pub(super) async fn user_change_password(
        &self,
        source: Source,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        let (request, password) = with_password::decode::<AuthUserChangePasswordRequest>(message);
        let mut request = decoded(request)?;
        if request.place_of_hash(&password).is_some() {
            request.hashed_password = self.hashed(source, password).await?;
        }
        self.change_hashed(credentials, source, Kind::UserChangePassword, request).await
    }

    /// A root that is one still: its password may have waited long to be hashed, and its token, or
    /// its role, may have ended meanwhile.
    async fn root_after_wait(&self, credentials: &Credentials) -> Result<Caller, Error> {
        let caller = self.context.caller_after_wait(credentials);
        self.context.check_now(&caller, &Wants::Root).await?;
        Ok(caller)
    }

    async fn hashed(&self, source: Source, password: Secret) -> Result<String, Error> {
        let hash = self.context.auth.passwords.hash(source, password).await?;
        Ok(BASE64_STANDARD.encode(hash))
    }

    /// Whether rights are needed; anybody may know.
    pub(super) async fn status(&self, credentials: &Credentials, message: Bytes) -> Result<Message, Error> {
        decoded(AuthStatusRequest::decode(message))?;
        let view = self.view(credentials, &Wants::Nothing).await?;
        let state = schema::auth_state(view.tables());
        self.reply(
            &view,
            &AuthStatusResponse { header: None, enabled: state.enabled, auth_revision: state.revision },
        )
    }

    pub(super) async fn user_get(&self, credentials: &Credentials, message: Bytes) -> Result<Message, Error> {
        let name = decoded(AuthUserGetRequest::decode(message))?.name;
        let view = self.view(credentials, &Wants::User(&name)).await?;
        let user = schema::user(view.tables(), &name).ok_or(Error::Auth(AuthError::UserNotFound))?;
        self.reply(&view, &AuthUserGetResponse { header: None, roles: user.roles })
    }

    pub(super) async fn user_list(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        decoded(AuthUserListRequest::decode(message))?;
        let view = self.view(credentials, &Wants::Root).await?;
        let users = schema::users(view.tables()).map(|user| text(&user.name)).collect();
        self.reply(&view, &AuthUserListResponse { header: None, users })
    }

    /// The role `root` has no permissions of its own: it is shown with all there are.
    pub(super) async fn role_get(&self, credentials: &Credentials, message: Bytes) -> Result<Message, Error> {
        let name = decoded(AuthRoleGetRequest::decode(message))?.role;
        let view = self.view(credentials, &Wants::Role(&name)).await?;
        let role = schema::role(view.tables(), &name).ok_or(Error::Auth(AuthError::RoleNotFound))?;
        let everything = || Permission {
            perm_type: Type::Readwrite as i32,
            key: Bytes::new(),
            range_end: Bytes::from_static(b"\0"),
        };
        let perm = if name == ROOT { vec![everything()] } else { role.key_permission };
        self.reply(&view, &AuthRoleGetResponse { header: None, perm })
    }

    pub(super) async fn role_list(
        &self,
        credentials: &Credentials,
        message: Bytes,
    ) -> Result<Message, Error> {
        decoded(AuthRoleListRequest::decode(message))?;
        let view = self.view(credentials, &Wants::Root).await?;
        let roles = schema::roles(view.tables()).map(|role| text(&role.name)).collect();
        self.reply(&view, &AuthRoleListResponse { header: None, roles })
    }

    /// A state that answers linearizably, in which the caller may have what it wants.
    async fn view(&self, credentials: &Credentials, wants: &Wants<'_>) -> Result<View, Error> {
        self.context.check_newest(credentials, wants).await
    }

    fn reply(&self, view: &View, response: &impl prost::Message) -> Result<Message, Error> {
        Ok(self.context.reply(view.revision(), vec![response.encode_to_vec().into()]))
    }

    /// A login: the password is checked here, the log makes a simple token known to all members,
    /// and says at which auth revision a signed one is made. If users have changed meanwhile, the
    /// password is checked again.
    pub(super) async fn authenticate(&self, source: Source, message: Bytes) -> Result<Message, Error> {
        let (request, password) = with_password::decode::<AuthenticateRequest>(message);
        let (mut name, password) = (decoded(request)?.name, Password::from(password));
        cut_name(&mut name);
        let result = self.login(source, &name, password).await;
        if let Err(error) = &result {
            self.context.tell_failed_login(source, &name, error);
        }
        result
    }

    async fn login(&self, source: Source, name: &str, password: Password) -> Result<Message, Error> {
        for _ in 0..limits::LOGIN_ATTEMPTS_MAX {
            let revision = self.check_password(source, name, &password).await?;
            let letters = letters();
            let is_simple = matches!(self.context.auth.kind, TokenKind::Simple);
            let digest = is_simple.then(|| tokens::digest(letters.expose()));
            let login = Login { name: name.to_owned(), digest };
            let begun = self.context.begin(&Caller::Member, Kind::Authenticate, login.encode(), false)?;
            let outcome = begun.await?;
            let (index, now) = decode_login(outcome.result?).ok_or(Error::Malformed("a login is none"))?;
            if now == revision {
                let token = match &self.context.auth.kind {
                    TokenKind::Simple => format!("{}.{index}", text(letters.expose())),
                    TokenKind::Jwt(jwt) => {
                        self.context.auth.passwords.sign(source, jwt, name.to_owned(), now).await?
                    }
                    TokenKind::Nothing => return Err(Error::Auth(AuthError::AuthFailed)),
                };
                let body = AuthenticateResponse { header: None, token }.encode_to_vec();
                return Ok(self.context.reply(outcome.revision, vec![body.into()]));
            }
        }
        Err(Error::TooManyRequests)
    }

    /// Checks a password; the auth revision that its user was looked up at.
    async fn check_password(&self, source: Source, name: &str, password: &Password) -> Result<u64, Error> {
        let auth = &self.context.auth;
        auth.passwords.may_try(source, name)?;
        let view = self.context.view_for_reading(false).await?;
        let AuthState { enabled, revision, .. } = schema::auth_state(view.tables());
        if !enabled {
            return Err(Error::Auth(AuthError::AuthNotEnabled));
        }
        let user = schema::user(view.tables(), name);
        drop(view);
        let has_none = user.as_ref().is_some_and(rules::has_no_password);
        let hash = user.map(|user| user.password).filter(|_| !has_none);
        let checked = auth.passwords.check(source, name, password.clone(), hash).await;
        if checked == Err(Error::Auth(AuthError::AuthFailed)) {
            // As with etcd, whose text tells that there is such a user.
            return Err(if has_none {
                Error::Auth(AuthError::NoPasswordUser)
            } else {
                Error::Auth(AuthError::AuthFailed)
            });
        }
        checked?;
        Ok(revision)
    }
}

/// Of a name that is too long for a user's as much as is too long, still: it is kept while its
/// login waits.
fn cut_name(name: &mut String) {
    // The longest letter has four bytes.
    name.truncate(name.floor_char_boundary(AUTH_NAME_BYTES_MAX + 4));
    // A field that came twice has the room of the longer one.
    name.shrink_to_fit();
}

/// A name; names come as text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both fields twice, first with a megabyte.
    #[test]
    fn a_login_keeps_no_room_of_what_it_does_not_say() {
        let login = |text: &str| AuthenticateRequest { name: text.to_owned(), password: text.to_owned() };
        let twice = [login(&"x".repeat(1 << 20)), login("ann")].map(|login| login.encode_to_vec()).concat();
        let AuthenticateRequest { mut name, password } = AuthenticateRequest::decode(&twice[..]).unwrap();
        assert!(name.capacity() >= 1 << 20 && password.capacity() >= 1 << 20, "as the decoder leaves it");
        // Of the password `Secret::cut_to` leaves none.
        cut_name(&mut name);
        assert_eq!((&name[..], name.capacity()), ("ann", 3));
    }

    #[test]
    fn no_name_of_a_user_is_made_of_a_longer_one() {
        for letter in ["n", "\u{e4}", "\u{20ac}", "\u{1f600}"] {
            for bytes in [0, 1, AUTH_NAME_BYTES_MAX, AUTH_NAME_BYTES_MAX + 4, 1 << 20] {
                let whole = letter.repeat(bytes / letter.len());
                let mut cut = whole.clone();
                cut_name(&mut cut);
                assert!(cut.len() <= AUTH_NAME_BYTES_MAX + 4 && cut.capacity() <= whole.len());
                assert!(cut == whole || cut.len() > AUTH_NAME_BYTES_MAX && whole.starts_with(&cut));
            }
        }
    }
}
