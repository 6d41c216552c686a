//! From what a client says to who it is, and whether that one may have what it asks for. While
//! rights are not needed, all of this is one look at a flag.

use std::sync::Arc;

use revd_engine::mvcc::View;
use revd_member::auth::{Attached, Caller, User, Wants};
use revd_member::error::{AuthError, Error};

use crate::api::auth::found::FoundBy;
use crate::api::auth::parts::TokenKind;
use crate::api::auth::tokens::Found;
use crate::api::call::Credentials;
use crate::api::context::ServiceContext;

/// The need of a method: a column of the table of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: its caller may be anybody.
    Open,
    /// A caller that is somebody.
    Login,
    /// A caller with the role `root`.
    Root,
    /// Its service has its request judged.
    Judged,
}

impl ServiceContext {
    /// The caller that a client is, if that matters for a method with this need. A method that is
    /// judged only once is told in any case: that rights are needed may be news.
    ///
    /// # Errors
    /// The error that the client gets, where the need alone decides.
    pub async fn caller(
        &self,
        need: Need,
        is_judged_once: bool,
        credentials: &Credentials,
    ) -> Result<Caller, Error> {
        if need == Need::Open || !(self.status.needs_rights.load() || is_judged_once) {
            return Ok(Caller::Nobody);
        }
        if need == Need::Judged
            && let Ok(caller) = self.identify_now(credentials)
        {
            return Ok(caller);
        }
        Box::pin(async {
            let caller = self.identify(credentials).await;
            match need {
                Need::Open | Need::Judged => {}
                Need::Login => self.check_now(&caller, &Wants::Login).await?,
                Need::Root => self.check_now(&caller, &Wants::Root).await?,
            }
            Ok(caller)
        })
        .await
    }

    /// Counts a call of so many bytes against the limit of its user, if this member knows by now
    /// who that is; whether it does. The cost of a refusal for want of rights comes behind this.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] when the user has asked for too much lately.
    pub fn take_if_known(&self, need: Need, credentials: &Credentials, bytes: usize) -> Result<bool, Error> {
        if self.auth.limits.is_empty() || need == Need::Open || !self.status.needs_rights.load() {
            return Ok(false);
        }
        let Ok(caller) = self.identify_now(credentials) else { return Ok(false) };
        self.auth.limits.take(&caller, bytes).map(|()| true)
    }

    /// Callers are asked for their rights.
    #[must_use]
    pub fn needs_rights(&self) -> bool {
        self.status.needs_rights.load()
    }

    /// The caller that a client is by its token. One that this member may not know yet is looked up
    /// again once the member has caught up with the others.
    async fn identify(&self, credentials: &Credentials) -> Caller {
        match self.identify_now(credentials) {
            Ok(caller) => caller,
            Err(_) if self.wait_to_read(false).await.is_err() => Caller::BadToken,
            Err(_) => self.identify_now(credentials).unwrap_or(Caller::BadToken),
        }
    }

    /// The same as of now; or the index of the entry that may make the token known.
    pub fn identify_now(&self, credentials: &Credentials) -> Result<Caller, u64> {
        let Some(identity) = credentials else { return Ok(Caller::Nobody) };
        let found = &mut *identity.found.0.borrow_mut();
        let Some(token) = &identity.token else {
            // Proven by the handshake; a token goes first.
            let Some(name) = identity.common_name.as_deref() else { return Ok(Caller::Nobody) };
            if !matches!(found, Some(FoundBy::Certificate(_))) {
                let user = Arc::new(User { name: name.to_owned(), revision: None });
                *found = Some(FoundBy::Certificate(user));
            }
            return Ok(found.as_ref().map_or(Caller::Nobody, FoundBy::caller));
        };
        match (&self.auth.kind, &found) {
            (TokenKind::Nothing, _) => return Ok(Caller::BadToken),
            (TokenKind::Simple, Some(FoundBy::Simple(token))) if self.auth.tokens.still_counts(token) => {}
            (TokenKind::Simple, _) => match self.auth.tokens.find(token, self.status.applied.load()) {
                Found::Token(token) => *found = Some(FoundBy::Simple(token)),
                Found::Nothing => return Ok(Caller::BadToken),
                Found::Later(index) => return Err(index),
            },
            (TokenKind::Jwt(_), Some(FoundBy::Signed(_))) => {}
            (TokenKind::Jwt(jwt), _) => *found = Some(FoundBy::Signed(jwt.verified(token))),
        }
        Ok(found.as_ref().map_or(Caller::BadToken, FoundBy::caller))
    }

