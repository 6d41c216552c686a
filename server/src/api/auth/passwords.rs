//! Passwords: bcrypt takes tens of milliseconds on purpose, so it runs on threads of its own, few
//! of them and at a low priority, which leave their CPU to others every quarter of a millisecond
//! (of a signature, behind it), and what waits for them is bounded.
//!
//! They wait in four queues that take turns: changes of users, and logins by their standing: where
//! this password was right in this name on this connection, where it was from this address, and all
//! others. Each queue holds a bounded number, and of one address a part of it. When it is full, the
//! address that holds most gives way, in it the name (of the others the connection) that does, with
//! what came last: no flood of equals takes a place from what waits, and only guesses in names that
//! are known there are in the way of a known user.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use revd_member::error::{AuthError, Error};
use serde_json::json;

use crate::api::auth::jwt::Jwt;
use crate::api::auth::logins::{Logins, Origin};
use crate::api::auth::password_hash::PasswordHash;
use crate::api::auth::password_queue::{Answer, Job, PASSWORD_BYTES_MAX, Password, Place, Waiting, Work};
use crate::api::auth::with_password;
use crate::api::call::Source;
use crate::clock;
use crate::limits;
use crate::observe::log;
use crate::secret::{Secret, fill_random};
use crate::threads;

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
        let left = self.jobs.waiting().close();
        self.jobs.has_more.notify_all();
        left.into_iter().for_each(|job| job.answer.give(Err(Error::Stopped)));
    }

    /// The hash of a password.
    ///
    /// # Errors
    /// [`AuthError::PasswordTooLong`]; [`Error::TooManyRequests`] when too many wait;
    /// [`Error::Stopped`].
    pub(super) async fn hash(&self, source: Source, password: Secret) -> Result<String, Error> {
        with_password::check_length(password.expose().len())?;
        let password = password.cut_to(PASSWORD_BYTES_MAX);
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
        let standing = self.logins.standing(name, source, hash.as_deref().unwrap_or_default());
        let connection = source.connection;
        self.run(source, Work::Check { password, hash, origin, connection, standing }).await.map(drop)
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
        let (place, evicted) = {
            let waiting = &mut *self.jobs.waiting();
            if waiting.is_over {
                return Err(Error::Stopped);
            }
            let place = waiting.place(source, &job.work);
            (place, waiting.add(place, job))
        };
        let caller = Caller { jobs: &self.jobs, place, answer: &answer };
        self.jobs.has_more.notify_one();
        if let Some(Job { answer, .. }) = evicted {
            answer.give(Err(Error::TooManyRequests));
        }
        answer.is_there.wait().await;
        drop(caller);
        answer.take().unwrap_or(Err(Error::Stopped))
    }
}

/// A caller that waits for its answer; one that gives up leaves the queue at once.
struct Caller<'p> {
    jobs: &'p Jobs,
    place: Place,
    answer: &'p Arc<Answer>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if !self.answer.is_there.is_set() {
            let given_up = self.jobs.waiting().remove(self.place, self.answer);
            // Its password is zeroed when nobody waits for the lock.
            drop(given_up);
        }
    }
}

fn work(jobs: &Jobs, logins: &Logins, cost: u32) {
    let (nice, slice) = (limits::PASSWORD_THREADS_NICE, limits::PASSWORD_THREADS_SLICE);
    if let Err(error) = threads::give_way_to_others(nice, slice) {
        let fields = json!({"error": error.to_string()});
        log::log(log::Level::Debug, "a thread for passwords has no slice of its own", fields);
    }
    let nobodys = PasswordHash::of_nobody(cost);
    let mut rests = Rests::new(threads::rest);
    while let Some(Job { work, answer }) = jobs.next() {
        // A caller that has gone away since then needs no answer.
        if Arc::strong_count(&answer) == 1 {
            continue;
        }
        answer.give(match work {
            Work::Hash { password, salt } => {
                Ok(PasswordHash::new(&password, cost, salt, || rests.when_due()).to_string())
            }
            Work::Sign { jwt, name, revision } => jwt.sign(&name, revision),
            Work::Check { password: Password(password), hash, origin, connection, .. } => {
                let of_user = hash.as_deref().unwrap_or_default();
                logins.may_compare(&origin, of_user).and_then(|()| {
                    // A client may have made a hash by itself: one that would keep a thread for
                    // hours counts as wrong.
                    let cost_max = cost.max(limits::PASSWORD_COST_MAX);
                    let hash = PasswordHash::parse(of_user).filter(|hash| hash.cost() <= cost_max);
                    let is_right = hash.as_ref().unwrap_or(&nobodys).is_of(&password, || rests.when_due());
                    if is_right {
                        logins.succeeded(&origin, connection, of_user);
                        Ok(String::new())
                    } else {
                        logins.failed(&origin);
                        Err(Error::Auth(AuthError::AuthFailed))
                    }
                })
            }
        });
        rests.when_due();
    }
}

