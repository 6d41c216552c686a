//! Simple tokens: sixteen letters, a dot, and the index of the entry in which their user logged
//! in. Every member comes to know them with that entry, keeps them in memory, and forgets those
//! that are not used for a while, as etcd does. Only a digest of the letters is kept: neither a
//! member's memory nor its log has a token that could be used.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use revd_member::auth::User;
use revd_member::auth::rules::TokenChange;
use sha2::{Digest as _, Sha256};

use crate::clock::Ticker;
use crate::limits;
use crate::secret::Secret;

/// Letters of a token, before its dot.
pub(super) const LETTERS: usize = 16;

/// The index of a login's entry, and the digest of its token's letters: a batch may have several
/// logins.
type Key = (u64, [u8; 32]);

/// Node view: the tokens that count. Edges look them up while rights are needed, and only then.
#[derive(Debug)]
pub struct Tokens {
    made: RwLock<Made>,
    ttl: u64,
    clock: Ticker,
}

#[derive(Debug, Default)]
struct Made {
    by_key: BTreeMap<Key, Token>,
    /// The keys of each user's tokens, the oldest first.
    by_user: BTreeMap<String, BTreeSet<Key>>,
    /// When each token is looked at next, to see whether its time is over: no later than that is.
    looks: BTreeSet<(u64, Key)>,
}

#[derive(Debug)]
struct Token {
    user: Arc<User>,
    /// By the clock in milliseconds.
    used: AtomicU64,
    /// Its place in `Made::looks`.
    look: u64,
}

/// The result of looking a token up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is this user's.
    User(Arc<User>),
    /// It is none.
    Nothing,
    /// It may be known once the entry of this index is applied.
    Later(u64),
}

/// The digest of a token's letters.
#[must_use]
pub(super) fn digest(letters: &[u8]) -> [u8; 32] {
    Sha256::digest(letters).into()
}

/// The index and the letters of what has the form of a token.
fn parse(token: &[u8]) -> Option<(u64, &[u8])> {
    let (letters, dot_and_index) = token.split_at_checked(LETTERS)?;
    let index = std::str::from_utf8(dot_and_index.strip_prefix(b".")?).ok()?;
    let is_number = index.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| index.parse().ok()).flatten().map(|index| (index, letters))
}

impl Tokens {
    /// None yet; a token ends when it was not used for so long.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        let ttl = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        Self { made: RwLock::default(), ttl, clock: Ticker::new() }
    }

    /// The state has changed so that tokens come or go.
    pub fn change(&self, change: TokenChange) {
        self.change_at(change, self.clock.milliseconds());
    }

    fn change_at(&self, change: TokenChange, now: u64) {
        let made = &mut *self.made.write().unwrap_or_else(PoisonError::into_inner);
        match change {
            TokenChange::Made { user, digest, index } => made.insert(user, (index, digest), now, self.ttl),
            TokenChange::RevokedOf(user) => made.remove_user(&user),
            TokenChange::RevokedAll => *made = Made::default(),
        }
    }

    /// The user of a token, for which it is used now. `applied`: the member has applied so much.
    pub(super) fn find(&self, token: &Secret, applied: u64) -> Found {
        self.find_at(token, applied, self.clock.milliseconds())
    }

    fn find_at(&self, token: &Secret, applied: u64, now: u64) -> Found {
        let Some((index, letters)) = parse(token.expose()) else { return Found::Nothing };
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        // Compared by digests: how long that takes says nothing of the letters.
        match made.by_key.get(&(index, digest(letters))) {
            Some(token) if !token.is_over(now, self.ttl) => {
                token.used.store(now, Ordering::Relaxed);
                Found::User(Arc::clone(&token.user))
            }
            None if index > applied => Found::Later(index),
            _ => Found::Nothing,
        }
    }
}

impl Token {
    fn is_over(&self, now: u64, ttl: u64) -> bool {
        now.saturating_sub(self.used.load(Ordering::Relaxed)) > ttl
    }
}

impl Made {
    /// Tokens that are over go, a few each time that there is a new one; if there is no room, the
    /// oldest makes room: of the same user, or of all.
    fn insert(&mut self, user: String, key: Key, now: u64, ttl: u64) {
        self.remove_those_over(now, ttl);
        let oldest = match self.by_user.get(&user) {
            Some(own) if own.len() >= limits::TOKENS_PER_USER_MAX => own.first(),
            _ if self.by_key.len() >= limits::TOKENS_MAX => self.by_key.keys().next(),
            _ => None,
        };
        if let Some(oldest) = oldest.copied() {
            self.remove(oldest);
        }
        self.by_user.entry(user.clone()).or_default().insert(key);
        let (user, look) = (Arc::new(User { name: user, revision: None }), now.saturating_add(ttl));
        self.looks.insert((look, key));
        self.by_key.insert(key, Token { user, used: AtomicU64::new(now), look });
    }

