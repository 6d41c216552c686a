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

use crate::clock::coarse_milliseconds;
use crate::limits;
use crate::secret::Secret;
use crate::threads;

/// Letters of a token, before its dot.
pub(super) const LETTERS: usize = 16;

/// The index of a login's entry, and the digest of its token's letters: a batch may have several
/// logins.
type Key = (u64, [u8; 32]);

/// Node view: the tokens that count. Edges look them up while rights are needed, and only then.
#[derive(Debug)]
pub struct Tokens {
    made: RwLock<Made>,
    /// Counts changes, each while `made` is locked.
    changes: AtomicU64,
    ttl: u64,
}

#[derive(Debug, Default)]
struct Made {
    by_key: BTreeMap<Key, Token>,
    by_user: BTreeMap<String, Own>,
    /// How many tokens each user has.
    counts: BTreeSet<(usize, String)>,
    /// When each token is looked at next, to see whether its time is over: no later than that is.
    looks: Looks,
    /// The tokens of users that lost all of theirs: they go a few at a time.
    revoked: Vec<Looks>,
}

type Looks = BTreeSet<(u64, Key)>;

/// The tokens of one user.
#[derive(Debug)]
struct Own {
    user: Arc<User>,
    looks: Looks,
}

#[derive(Debug)]
struct Token {
    user: Arc<User>,
    used: LastUse,
    /// Its place in `Made::looks` and `Own::looks`.
    look: u64,
}

/// When a token was last used, by the clock in milliseconds.
type LastUse = Arc<AtomicU64>;

/// A token that was found. While no token comes or goes it is its user's without a search.
#[derive(Debug)]
pub(super) struct FoundToken {
    /// For the caller that has looked it up: other cores do not count in it who has it.
    user: Arc<User>,
    used: LastUse,
    /// Of [`Tokens::changes`].
    changes: u64,
}

/// The result of looking a token up.
#[derive(Debug)]
pub(super) enum Found {
    /// It is a user's.
    Token(FoundToken),
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
        Self { made: RwLock::default(), changes: AtomicU64::new(0), ttl }
    }

    /// The state has changed so that tokens come or go.
    pub fn change(&self, change: TokenChange) {
        self.change_at(change, coarse_milliseconds());
    }

    fn change_at(&self, change: TokenChange, now: u64) {
        let mut made = self.made.write().unwrap_or_else(PoisonError::into_inner);
        // A login counts too: tokens whose time is over go with it, and those that make room.
        self.changes.fetch_add(1, Ordering::Release);
        match change {
            TokenChange::Made { user, digest, index } => made.insert(&user, (index, digest), now, self.ttl),
            TokenChange::RevokedOf(user) => made.revoke(&user),
            TokenChange::RevokedAll => {
                let all = std::mem::take(&mut *made);
                drop(made);
                // To free so many takes milliseconds, which the state core has not. Without another
                // thread they are freed here.
                let _ = threads::begin("tokens", move || drop(all));
            }
        }
    }

    /// Whether a token that was found still counts, by which it is used now: if not, it has to be
    /// looked up again.
    pub(super) fn still_counts(&self, found: &FoundToken) -> bool {
        self.still_counts_at(found, coarse_milliseconds())
    }

    fn still_counts_at(&self, found: &FoundToken, now: u64) -> bool {
        if self.changes.load(Ordering::Acquire) != found.changes || is_over(&found.used, now, self.ttl) {
            return false;
        }
        // Other cores look at it too: it is written once in a millisecond.
        if found.used.load(Ordering::Relaxed) != now {
            found.used.store(now, Ordering::Relaxed);
        }
        true
    }

    /// The user of a token, for which it is used now. `applied`: the member has applied so much.
    pub(super) fn find(&self, token: &Secret, applied: u64) -> Found {
        self.find_at(token, applied, coarse_milliseconds())
    }

    fn find_at(&self, token: &Secret, applied: u64, now: u64) -> Found {
        let Some((index, letters)) = parse(token.expose()) else { return Found::Nothing };
        let made = self.made.read().unwrap_or_else(PoisonError::into_inner);
        // Compared by digests: how long that takes says nothing of the letters.
        match made.by_key.get(&(index, digest(letters))) {
            Some(token) if !is_over(&token.used, now, self.ttl) && made.counts_for_its_user(token) => {
                token.used.store(now, Ordering::Relaxed);
                let (user, used) = (Arc::new(User::clone(&token.user)), Arc::clone(&token.used));
                Found::Token(FoundToken { user, used, changes: self.changes.load(Ordering::Acquire) })
            }
            None if index > applied => Found::Later(index),
            _ => Found::Nothing,
        }
    }
}

impl FoundToken {
    pub(super) fn user(&self) -> &Arc<User> {
        &self.user
    }
}

fn is_over(used: &LastUse, now: u64, ttl: u64) -> bool {
    now.saturating_sub(used.load(Ordering::Relaxed)) > ttl
}

impl Token {
    fn next_look(&self, ttl: u64) -> u64 {
        self.used.load(Ordering::Relaxed).saturating_add(ttl)
    }
}

