//! A caller as it was found by its token or certificate, kept with these for its next call.

use std::cell::RefCell;
use std::sync::Arc;

use revd_member::auth::{Caller, User};

use crate::api::auth::jwt::Verified;
use crate::api::auth::tokens::FoundToken;

/// Edge view: how a caller was found last, if it was. That it still counts is for others to say.
#[derive(Debug, Default)]
pub struct FoundCaller(pub(super) RefCell<Option<FoundBy>>);

#[derive(Debug)]
pub(super) enum FoundBy {
    Simple(FoundToken),
    /// None if the token is none.
    Signed(Option<Verified>),
    Certificate(Arc<User>),
}

impl FoundBy {
    /// The caller; a signed token says itself whether it counts now.
    pub(super) fn caller(&self) -> Caller {
        let user = match self {
            Self::Simple(token) => Some(token.user()),
            Self::Signed(verified) => verified.as_ref().and_then(Verified::user),
            Self::Certificate(user) => Some(user),
        };
        user.map_or(Caller::BadToken, |user| Caller::User(Arc::clone(user)))
    }
}