/// Rests of a thread that computes: others that want its CPU have it then.
struct Rests<F: FnMut(Duration)> {
    rest: F,
    worked_since: Instant,
    /// Work until the next rest.
    work: Duration,
}

impl<F: FnMut(Duration)> Rests<F> {
    fn new(rest: F) -> Self {
        Self { rest, worked_since: clock::now(), work: limits::PASSWORD_THREADS_WORK }
    }

    /// A thread at this priority takes its CPU back from nobody: the longer it was kept from it,
    /// the longer it works then, up to its slice, so that it has a tenth of a CPU that is never
    /// idle.
    fn when_due(&mut self) {
        if clock::since(self.worked_since) < self.work {
            return;
        }
        let begun = clock::now();
        (self.rest)(limits::PASSWORD_THREADS_REST);
        self.worked_since = clock::now();
        let rested = self.worked_since.saturating_duration_since(begun);
        self.work = (rested / 9).clamp(limits::PASSWORD_THREADS_WORK, limits::PASSWORD_THREADS_SLICE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::Address;
    use futures_lite::future::{block_on, poll_once};

    fn on(connection: u64) -> Source {
        Source { connection, ..Source::default() }
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
        assert_eq!(passwords.jobs.waiting().passwords(), 0, "and keeps no password");
    }

    /// Callers that have gone away: what they left keeps neither place nor password.
    #[test]
    fn a_login_that_is_given_up_leaves_its_place() {
        let passwords = Passwords::new(4);
        passwords.threads.call_once(|| ()); // none takes anything up
        let check = |connection, name| passwords.check(on(connection), name, String::new().into(), None);
        let wait = |mut logins: Vec<_>| {
            assert!(logins.iter_mut().all(|login| block_on(poll_once(login)).is_none()));
            logins
        };
        let names: Vec<String> = (0..limits::PASSWORDS_PER_ADDRESS_MAX).map(|it| it.to_string()).collect();
        for turn in 0..3 {
            let ann = wait(vec![Box::pin(check(1, "ann"))]);
            let flood = wait(names.iter().skip(1).map(|name| Box::pin(check(2, name))).collect());
            assert_eq!(passwords.jobs.waiting().passwords(), names.len(), "turn {turn}: all have places");
            drop(flood);
            assert_eq!(passwords.jobs.waiting().passwords(), 1, "turn {turn}");
            drop(ann);
        }
        let mut change = Box::pin(passwords.hash(on(9), Secret::from("rosebud".to_owned())));
        assert!(block_on(poll_once(&mut change)).is_none());
        drop(change);
        let waiting = passwords.jobs.waiting();
        assert_eq!(waiting.passwords(), 0);
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

    /// A hash of the usual cost is made in pieces, longer ones where others keep the CPU.
    #[test]
    fn a_hash_is_made_with_rests_in_between() {
        let pieces = |others: Duration| {
            let mut count = 0;
            let mut rests = Rests::new(|_| {
                count += 1;
                let begun = clock::now();
                while clock::since(begun) < others {
                    std::hint::spin_loop();
                }
            });
            PasswordHash::new(&Secret::from("rosebud".to_owned()), 10, [7; 16], || rests.when_due());
            count
        };
        let (alone, beside) = (pieces(Duration::ZERO), pieces(Duration::from_millis(9)));
        assert!(alone >= 5, "{alone} rests in some tens of milliseconds");
        assert!(beside < alone, "{beside} rests beside others, {alone} without");
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
        passwords.logins.succeeded(&Origin::new("ann", Address::default()), 0, &hash);
        assert!(of_all("guess").iter().all(|it| *it == Err(Error::Auth(AuthError::AuthFailed))));
        assert!(of_all("rosebud").iter().all(Result::is_ok));
    }
}
