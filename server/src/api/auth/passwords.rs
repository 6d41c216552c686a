//! Passwords: bcrypt takes tens of milliseconds on purpose, so it runs on threads of its own, few
//! of them and at a low priority, and what waits for them is bounded.
//!
//! Logins wait by address; of each address, those in names that have logged in there with the same
//! password are apart from all others. They share by name, then by connection: a neighbour that
//! guesses in other names, from however many connections, takes no more than half of the address's
//! turns from them, and no place. Others share by connection, then by name, for a gateway's
//! connection may be of many.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};

use bcrypt::{HashParts, Version};
use bytes::Bytes;
use revd_member::error::{AuthError, Error};
use serde_json::json;

use crate::api::auth::jwt::Jwt;
use crate::api::auth::logins::{Logins, Origin};
use crate::api::call::Source;
use crate::limits;
use crate::observe::log;
use crate::queues::fair_queue::{FairBounds, FairQueue};
use crate::queues::latch::Latch;
use crate::secret::{Secret, fill_random};
use crate::threads;

/// bcrypt reads no more of a password.
const PASSWORD_BYTES_MAX: usize = 72;

/// Node view: the threads that make and check hashes. They begin with the first password, and end
/// when nobody can ask them any more.
#[derive(Debug)]
pub struct Passwords {
    cost: u32,
    jobs: Arc<Jobs>,
    /// Failed logins.
    logins: Arc<Logins>,
    threads: Once,
}

/// Passwords that wait for the threads.
#[derive(Debug)]
struct Jobs {
    waiting: Mutex<Waiting>,
    has_more: Condvar,
}

/// Logins, and passwords of users that are made or changed, take turns: who may change users waits
/// for no login.
#[derive(Debug)]
struct Waiting {
    logins: FairQueue<4, Job>,
    changes: FairQueue<2, Job>,
    /// Tokens of those whose password was right: they have waited among the logins, and signing
    /// takes a part of what a password does.
    signings: VecDeque<Job>,
    login_next: bool,
    is_over: bool,
    /// Of names, so that nobody can choose one that shares another's part.
    names: RandomState,
}

impl Waiting {
    fn new() -> Self {
        let bounds = FairBounds {
            all_max: limits::PASSWORDS_WAITING_MAX,
            part_max: limits::PASSWORDS_PER_ADDRESS_MAX,
        };
        Self {
            logins: FairQueue::new(bounds),
            changes: FairQueue::new(bounds),
            signings: VecDeque::new(),
            login_next: false,
            is_over: false,
            names: RandomState::new(),
        }
    }

    /// Adds a job. The result is the one that has to go for it, if there is no room.
    fn add(&mut self, source: Source, job: Job) -> Option<Job> {
        let (address, connection) = (source.address.bits(), u128::from(source.connection));
        match &job.work {
            Work::Hash { .. } => self.changes.push([address, connection], job),
            Work::Check { origin, is_known, .. } => {
                let name = u128::from(self.names.hash_one(origin.name()));
                let [first, second] = if *is_known { [name, connection] } else { [connection, name] };
                self.logins.push([address, u128::from(*is_known), first, second], job)
            }
            Work::Sign { .. } if self.signings.len() >= limits::PASSWORDS_WAITING_MAX => Some(job),
            Work::Sign { .. } => {
                self.signings.push_back(job);
                None
            }
        }
    }

    fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.signings.pop_front() {
            return Some(job);
        }
        self.login_next = !self.login_next;
        if self.login_next {
            self.logins.pop().or_else(|| self.changes.pop())
        } else {
            self.changes.pop().or_else(|| self.logins.pop())
        }
    }
}

impl Jobs {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next one; none at the end.
    fn next(&self) -> Option<Job> {
        let mut waiting = self.waiting();
        loop {
            if let Some(job) = waiting.next() {
                return Some(job);
            }
            if waiting.is_over {
                return None;
            }
            waiting = self.has_more.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Passwords {
    fn drop(&mut self) {
        self.close();
    }
}

#[derive(Debug)]
struct Job {
    work: Work,
    answer: Arc<Answer>,
}

enum Work {
    Hash {
        password: Secret,
        salt: [u8; 16],
    },
    /// Against the hash of a user; without one against any other, which takes as long.
    Check {
        password: Password,
        hash: Option<Bytes>,
        origin: Origin,
        /// This password's hash has let this name in from there before.
        is_known: bool,
    },
    Sign {
        jwt: Arc<Jwt>,
        name: String,
        revision: u64,
    },
}

/// Without the hash of a user, which is as good as the password to whoever has time.
impl std::fmt::Debug for Work {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Hash { .. } => "Hash",
            Self::Check { .. } => "Check",
            Self::Sign { .. } => "Sign",
        })
    }
}

