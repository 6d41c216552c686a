//! The parts of users and tokens that all edges of a member share.

use std::sync::Arc;

use crate::api::auth::logins::Logins;
use crate::api::auth::passwords::Passwords;
use crate::api::auth::tokens::Tokens;

/// Node view.
#[derive(Debug, Clone)]
pub struct AuthParts {
    /// The tokens that users have been given.
    pub tokens: Arc<Tokens>,
    /// The threads that make and check hashes of passwords.
    pub passwords: Arc<Passwords>,
    /// Failed logins.
    pub logins: Arc<Logins>,
}

impl AuthParts {
    /// No tokens yet.
    #[must_use]
    pub fn new(tokens: Tokens, passwords: Passwords) -> Self {
        let logins = Arc::new(Logins::default());
        Self { tokens: Arc::new(tokens), passwords: Arc::new(passwords), logins }
    }
}
