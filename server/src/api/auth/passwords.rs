//! Passwords: bcrypt takes tens of milliseconds on purpose, so it runs on threads of its own, few
//! of them and at a low priority, and what waits for them is bounded.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bcrypt::{HashParts, Version};
use bytes::Bytes;
use revd_member::error::{AuthError, Error};

use crate::api::auth::jwt::Jwt;
use crate::limits;
use crate::queues::latch::Latch;
use crate::secret::{Secret, fill_random};

/// bcrypt reads no more of a password.
const PASSWORD_BYTES_MAX: usize = 72;

/// Node view: the threads that make and check hashes. They begin with the first password.
#[derive(Debug)]
pub struct Passwords {
    cost: u32,
    jobs: OnceLock<SyncSender<Job>>,
}

#[derive(Debug)]
struct Job {
    work: Work,
    answer: Arc<Answer>,
}

#[derive(Debug)]
enum Work {
    Hash {
        password: Secret,
        salt: [u8; 16],
    },
    /// Against the hash of a user; without one against any other, which takes as long.
    Check {
        password: Secret,
        hash: Option<Bytes>,
    },
    Sign {
        jwt: Arc<Jwt>,
        name: String,
        revision: u64,
    },
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
        Self { cost, jobs: OnceLock::new() }
    }

    /// The hash of a password.
    ///
    /// # Errors
    /// [`AuthError::PasswordTooLong`]; [`Error::TooManyRequests`] when too many wait.
    pub(super) async fn hash(&self, password: Secret) -> Result<String, Error> {
        if password.expose().len() > PASSWORD_BYTES_MAX {
            return Err(Error::Auth(AuthError::PasswordTooLong));
        }
        let mut salt = [0; 16];
        fill_random(&mut salt);
        self.run(Work::Hash { password, salt }).await
    }

    /// Whether a password is a user's; the answer takes as long if there is no such user.
    ///
    /// # Errors
    /// [`AuthError::AuthFailed`] when it is not; [`Error::TooManyRequests`] when too many wait.
    pub(super) async fn check(&self, password: Secret, hash: Option<Bytes>) -> Result<(), Error> {
        self.run(Work::Check { password, hash }).await.map(drop)
    }

    /// A signed token: with a long key that takes milliseconds.
    ///
    /// # Errors
    /// [`AuthError::VerifyOnlyKey`]; [`Error::TooManyRequests`] when too many wait.
    pub(super) async fn sign(&self, jwt: &Arc<Jwt>, name: String, revision: u64) -> Result<String, Error> {
        self.run(Work::Sign { jwt: Arc::clone(jwt), name, revision }).await
    }

    async fn run(&self, work: Work) -> Result<String, Error> {
        let answer = Arc::new(Answer::default());
        let job = Job { work, answer: Arc::clone(&answer) };
        let jobs = self.jobs.get_or_init(|| begin_threads(self.cost));
        jobs.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => Error::TooManyRequests,
            TrySendError::Disconnected(_) => Error::Stopped,
        })?;
        answer.is_there.wait().await;
        let result = answer.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or(Err(Error::Stopped))
    }
}

/// They end when nobody can ask them any more.
fn begin_threads(cost: u32) -> SyncSender<Job> {
    let (jobs, to_do) = sync_channel(limits::PASSWORDS_WAITING_MAX);
    let to_do = Arc::new(Mutex::new(to_do));
    for number in 0..limits::PASSWORD_THREADS {
        let to_do = Arc::clone(&to_do);
        let thread = std::thread::Builder::new().name(format!("passwords {number}"));
        // Without threads there is nobody to hear: callers are told that the member stops.
        let _ = thread.spawn(move || work(&to_do, cost));
    }
    jobs
}

fn work(to_do: &Mutex<Receiver<Job>>, cost: u32) {
    let own = rustix::thread::gettid();
    let _ = rustix::process::setpriority_process(Some(own), limits::PASSWORD_THREADS_NICE);
    // The hash of a password that no user has.
    let nobodys = bcrypt::hash_with_salt(b"nobody's", cost, [0; 16]).map(|hash| hash.to_string());
    let nobodys = nobodys.unwrap_or_default();
    loop {
        let job = to_do.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { work, answer }) = job else { return };
        // A caller that has gone away needs no answer.
        if Arc::strong_count(&answer) > 1 {
            let result = match work {
                Work::Hash { password, salt } => hash(&password, cost, salt),
                Work::Sign { jwt, name, revision } => jwt.sign(&name, revision),
                Work::Check { password, hash } => check(&password, hash.as_deref(), cost, &nobodys),
            };
            *answer.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        }
        answer.is_there.set();
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
    use futures_lite::future::block_on;

    #[test]
    fn passwords_are_known_by_their_hashes() {
        let passwords = Passwords::new(4);
        let secret = |text: &str| Secret::from(text.to_owned());
        let hash = block_on(passwords.hash(secret("rosebud"))).unwrap();
        assert!(hash.starts_with("$2a$04$"));
        let check = |text, hash: Option<&str>| {
            let hash = hash.map(|hash| Bytes::copy_from_slice(hash.as_bytes()));
            block_on(passwords.check(secret(text), hash))
        };
        assert_eq!(check("rosebud", Some(&hash)), Ok(()));
        // Made by Go.
        let of_go = "$2a$10$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
        assert_eq!(check("wrong", Some(of_go)), Err(Error::Auth(AuthError::AuthFailed)));
        let too_dear = "$2a$31$N9qo8uLOickgx2ZMRZoMyeIjZAgcfl7p92ldGxad68LJZdL17lhWy";
        for hash in [None, Some(""), Some("\u{e4}"), Some("$2a$04$"), Some(too_dear)] {
            assert_eq!(check("rosebud", hash), Err(Error::Auth(AuthError::AuthFailed)));
        }
        assert_eq!(
            block_on(passwords.hash(secret(&"x".repeat(73)))),
            Err(Error::Auth(AuthError::PasswordTooLong))
        );
    }
}