    /// Looks at a few tokens whose time may be over. One that was used since is looked at again
    /// when it may be over then: more are looked at than made, so that none stays for long.
    fn remove_those_over(&mut self, now: u64, ttl: u64) {
        for _ in 0..limits::TOKENS_LOOKED_AT {
            let Some((_, key)) = self.looks.first().copied().filter(|(look, _)| *look < now) else {
                return;
            };
            self.looks.pop_first();
            let Some(token) = self.by_key.get_mut(&key) else { continue };
            if token.is_over(now, ttl) {
                self.remove(key);
            } else {
                token.look = token.used.load(Ordering::Relaxed).saturating_add(ttl);
                self.looks.insert((token.look, key));
            }
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(token) = self.by_key.remove(&key) else { return };
        self.looks.remove(&(token.look, key));
        if let Some(own) = self.by_user.get_mut(&token.user.name) {
            own.remove(&key);
            if own.is_empty() {
                self.by_user.remove(&token.user.name);
            }
        }
    }

    fn remove_user(&mut self, user: &str) {
        for key in self.by_user.remove(user).unwrap_or_default() {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u8; 16] = b"abcdefghijklmnop";

    fn made(user: &str, letters: &[u8], index: u64) -> TokenChange {
        TokenChange::Made { user: user.to_owned(), digest: digest(letters), index }
    }

    fn token(text: &str) -> Secret {
        text.to_owned().into()
    }

    fn user(tokens: &Tokens, text: &str, now: u64) -> Option<String> {
        match tokens.find_at(&token(text), u64::MAX, now) {
            Found::User(user) => Some(user.name.clone()),
            _ => None,
        }
    }

    #[test]
    fn a_token_is_its_users_as_long_as_it_is_used() {
        let tokens = Tokens::new(Duration::from_secs(1));
        tokens.change_at(made("ann", A, 7), 0);
        let text = "abcdefghijklmnop.7";
        assert_eq!(user(&tokens, text, 900).as_deref(), Some("ann"));
        assert_eq!(user(&tokens, text, 1_900).as_deref(), Some("ann"));
        assert_eq!(user(&tokens, text, 2_901), None);
        tokens.change_at(made("bob", A, 8), 0);
        tokens.change_at(TokenChange::RevokedOf("ann".to_owned()), 0);
        assert_eq!(user(&tokens, text, 0), None);
        assert_eq!(user(&tokens, "abcdefghijklmnop.8", 0).as_deref(), Some("bob"));
        tokens.change_at(TokenChange::RevokedAll, 0);
        assert_eq!(user(&tokens, "abcdefghijklmnop.8", 0), None);
    }

    /// Row 88 of the catalogue: what is no token is none, and never more.
    #[test]
    fn what_is_no_token_is_refused() {
        let tokens = Tokens::new(Duration::from_secs(1));
        tokens.change_at(made("ann", A, 7), 0);
        for bad in
            ["", ".", "abcdefghijklmnop", "abcdefghijklmnop.", "abcdefghijklmnop.+7", "bbcdefghijklmnop.7"]
                .into_iter()
                .chain([
                    "abcdefghijklmnop.7.7",
                    "abcdefghijklmnop.99999999999999999999",
                    "\u{e4}bcdefghijklmno.7",
                ])
        {
            assert_eq!(tokens.find_at(&token(bad), 9, 0), Found::Nothing, "{bad}");
        }
        assert_eq!(tokens.find_at(&token("abcdefghijklmnop.12"), 9, 0), Found::Later(12));
    }

    #[test]
    fn tokens_have_a_bound() {
        let tokens = Tokens::new(Duration::from_secs(1));
        let count = |tokens: &Tokens| tokens.made.read().unwrap().by_key.len();
        for index in 0..limits::TOKENS_PER_USER_MAX as u64 + 5 {
            tokens.change_at(made("ann", A, index), 0);
        }
        assert_eq!(count(&tokens), limits::TOKENS_PER_USER_MAX);
        assert_eq!(user(&tokens, "abcdefghijklmnop.4", 0), None, "the oldest make room");
        assert!(user(&tokens, "abcdefghijklmnop.5", 0).is_some());
        for index in 0..limits::TOKENS_MAX as u64 {
            tokens.change_at(made(&format!("user {}", index / 9), A, index), 0);
        }
        assert_eq!(count(&tokens), limits::TOKENS_MAX);
    }

    /// At its bound, and while most tokens are over, a new one costs what any other does.
    #[test]
    fn a_new_token_looks_at_a_few_others() {
        let tokens = Tokens::new(Duration::from_secs(1));
        let count = |tokens: &Tokens| tokens.made.read().unwrap().by_key.len();
        let all = limits::TOKENS_MAX as u64;
        for index in 0..all {
            tokens.change_at(made(&format!("user {}", index / 9), A, index), 0);
        }
        assert_eq!(user(&tokens, "abcdefghijklmnop.5", 900).as_deref(), Some("user 0"));
        tokens.change_at(made("late", A, all), 1_500);
        assert_eq!(count(&tokens), limits::TOKENS_MAX - limits::TOKENS_LOOKED_AT + 1);
        assert!(user(&tokens, "abcdefghijklmnop.5", 1_500).is_some(), "it was used");
        let rounds = all / (limits::TOKENS_LOOKED_AT as u64 - 1);
        for index in 0..rounds {
            tokens.change_at(made(&format!("late {}", index / 9), A, all + 1 + index), 1_500);
        }
        assert_eq!(count(&tokens) as u64, rounds + 2, "those that are over are gone");
        assert!(user(&tokens, "abcdefghijklmnop.5", 1_600).is_some());
        let made = tokens.made.read().unwrap();
        assert_eq!(made.looks.len(), made.by_key.len(), "each is looked at again");
    }
}