    /// The caller that a client is behind a wait, in which this member may have caught up with the
    /// end of its token, or with `auth enable`: what a linearizable read is judged by, as in etcd.
    pub fn caller_after_wait(&self, credentials: &Credentials) -> Caller {
        if !self.status.needs_rights.load() {
            return Caller::Nobody;
        }
        self.identify_now(credentials).unwrap_or(Caller::BadToken)
    }

    /// The caller that a client is who has been let in before. A signed token was new enough then:
    /// its name alone counts, as long as that one has the right, or each change of any user would
    /// end all watches.
    pub fn identify_again(&self, credentials: &Credentials) -> Caller {
        let token = credentials.as_ref().and_then(|identity| identity.token.as_ref());
        if let (TokenKind::Jwt(jwt), Some(token)) = (&self.auth.kind, token) {
            let of_name = |name| Caller::User(Arc::new(User { name, revision: None }));
            return jwt.name(token).map_or(Caller::BadToken, of_name);
        }
        self.identify_now(credentials).unwrap_or(Caller::BadToken)
    }

    /// Whether a caller may have what it wants, judged by the View that it is to have it from.
    ///
    /// # Errors
    /// The error that the client gets.
    pub fn check(&self, caller: &Caller, wants: &Wants<'_>, view: &View) -> Result<(), Error> {
        self.check_keys(caller, wants, view, Attached::Unknown)
    }

    /// The same, where keys of leases are known.
    pub fn check_keys(
        &self,
        caller: &Caller,
        wants: &Wants<'_>,
        view: &View,
        attached: Attached<'_>,
    ) -> Result<(), Error> {
        // Set before the first View in which rights are needed.
        if !self.status.needs_rights.load() {
            return Ok(());
        }
        let access = &mut *self.access.borrow_mut();
        access.follow(view.tables());
        access.check(view.tables(), caller, wants, attached)
    }

    /// Whether a caller may read, judged by the View that it reads. As in etcd, a signed token of
    /// another auth revision than this one does not count, also not of a later one.
    ///
    /// # Errors
    /// The error that the client gets.
    pub fn check_read(&self, caller: &Caller, wants: &Wants<'_>, view: &View) -> Result<(), Error> {
        if !self.status.needs_rights.load() {
            return Ok(());
        }
        let access = &mut *self.access.borrow_mut();
        let state = access.follow(view.tables());
        access.check(view.tables(), caller, wants, Attached::Unknown)?;
        match caller {
            Caller::User(user) if user.revision.is_some_and(|revision| revision != state.revision) => {
                Err(Error::Auth(AuthError::OldAuthRevision))
            }
            _ => Ok(()),
        }
    }

    /// The caller may have everything.
    pub fn is_root(&self, caller: &Caller, view: &View) -> bool {
        if !self.status.needs_rights.load() {
            return true;
        }
        let access = &mut *self.access.borrow_mut();
        access.follow(view.tables());
        access.is_root(view.tables(), caller)
    }

    /// Whether a caller may have what it is about to propose. It is judged again when the command
    /// is applied; here a refusal waits until this member knows what others have granted.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn check_now(&self, caller: &Caller, wants: &Wants<'_>) -> Result<(), Error> {
        if self.check_known(caller, wants)? {
            return Ok(());
        }
        Box::pin(async {
            let view = self.view_for_reading(false).await?;
            self.check(caller, wants, &view)
        })
        .await
    }

    /// Whether a caller may have something, as far as this member knows: where it may not, others
    /// may have granted it, and a newer View has to judge.
    ///
    /// # Errors
    /// The error that the client gets, where no View would judge otherwise.
    pub fn check_known(&self, caller: &Caller, wants: &Wants<'_>) -> Result<bool, Error> {
        if !self.status.needs_rights.load() {
            return Ok(true);
        }
        match self.views.look(|view| self.check(caller, wants, view)) {
            Ok(()) => Ok(true),
            // A user that is not known here yet may be known elsewhere.
            Err(error) if *caller == Caller::BadToken => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Whether a caller may have what nothing judges again, by the newest state of users and roles:
    /// this member may lag behind `auth enable`, behind the end of a root's rights, or of its
    /// token. Without a leader none can tell: it is waited for.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn check_newest(&self, credentials: &Credentials, wants: &Wants<'_>) -> Result<View, Error> {
        let view = self.view_for_reading(false).await?;
        self.check(&self.caller_after_wait(credentials), wants, &view)?;
        Ok(view)
    }

    /// Permissions that rights were made of on this edge, ever.
    pub fn permissions_read(&self) -> u64 {
        self.access.borrow().permissions_read()
    }

    /// The auth revision of this member's state.
    pub fn auth_revision(&self) -> u64 {
        self.views.look(|view| self.access.borrow_mut().follow(view.tables()).revision)
    }
}
