//! The parts of users and tokens that all edges of a member share.

use std::sync::Arc;

use crate::api::auth::jwt::Jwt;
use crate::api::auth::passwords::Passwords;
use crate::api::auth::tokens::Tokens;
use crate::api::auth::user_limits::UserLimits;
use crate::config::{Config, TokenConfig};

/// Node view.
#[derive(Debug, Clone)]
pub struct AuthParts {
    /// Which tokens count.
    pub kind: TokenKind,
    /// The simple tokens that users have been given.
    pub tokens: Arc<Tokens>,
    /// The threads that make and check hashes of passwords.
    pub passwords: Arc<Passwords>,
    /// The limits of users.
    pub limits: Arc<UserLimits>,
}

/// The kind of tokens that count.
#[derive(Debug, Clone)]
pub enum TokenKind {
    /// None.
    Nothing,
    /// Letters that members remember.
    Simple,
    /// Signed ones.
    Jwt(Arc<Jwt>),
}

impl AuthParts {
    /// No tokens yet; keys of signed ones are read.
    ///
    /// # Errors
    /// The mistake in the keys, for the operator.
    pub fn open(config: &Config) -> Result<Self, String> {
        let kind = match &config.tokens {
            TokenConfig::Nothing => TokenKind::Nothing,
            TokenConfig::Simple => TokenKind::Simple,
            TokenConfig::Jwt(jwt) => TokenKind::Jwt(Arc::new(Jwt::load(jwt)?)),
        };
        Ok(Self {
            kind,
            tokens: Arc::new(Tokens::new(config.auth_token_ttl)),
            passwords: Arc::new(Passwords::new(config.bcrypt_cost)),
            limits: Arc::new(UserLimits::new(&config.user_limits)),
        })
    }
}