/// As much of a password as bcrypt looks at, to be checked: no more than that is kept while a login
/// waits.
#[derive(Debug, Clone)]
pub(super) struct Password(Secret);

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(Secret::from(text).cut_to(PASSWORD_BYTES_MAX))
    }
}

#[derive(Debug, Default)]
struct Answer {
    result: Mutex<Option<Result<String, Error>>>,
    is_there: Latch,
}

impl Passwords {
    /// Hashes are made at this cost.
    #[must_use]
    pub fn new(cost: u32) -> Self {
        let jobs = Arc::new(Jobs { waiting: Mutex::new(Waiting::new()), has_more: Condvar::new() });
        Self { cost, jobs, logins: Arc::default(), threads: Once::new() }
    }

    /// The member stops: whoever waits is told so, and so is whoever comes. Passwords
    /// that threads have taken up are answered.
    pub(crate) fn close(&self) {
        let mut waiting = self.jobs.waiting();
        waiting.is_over = true;
        let Waiting { logins, changes, .. } = &mut *waiting;
        let left: Vec<Job> = std::iter::from_fn(|| logins.pop().or_else(|| changes.pop())).collect();
        drop(waiting);
        self.jobs.has_more.notify_all();
        left.into_iter().for_each(|job| job.answer.give(Err(Error::Stopped)));
    }

    /// The hash of a password.
    ///
    /// # Errors
    /// [`AuthError::PasswordTooLong`]; [`Error::TooManyRequests`] when too many wait;
    /// [`Error::Stopped`].
    pub(super) async fn hash(&self, source: Source, password: Secret) -> Result<String, Error> {
        if password.expose().len() > PASSWORD_BYTES_MAX {
            return Err(Error::Auth(AuthError::PasswordTooLong));
        }
        let mut salt = [0; 16];
        fill_random(&mut salt);
        self.run(source, Work::Hash { password, salt }).await
    }

    /// A login in this name may be tried; it is asked again when its turn has come.
    ///
    /// # Errors
    /// [`Error::TooManyRequests`] after too many guesses.
    pub(super) fn may_try(&self, source: Source, name: &str) -> Result<(), Error> {
        self.logins.may_try(&Origin::new(name, source.address))
    }

    /// Whether a password is a user's; the answer takes as long if there is no such user.
    ///
    /// # Errors
    /// [`AuthError::AuthFailed`] when it is not; [`Error::TooManyRequests`] when too many wait, or
    /// after too many guesses; [`Error::Stopped`].
    pub(super) async fn check(
        &self,
        source: Source,
        name: &str,
        password: Password,
        hash: Option<Bytes>,
    ) -> Result<(), Error> {
        let origin = Origin::new(name, source.address);
        let is_known = self.logins.is_known(&origin, hash.as_deref().unwrap_or_default());
        self.run(source, Work::Check { password, hash, origin, is_known }).await.map(drop)
    }

    /// A signed token: with a long key that takes milliseconds.
    ///
    /// # Errors
    /// [`AuthError::VerifyOnlyKey`]; [`Error::TooManyRequests`] when too many wait;
    /// [`Error::Stopped`].
    pub(super) async fn sign(
        &self,
        source: Source,
        jwt: &Arc<Jwt>,
        name: String,
        revision: u64,
    ) -> Result<String, Error> {
        self.run(source, Work::Sign { jwt: Arc::clone(jwt), name, revision }).await
    }

    fn begin_threads(&self) {
        for number in 0..limits::PASSWORD_THREADS {
            let (jobs, logins, cost) = (Arc::clone(&self.jobs), Arc::clone(&self.logins), self.cost);
            let begun = threads::begin(format!("passwords {number}"), move || work(&jobs, &logins, cost));
            if let Err(error) = begun {
                log::warn("a thread for passwords could not begin", json!({"error": error.to_string()}));
            }
        }
    }