impl Made {
    /// Tokens that are over go, a few each time that there is a new one, and those that were
    /// revoked. If there is still no room, one makes it that was not used for long: of the user
    /// that has most, or of this one if none has more.
    fn insert(&mut self, name: &str, key: Key, now: u64, ttl: u64) {
        self.remove_revoked();
        self.remove_those_over(now, ttl);
        if self.by_key.len() >= limits::TOKENS_MAX {
            let own = self.by_user.get(name).map_or(0, |own| own.looks.len());
            let largest = self.counts.last().filter(|(count, _)| *count > own);
            let of = largest.map_or_else(|| name.to_owned(), |(_, of)| of.clone());
            self.make_room(&of, ttl);
        }
        let own = self.by_user.entry(name.to_owned()).or_insert_with(|| Own {
            user: Arc::new(User { name: name.to_owned(), revision: None }),
            looks: Looks::new(),
        });
        let (user, look) = (Arc::clone(&own.user), now.saturating_add(ttl));
        let count = own.looks.len();
        if own.looks.insert((look, key)) {
            recount(&mut self.counts, name, count, count + 1);
        }
        self.looks.insert((look, key));
        self.by_key.insert(key, Token { user, used: Arc::new(AtomicU64::new(now)), look });
    }

    /// Looks at a few tokens whose time may be over. One that was used since is looked at again
    /// when it may be over then: more are looked at than made, so that none stays for long.
    fn remove_those_over(&mut self, now: u64, ttl: u64) {
        for _ in 0..limits::TOKENS_LOOKED_AT {
            let Some((_, key)) = self.looks.first().copied().filter(|(look, _)| *look < now) else {
                return;
            };
            let Some(token) = self.by_key.get(&key) else { return };
            if is_over(&token.used, now, ttl) {
                self.remove(key);
            } else {
                self.look_later(key, ttl);
            }
        }
    }

    /// A token goes that its user has not used for long, as far as a few looks show.
    fn make_room(&mut self, of: &str, ttl: u64) {
        for look in 1..=limits::TOKENS_LOOKED_AT_FOR_ROOM {
            let Some((_, key)) = self.by_user.get(of).and_then(|own| own.looks.first().copied()) else {
                return;
            };
            let was_used = self.by_key.get(&key).is_some_and(|token| token.next_look(ttl) > token.look);
            if !was_used || look == limits::TOKENS_LOOKED_AT_FOR_ROOM {
                return self.remove(key);
            }
            self.look_later(key, ttl);
        }
    }

    /// A token that was used since it was looked at: its time is over later.
    fn look_later(&mut self, key: Key, ttl: u64) {
        let Some(token) = self.by_key.get_mut(&key) else { return };
        let next = token.next_look(ttl);
        let before = std::mem::replace(&mut token.look, next);
        self.looks.remove(&(before, key));
        self.looks.insert((token.look, key));
        if let Some(own) = self.by_user.get_mut(&token.user.name)
            && own.looks.remove(&(before, key))
        {
            own.looks.insert((token.look, key));
        }
    }

    fn remove(&mut self, key: Key) {
        let Some(token) = self.by_key.remove(&key) else { return };
        self.looks.remove(&(token.look, key));
        let name = &token.user.name;
        let Some(own) = self.by_user.get_mut(name) else { return };
        let count = own.looks.len();
        if !own.looks.remove(&(token.look, key)) {
            return;
        }
        recount(&mut self.counts, name, count, count - 1);
        if count == 1 {
            self.by_user.remove(name);
        }
    }

    /// None of a user's tokens counts from now on, however many there are.
    fn revoke(&mut self, name: &str) {
        let Some(own) = self.by_user.remove(name) else { return };
        self.counts.remove(&(own.looks.len(), name.to_owned()));
        self.revoked.push(own.looks);
    }

    /// A user that has lost its tokens may have new ones.
    fn counts_for_its_user(&self, token: &Token) -> bool {
        self.by_user.get(&token.user.name).is_some_and(|own| Arc::ptr_eq(&own.user, &token.user))
    }

    /// More go than are made.
    fn remove_revoked(&mut self) {
        for _ in 0..limits::TOKENS_LOOKED_AT {
            let Some(looks) = self.revoked.last_mut() else { return };
            match looks.pop_first() {
                // Its place in the set is of when it was revoked: it may have been looked at since.
                Some((_, key)) => self.remove(key),
                None => drop(self.revoked.pop()),
            }
        }
    }
}

