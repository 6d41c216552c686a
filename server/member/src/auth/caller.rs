//! The party in whose name a request is carried out.

use std::sync::Arc;

/// A caller. The server finds out which, by a token or a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// The member itself, which may do everything.
    Member,
    /// A client that has not said who it is.
    Nobody,
    /// A client whose token is none that counts.
    BadToken,
    /// A user.
    User(Arc<User>),
}

impl Caller {
    /// The user without its token; none if it is no user.
    #[must_use]
    pub fn in_name_only(&self) -> Option<Self> {
        let Self::User(user) = self else { return None };
        Some(match user.revision {
            None => self.clone(),
            Some(_) => Self::User(Arc::new(User { name: user.name.clone(), revision: None })),
        })
    }
}

/// A user as a token or a certificate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// The auth revision that its token was made at, if the token says so: an older one than the
    /// state's does not count any more.
    pub revision: Option<u64>,
}