    async fn run(&self, source: Source, work: Work) -> Result<String, Error> {
        let answer = Arc::new(Answer::default());
        let job = Job { work, answer: Arc::clone(&answer) };
        self.threads.call_once(|| self.begin_threads());
        let evicted = {
            let waiting = &mut *self.jobs.waiting();
            if waiting.is_over {
                return Err(Error::Stopped);
            }
            waiting.add(source, job)
        };
        self.jobs.has_more.notify_one();
        if let Some(Job { answer, .. }) = evicted {
            answer.give(Err(Error::TooManyRequests));
        }
        answer.is_there.wait().await;
        let result = answer.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or(Err(Error::Stopped))
    }
}

impl Answer {
    fn give(&self, result: Result<String, Error>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.is_there.set();
    }
}

fn work(jobs: &Jobs, logins: &Logins, cost: u32) {
    let own = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(own), limits::PASSWORD_THREADS_NICE);
    // The hash of a password that no user has.
    let nobodys = bcrypt::hash_with_salt(b"nobody's", cost, [0; 16]).map(|hash| hash.to_string());
    let nobodys = nobodys.unwrap_or_default();
    while let Some(Job { work, answer }) = jobs.next() {
        // A caller that has gone away needs no answer.
        if Arc::strong_count(&answer) == 1 {
            continue;
        }
        answer.give(match work {
            Work::Hash { password, salt } => hash(&password, cost, salt),
            Work::Sign { jwt, name, revision } => jwt.sign(&name, revision),
            Work::Check { password: Password(password), hash, origin, .. } => {
                let of_user = hash.as_deref().unwrap_or_default();
                logins.may_compare(&origin, of_user).and_then(|()| {
                    let checked = check(&password, hash.as_deref(), cost, &nobodys);
                    if checked.is_ok() {
                        logins.succeeded(&origin, of_user);
                    } else {
                        logins.failed(&origin);
                    }
                    checked
                })
            }
        });
    }
}

fn hash(password: &Secret, cost: u32, salt: [u8; 16]) -> Result<String, Error> {
    let hash = bcrypt::hash_with_salt(password.expose(), cost, salt)
        .map_err(|_| Error::Auth(AuthError::PasswordTooLong))?;
    Ok(hash.format_for_version(Version::TwoA))
}