fn recount(counts: &mut BTreeSet<(usize, String)>, name: &str, before: usize, now: usize) {
    counts.remove(&(before, name.to_owned()));
    if now > 0 {
        counts.insert((now, name.to_owned()));
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
            Found::Token(token) => Some(token.user.name.clone()),
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

    /// A token that was found is not searched for again, and counts no longer than by a search.
    #[test]
    fn a_token_that_was_found_counts_until_tokens_change_or_it_is_over() {
        let tokens = Tokens::new(Duration::from_secs(1));
        let text = "abcdefghijklmnop.7";
        let find = |now| match tokens.find_at(&token(text), u64::MAX, now) {
            Found::Token(found) => found,
            other => panic!("{other:?}"),
        };
        tokens.change_at(made("ann", A, 7), 0);
        let found = find(0);
        assert!(tokens.still_counts_at(&found, 900));
        assert!(tokens.still_counts_at(&found, 1_900), "it was used at 900");
        assert_eq!(user(&tokens, text, 2_900).as_deref(), Some("ann"), "also for who searches");
        assert!(!tokens.still_counts_at(&found, 3_901), "its time is over");
        assert_eq!(user(&tokens, text, 3_901), None);
        let ends = [
            made("bob", A, 9),
            TokenChange::RevokedOf("ann".to_owned()),
            TokenChange::RevokedOf("bob".to_owned()),
            TokenChange::RevokedAll,
        ];
        for (number, change) in ends.into_iter().enumerate() {
            tokens.change_at(made("ann", A, 7), 0);
            let found = find(1);
            assert!(tokens.still_counts_at(&found, 1));
            tokens.change_at(change, 1);
            assert!(!tokens.still_counts_at(&found, 1), "change {number}");
            assert_eq!(user(&tokens, text, 1).is_some(), [0, 2].contains(&number), "change {number}");
        }
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
            assert!(matches!(tokens.find_at(&token(bad), 9, 0), Found::Nothing), "{bad}");
        }
        assert!(matches!(tokens.find_at(&token("abcdefghijklmnop.12"), 9, 0), Found::Later(12)));
    }

    fn count(tokens: &Tokens) -> usize {
        let made = tokens.made.read().unwrap();
        let of_users: usize = made.by_user.values().map(|own| own.looks.len()).sum();
        assert_eq!(of_users, made.counts.iter().map(|(count, _)| count).sum::<usize>());
        assert_eq!(made.by_user.len(), made.counts.len());
        assert_eq!(made.looks.len(), made.by_key.len(), "each is looked at");
        made.by_key.len()
    }

    /// One user has as many as there is room for; when there is none, those give way that were not
    /// used for long, of the user that has most.
    #[test]
    fn tokens_have_a_bound() {
        let tokens = Tokens::new(Duration::from_secs(100));
        let all = limits::TOKENS_MAX as u64;
        for index in 0..all {
            tokens.change_at(made("ann", A, index), 0);
        }
        assert_eq!(count(&tokens), limits::TOKENS_MAX);
        // The oldest one is in use, the next one is not.
        assert!(user(&tokens, "abcdefghijklmnop.0", 10).is_some());
        tokens.change_at(made("ann", A, all), 20);
        assert!(user(&tokens, "abcdefghijklmnop.0", 20).is_some(), "it is used");
        assert_eq!(user(&tokens, "abcdefghijklmnop.1", 20), None, "it was not used");
        for index in 1..=100 {
            tokens.change_at(made("bob", A, all + index), 20);
            tokens.change_at(made("cat", A, all + 1_000 + index), 20);
        }
        assert_eq!(count(&tokens), limits::TOKENS_MAX);
        for index in 1..=100 {
            assert!(user(&tokens, &format!("abcdefghijklmnop.{}", all + index), 20).is_some());
        }
        assert_eq!(user(&tokens, "abcdefghijklmnop.201", 20), None, "ann has most");
        assert!(user(&tokens, "abcdefghijklmnop.202", 20).is_some());
    }

    /// However many tokens a user loses, others do not wait for that: they go with those that are
    /// made later.
    #[test]
    fn the_tokens_of_a_user_count_no_more_at_once_and_go_one_after_the_other() {
        let tokens = Tokens::new(Duration::from_secs(100));
        for index in 0..1_000 {
            tokens.change_at(made("ann", A, index), 0);
        }
        tokens.change_at(made("bob", A, 1_000), 0);
        assert!(user(&tokens, "abcdefghijklmnop.7", 5).is_some());
        tokens.change_at(TokenChange::RevokedOf("ann".to_owned()), 10);
        assert_eq!(user(&tokens, "abcdefghijklmnop.7", 10), None);
        assert_eq!(tokens.made.read().unwrap().by_key.len(), 1_001, "nothing is freed at once");
        tokens.change_at(made("ann", A, 1_001), 10);
        assert!(user(&tokens, "abcdefghijklmnop.1001", 10).is_some(), "a new one");
        assert_eq!(user(&tokens, "abcdefghijklmnop.8", 10), None, "an old one still does not count");
        for index in 0..400 {
            tokens.change_at(made("cat", A, 2_000 + index), 20);
        }
        assert_eq!(count(&tokens), 402, "bob's, ann's new one, and cat's");
        assert!(tokens.made.read().unwrap().revoked.is_empty());
        tokens.change_at(TokenChange::RevokedAll, 30);
        assert_eq!(count(&tokens), 0);
    }

    /// At its bound, and while most tokens are over, a new one costs what any other does.
    #[test]
    fn a_new_token_looks_at_a_few_others() {
        let tokens = Tokens::new(Duration::from_secs(1));
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
    }
}
