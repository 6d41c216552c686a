//! Signed tokens (JWT), with etcd's claims: `username`, `revision` (of users and roles, when it was
//! made) and `exp`. The public key is enough to look at one: no member remembers any, and one
//! that a member, or a program elsewhere, has made counts at all. A token ends with its time, and
//! for requests that name keys as soon as users or roles have changed.
//!
//! ```text
//! {"alg":"RS256","typ":"JWT"} . {"exp":...,"revision":...,"username":"ann"} . signature
//!         base64url                          base64url                          base64url
//! ```
//!
//! Verifying takes tens of microseconds: tokens that have been verified are remembered by their
//! digest, and apart from them, so that nobody's guesses take their room, those that were refused.
//! Nothing of a token is parsed before its signature is right.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use revd_member::auth::User;
use revd_member::error::{AuthError, Error};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::auth::jwt_keys::Keys;
use crate::api::auth::recent::Recent;
use crate::clock;
use crate::config::JwtConfig;
use crate::limits;
use crate::secret::Secret;

/// A number in a claim above which Go's whole numbers end.
const NUMBER_MAX: f64 = 9_223_372_036_854_775_807.0;

/// Node view: the keys, and tokens that have been verified.
#[derive(Debug)]
pub struct Jwt {
    keys: Keys,
    ttl: Duration,
    verified: RwLock<Recent<Verified>>,
    /// Tokens that are none: one caller may send the same one with each of its requests.
    refused: RwLock<Recent<()>>,
}

/// The content of a token whose signature was right. It is that of its letters for as long as the
/// member runs: who holds both need not ask again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verified {
    user: Arc<User>,
    /// It counts from here to before there, in seconds since 1970.
    not_before: i64,
    ends: i64,
}

impl Verified {
    /// The same for one connection: other cores do not count in its user.
    fn apart(&self) -> Self {
        Self { user: Arc::new(User::clone(&self.user)), ..*self }
    }

    fn counts_at(&self, now: i64) -> bool {
        self.not_before <= now && now < self.ends
    }

    /// The user, if the token counts now.
    pub(super) fn user(&self) -> Option<&Arc<User>> {
        self.counts_at(seconds_now()).then_some(&self.user)
    }
}

fn seconds_now() -> i64 {
    let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    /// For the operator; no part of a key is in it.
    pub fn load(config: &JwtConfig) -> Result<Self, String> {
        let verified = RwLock::new(Recent::new(limits::JWTS_VERIFIED_MAX));
        let refused = RwLock::new(Recent::new(limits::JWTS_REFUSED_MAX));
        Ok(Self { keys: Keys::load(config)?, ttl: config.ttl, verified, refused })
    }

    /// A token for a user, at an auth revision.
    ///
    /// # Errors
    /// [`AuthError::VerifyOnlyKey`] without a private key.
    pub(super) fn sign(&self, user: &str, revision: u64) -> Result<String, Error> {
        let ttl = i64::try_from(self.ttl.as_secs()).unwrap_or(i64::MAX);
        self.sign_until(user, revision, seconds_now().saturating_add(ttl))
    }

    fn sign_until(&self, user: &str, revision: u64, ends: i64) -> Result<String, Error> {
        let head = json!({"alg": self.keys.method(), "typ": "JWT"});
        let claims = json!({"exp": ends, "revision": revision, "username": user});
        let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
        let mut token = format!("{}.{}", encode(&head), encode(&claims));
        let signature = self.keys.sign(token.as_bytes()).ok_or(Error::Auth(AuthError::VerifyOnlyKey))?;
        token.push('.');
        BASE64_URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        Ok(token)
    }

    #[cfg(test)]
    fn find_at(&self, token: &Secret, now: i64) -> Option<Arc<User>> {
        self.verified(token).filter(|verified| verified.counts_at(now)).map(|verified| verified.user)
    }

    /// The name in a token that was right when it came, whether or not its time is over.
    pub(super) fn name(&self, token: &Secret) -> Option<String> {
        self.verified(token).map(|verified| verified.user.name.clone())
    }

    /// The content of a token, whether or not it counts now; none if it is none.
    pub(super) fn verified(&self, token: &Secret) -> Option<Verified> {
        let token = token.expose();
        if token.len() > limits::JWT_BYTES_MAX {
            return None;
        }
        let digest = Sha256::digest(token).into();
        let (known, is_remembered) = match self.remembered(&digest) {
            Some((known, is_old)) => (known, !is_old),
            None => (self.verify(token), false),
        };
        if !is_remembered {
            match &known {
                Some(verified) => {
                    let all = &mut *self.verified.write().unwrap_or_else(PoisonError::into_inner);
                    all.insert(digest, verified.apart());
                }
                None => self.refused.write().unwrap_or_else(PoisonError::into_inner).insert(digest, ()),
            }
        }
        known
    }

    /// The content of a token, as it is remembered, and whether it is about to be forgotten.
    fn remembered(&self, digest: &[u8; 32]) -> Option<(Option<Verified>, bool)> {
        let verified = self.verified.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((verified, is_old)) = verified.get(digest) {
            return Some((Some(verified.apart()), is_old));
        }
        drop(verified);
        let refused = self.refused.read().unwrap_or_else(PoisonError::into_inner);
        refused.get(digest).map(|(_, is_old)| (None, is_old))
    }

    fn verify(&self, token: &[u8]) -> Option<Verified> {
        let dot = token.iter().rposition(|byte| *byte == b'.')?;
        let (text, signature) = (&token[..dot], &token[dot + 1..]);
        let dot = text.iter().position(|byte| *byte == b'.')?;
        let (head, claims) = (&text[..dot], &text[dot + 1..]);
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !self.keys.verify(text, &signature) {
            return None;
        }
        let head = object(head)?;
        // Ours alone, whatever the token would like; and nothing that has to be understood and is
        // not.
        if head.get("alg")?.as_str()? != self.keys.method() || head.contains_key("crit") {
            return None;
        }
        read_claims(&object(claims)?)
    }
}

/// An object of JSON, in base64. Of names that are there twice the last one counts, as in Go.
fn object(base64: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(base64).ok()?).ok()
}

/// The content of a token; none if a claim has a form that etcd does not take. A time that is not
/// there, or 0, is no bound.
fn read_claims(claims: &Map<String, Value>) -> Option<Verified> {
    let name = claims.get("username")?.as_str()?.to_owned();
    let revision = whole(claims.get("revision")?)?;
    let revision = Some(u64::try_from(revision).ok()?);
    let time = |claim: &str| match claims.get(claim) {
        None => Some(None),
        Some(value) => whole(value).map(|seconds| Some(seconds).filter(|seconds| *seconds != 0)),
    };
    Some(Verified {
        user: Arc::new(User { name, revision }),
        not_before: time("nbf")?.unwrap_or(i64::MIN),
        ends: time("exp")?.unwrap_or(i64::MAX),
    })
}

/// The whole part of a number.
fn whole(value: &Value) -> Option<i64> {
    let number = value.as_f64()?;
    #[expect(clippy::cast_possible_truncation, reason = "the fraction is not wanted, and it fits")]
    (number.abs() < NUMBER_MAX).then_some(number as i64)
}

#[cfg(test)]
mod key_pairs;
#[cfg(test)]
mod tests;