/// A client may have made a hash by itself: one that would keep a thread for hours counts as
/// wrong.
fn check(password: &Secret, hash: Option<&[u8]>, cost: u32, nobodys: &str) -> Result<String, Error> {
    let hash = hash.and_then(|hash| std::str::from_utf8(hash).ok()).filter(|hash| hash.is_ascii());
    let is_cheap = |hash: &&str| {
        hash.parse::<HashParts>().is_ok_and(|parts| parts.get_cost() <= cost.max(limits::PASSWORD_COST_MAX))
    };
    match hash.filter(is_cheap) {
        Some(hash) if bcrypt::verify(password.expose(), hash).unwrap_or(false) => Ok(String::new()),
        Some(_) => Err(Error::Auth(AuthError::AuthFailed)),
        None => {
            let _ = bcrypt::verify(password.expose(), nobodys);
            Err(Error::Auth(AuthError::AuthFailed))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::Address;
    use futures_lite::future::{block_on, poll_once};

    fn job(work: Work) -> Job {
        Job { work, answer: Arc::new(Answer::default()) }
    }

    fn login(name: &str, is_known: bool) -> Job {
        let (password, origin) = (String::new().into(), Origin::new(name, Address::default()));
        job(Work::Check { password, hash: None, origin, is_known })
    }

    fn on(connection: u64) -> Source {
        Source { connection, ..Source::default() }
    }

    /// How many jobs come before those with these answers.
    fn before<const N: usize>(waiting: &mut Waiting, answers: [&Arc<Answer>; N]) -> [usize; N] {
        let order: Vec<Job> = std::iter::from_fn(|| waiting.next()).collect();
        let place = |answer| order.iter().position(|job| Arc::ptr_eq(&job.answer, answer));
        answers.map(|answer| place(answer).expect("it has a place"))
    }

    /// Users behind one address: a neighbour opens as many connections as it likes, and guesses in
    /// all names but theirs, or in one of them.
    #[test]
    fn a_neighbour_takes_neither_places_nor_turns_of_known_users() {
        for is_guessed_as_ann in [false, true] {
            let waiting = &mut Waiting::new();
            let [ann, bob] = ["ann", "bob"].map(|name| {
                let job = login(name, true);
                let answer = Arc::clone(&job.answer);
                assert!(waiting.add(on(1), job).is_none());
                answer
            });
            for connection in 0..10_000 {
                let name = if is_guessed_as_ann { "ann".to_owned() } else { format!("user {connection}") };
                let gone = waiting.add(on(100 + connection), login(&name, is_guessed_as_ann));
                assert!(gone.is_none_or(|gone| !Arc::ptr_eq(&gone.answer, &bob)), "bob keeps his place");
                if connection == 200 {
                    assert!(waiting.logins.len() > 200, "nothing of it is refused without need");
                }
            }
            assert_eq!(waiting.logins.len(), limits::PASSWORDS_PER_ADDRESS_MAX);
            if is_guessed_as_ann {
                assert!(before(waiting, [&bob])[0] < 4, "bob has his turn");
            } else {
                assert!(before(waiting, [&ann, &bob]).iter().all(|before| *before < 4), "and so has ann");
            }
        }
    }

    /// A user who is new behind such an address has a place, and so has one of a gateway's one
    /// connection.
    #[test]
    fn who_is_not_known_finds_a_place() {
        let waiting = &mut Waiting::new();
        for connection in 0..1_000 {
            waiting.add(on(connection), login("root", false));
        }
        let new = login("ann", false);
        let answer = Arc::clone(&new.answer);
        assert!(waiting.add(on(2_000), new).is_some_and(|gone| !Arc::ptr_eq(&gone.answer, &answer)));
        assert!(before(waiting, [&answer])[0] < limits::PASSWORDS_PER_ADDRESS_MAX);
        let waiting = &mut Waiting::new();
        for _ in 0..1_000 {
            waiting.add(on(7), login("root", false));
        }
        let new = login("ann", false);
        let answer = Arc::clone(&new.answer);
        waiting.add(on(7), new);
        assert!(before(waiting, [&answer])[0] < 4);
    }

    /// A stop waits for no queue.
    #[test]
    fn a_stop_answers_those_that_wait_and_those_that_come() {
        let passwords = Passwords::new(4);
        passwords.threads.call_once(|| ()); // none takes anything up
        let check = |connection| passwords.check(on(connection), "ann", String::new().into(), None);
        let mut logins: Vec<_> = (0..9).map(|connection| Box::pin(check(connection))).collect();
        let mut change = Box::pin(passwords.hash(on(9), Secret::from("rosebud".to_owned())));
        assert!(logins.iter_mut().all(|login| block_on(poll_once(login)).is_none()));
        assert!(block_on(poll_once(&mut change)).is_none());
        passwords.close();
        assert!(logins.into_iter().all(|login| block_on(login) == Err(Error::Stopped)));
        assert_eq!(block_on(change), Err(Error::Stopped));
        assert_eq!(block_on(check(10)), Err(Error::Stopped));
        let waiting = passwords.jobs.waiting();
        assert!(waiting.logins.is_empty() && waiting.changes.is_empty(), "and keeps no password");
    }

    /// All that a panic may show of what waits.
    #[test]
    fn a_panic_has_no_password_and_no_hash() {
        let passwords = Passwords::new(4);
        passwords.threads.call_once(|| ());
        let hash = || Some(Bytes::from_static(b"planted-hash"));
        let mut login = Box::pin(passwords.check(on(1), "ann", "planted".to_owned().into(), hash()));
        let mut change = Box::pin(passwords.hash(on(2), Secret::from("planted".to_owned())));
        assert!(block_on(poll_once(&mut login)).is_none() && block_on(poll_once(&mut change)).is_none());
        let panics = || panic!("{passwords:?}");
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).unwrap_err();
        let told = panic.downcast::<String>().unwrap();
        assert!(told.contains("Check") && told.contains("Hash") && !told.contains("planted"), "{told}");
        assert!(!told.contains("112, 108, 97"), "nor its letters as numbers: {told}");
    }

    /// The caller of a signed login has waited once.
    #[test]
    fn what_is_to_be_signed_waits_behind_no_password() {
        let passwords = Passwords::new(4);
        let waiting = &mut *passwords.jobs.waiting();
        for connection in 0..10 {
            let source = Source { connection, ..Source::default() };
            assert!(waiting.add(source, login("ann", false)).is_none());
            let (password, salt) = (Secret::from(String::new()), [0; 16]);
            assert!(waiting.add(source, job(Work::Hash { password, salt })).is_none());
        }
        let signing = login("ann", false);
        let answer = Arc::clone(&signing.answer);
        waiting.signings.push_back(signing);
        assert!(waiting.next().is_some_and(|next| Arc::ptr_eq(&next.answer, &answer)));
        assert_eq!(std::iter::from_fn(|| waiting.next()).count(), 20);
    }

    #[test]
    fn passwords_are_known_by_their_hashes() {
        let passwords = Passwords::new(4);
        let secret = |text: &str| Secret::from(text.to_owned());
        let hash = block_on(passwords.hash(Source::default(), secret("rosebud"))).unwrap();
        assert!(hash.starts_with("$2a$04$"));
        let check = |text, hash: Option<&str>| {
            let hash = hash.map(|hash| Bytes::copy_from_slice(hash.as_bytes()));
            block_on(passwords.check(Source::default(), text, text.to_owned().into(), hash))
        };
        assert_eq!(check("rosebud", Some(&hash)), Ok(()));
        // Bytes behind the first 72 are not looked at, as in Go, and not kept.
        let long = block_on(passwords.hash(Source::default(), secret(&"x".repeat(72)))).unwrap();
        let checked = |text: String| {
            let hash = Some(Bytes::copy_from_slice(long.as_bytes()));
            let password = Password::from(text);
            assert!(password.0.expose().len() <= PASSWORD_BYTES_MAX);
            block_on(passwords.check(Source::default(), "ann", password, hash))
        };
        assert_eq!(checked("x".repeat(72)), Ok(()));
        assert_eq!(checked("x".repeat(1 << 20)), Ok(()));
        assert_eq!(checked("x".repeat(71)), Err(Error::Auth(AuthError::AuthFailed)));
        // Made by Go.
        let of_go = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
        assert_eq!(check("wrong", Some(of_go)), Err(Error::Auth(AuthError::AuthFailed)));
        let too_dear = "$2a$31$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
        for hash in [None, Some(""), Some("\u{e4}"), Some("$2a$04$"), Some(too_dear)] {
            assert_eq!(check("rosebud", hash), Err(Error::Auth(AuthError::AuthFailed)));
        }
        assert_eq!(
            block_on(passwords.hash(Source::default(), secret(&"x".repeat(73)))),
            Err(Error::Auth(AuthError::PasswordTooLong))
        );
    }

    /// All of them come before the first one has failed.
    #[test]
    fn of_many_at_once_no_more_go_on_than_may_fail() {
        let passwords = Passwords::new(4);
        let hash = block_on(passwords.hash(Source::default(), Secret::from("rosebud".to_owned())));
        let hash = Bytes::from(hash.unwrap());
        let of_all = |password: &str| {
            std::thread::scope(|scope| {
                let login = |connection| {
                    let source = Source { connection, ..Source::default() };
                    let password = password.to_owned().into();
                    block_on(passwords.check(source, "ann", password, Some(hash.clone())))
                };
                let logins: Vec<_> = (0..64).map(|number| scope.spawn(move || login(number))).collect();
                logins.into_iter().map(|login| login.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let guesses = of_all("guess");
        let failed = guesses.iter().filter(|it| **it == Err(Error::Auth(AuthError::AuthFailed))).count();
        let free = limits::GUESSES_FREE as usize;
        assert!((free..free + limits::PASSWORD_THREADS).contains(&failed), "{failed}: {guesses:?}");
        assert!(guesses.iter().filter(|it| **it == Err(Error::TooManyRequests)).count() == 64 - failed);
        // Once one of them was right, all the others may.
        passwords.logins.succeeded(&Origin::new("ann", Address::default()), &hash);
        assert!(of_all("guess").iter().all(|it| *it == Err(Error::Auth(AuthError::AuthFailed))));
        assert!(of_all("rosebud").iter().all(Result::is_ok));
    }
}
