//! The queues of passwords: the place of each, what gives way, and what comes next.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use revd_member::error::Error;

use crate::api::auth::jwt::Jwt;
use crate::api::auth::logins::{Origin, Standing};
use crate::api::call::Source;
use crate::limits;
use crate::queues::fair_queue::{FairBounds, FairQueue};
use crate::queues::latch::Latch;
use crate::secret::Secret;

/// bcrypt reads no more of a password.
pub(super) const PASSWORD_BYTES_MAX: usize = 72;

/// A password that waits, and its answer.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) answer: Arc<Answer>,
}

/// The task of a thread.
pub(super) enum Work {
    Hash {
        password: Secret,
        salt: [u8; 16],
    },
    /// Against the hash of a user; without one against any other, which takes as long.
    Check {
        password: Password,
        hash: Option<Bytes>,
        origin: Origin,
        connection: u64,
        standing: Standing,
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
pub(super) struct Password(pub(super) Secret);

impl From<Secret> for Password {
    fn from(whole: Secret) -> Self {
        Self(whole.cut_to(PASSWORD_BYTES_MAX))
    }
}

#[cfg(test)]
impl From<String> for Password {
    fn from(text: String) -> Self {
        Secret::from(text).into()
    }
}

/// The answer to a caller that waits for it.
#[derive(Debug, Default)]
pub(super) struct Answer {
    result: Mutex<Option<Result<String, Error>>>,
    pub(super) is_there: Latch,
}

impl Answer {
    pub(super) fn give(&self, result: Result<String, Error>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.is_there.set();
    }

    /// Takes it; it is given once.
    pub(super) fn take(&self) -> Option<Result<String, Error>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The place of a job.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// In the queue of this number, under these keys.
    Queue(usize, [u128; 3]),
    /// Among the signings.
    Signings,
}

#[derive(Debug)]
pub(super) struct Waiting {
    /// By address, and two more keys; see [`Waiting::place`].
    queues: [FairQueue<3, Job>; 4],
    /// The queue whose turn it is.
    turn: usize,
    /// Tokens of those whose password was right: they have waited among the logins, and signing
    /// takes a part of what a password does.
    signings: VecDeque<Job>,
    /// The member stops.
    pub(super) is_over: bool,
    /// Of names, so that nobody can choose one that shares another's part.
    names: RandomState,
}

impl Waiting {
    pub(super) fn new() -> Self {
        let bounds = FairBounds {
            all_max: limits::PASSWORDS_WAITING_MAX,
            part_max: limits::PASSWORDS_PER_ADDRESS_MAX,
        };
        Self {
            queues: std::array::from_fn(|_| FairQueue::new(bounds)),
            turn: 0,
            signings: VecDeque::new(),
            is_over: false,
            names: RandomState::new(),
        }
    }

    /// Where this one has to wait.
    pub(super) fn place(&self, source: Source, work: &Work) -> Place {
        let (address, connection) = (source.address.bits(), u128::from(source.connection));
        match work {
            Work::Hash { .. } => Place::Queue(0, [address, connection, 0]),
            Work::Check { origin, standing, .. } => {
                let name = u128::from(self.names.hash_one(origin.name()));
                match standing {
                    Standing::Connection => Place::Queue(1, [address, name, connection]),
                    Standing::Address => Place::Queue(2, [address, name, connection]),
                    // A gateway's connection may be of many.
                    Standing::New => Place::Queue(3, [address, connection, name]),
                }
            }
            Work::Sign { .. } => Place::Signings,
        }
    }

    /// Adds a job in its place. The result is the one that has to go for it, if there is no room.
    pub(super) fn add(&mut self, place: Place, job: Job) -> Option<Job> {
        match place {
            Place::Queue(queue, path) => self.queues[queue].push(path, job),
            Place::Signings if self.signings.len() >= limits::PASSWORDS_WAITING_MAX => Some(job),
            Place::Signings => {
                self.signings.push_back(job);
                None
            }
        }
    }

    /// Takes out the job that was to be answered there, if it waits still: among those of the same
    /// keys, as many as an address may have, or among the signings.
    pub(super) fn remove(&mut self, place: Place, answer: &Arc<Answer>) -> Option<Job> {
        let is_it = |job: &Job| Arc::ptr_eq(&job.answer, answer);
        match place {
            Place::Queue(queue, path) => self.queues[queue].remove(path, is_it),
            Place::Signings => self.signings.remove(self.signings.iter().position(is_it)?),
        }
    }

    /// The next one: each queue has one at a time, behind what is to be signed.
    pub(super) fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.signings.pop_front() {
            return Some(job);
        }
        for _ in 0..self.queues.len() {
            let queue = self.turn;
            self.turn = (queue + 1) % self.queues.len();
            if let Some(job) = self.queues[queue].pop() {
                return Some(job);
            }
        }
        None
    }

    /// The member stops: takes out what waits, except for what is to be signed.
    pub(super) fn close(&mut self) -> Vec<Job> {
        self.is_over = true;
        self.queues.iter_mut().flat_map(|queue| std::iter::from_fn(|| queue.pop())).collect()
    }

    /// How many passwords wait.
    #[cfg(test)]
    pub(super) fn passwords(&self) -> usize {
        self.queues.iter().map(FairQueue::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call::Address;

    fn job(work: Work) -> Job {
        Job { work, answer: Arc::new(Answer::default()) }
    }

    fn login(name: &str, standing: Standing) -> Job {
        let (password, origin) = (String::new().into(), Origin::new(name, Address::default()));
        job(Work::Check { password, hash: None, origin, connection: 0, standing })
    }

    fn on(connection: u64) -> Source {
        Source { connection, ..Source::default() }
    }

    fn from(network: u64) -> Source {
        let address = std::net::Ipv6Addr::from_bits(u128::from(1 + network) << 64);
        Source { address: Address::of(address.into()), connection: network }
    }

    fn add(waiting: &mut Waiting, source: Source, job: Job) -> Option<Job> {
        waiting.add(waiting.place(source, &job.work), job)
    }

    /// Adds a login that must have a place.
    fn placed(waiting: &mut Waiting, source: Source, name: &str, standing: Standing) -> Arc<Answer> {
        let job = login(name, standing);
        let answer = Arc::clone(&job.answer);
        let gone = add(waiting, source, job);
        assert!(gone.is_none_or(|gone| !Arc::ptr_eq(&gone.answer, &answer)), "{name} has a place");
        answer
    }

    /// How many jobs come before those with these answers.
    fn before<const N: usize>(waiting: &mut Waiting, answers: [&Arc<Answer>; N]) -> [usize; N] {
        let order: Vec<Job> = std::iter::from_fn(|| waiting.next()).collect();
        let place = |answer| order.iter().position(|job| Arc::ptr_eq(&job.answer, answer));
        answers.map(|answer| place(answer).expect("it is served"))
    }

    /// Users behind one address: a neighbour opens as many connections as it likes, and guesses in
    /// all names, or again and again in ann's.
    #[test]
    fn a_neighbour_takes_neither_places_nor_turns_of_known_users() {
        for is_guessed_as_ann in [false, true] {
            let waiting = &mut Waiting::new();
            let flood = |waiting: &mut Waiting, from: u64| {
                for connection in from..from + 10_000 {
                    let (name, standing) = match is_guessed_as_ann {
                        true => ("ann".to_owned(), Standing::Address),
                        false => (format!("user {connection}"), Standing::New),
                    };
                    add(waiting, on(100 + connection), login(&name, standing));
                }
            };
            let early = placed(waiting, on(1), "ann", Standing::Address);
            flood(waiting, 0);
            let [ann, bob] = [("ann", Standing::Connection), ("bob", Standing::Address)]
                .map(|(name, standing)| placed(waiting, on(2), name, standing));
            flood(waiting, 10_000);
            let [early, ann, bob] = before(waiting, [&early, &ann, &bob]);
            assert!(ann < 4 && bob < 8, "ann, who logs in again, waits for {ann}, bob for {bob}");
            assert!(early < 8, "a place that was taken first is served: {early}");
        }
    }

    /// Each of a thousand networks guesses once, as anybody.
    #[test]
    fn strangers_of_many_networks_take_no_place_of_known_users() {
        let waiting = &mut Waiting::new();
        let ann = placed(waiting, from(5), "ann", Standing::New);
        let flood = |waiting: &mut Waiting, first| {
            for network in first..first + 2 * limits::PASSWORDS_WAITING_MAX as u64 {
                add(waiting, from(network), login("bob", Standing::New));
            }
        };
        flood(waiting, 10);
        let bob = placed(waiting, from(5), "bob", Standing::Address);
        flood(waiting, 10_000);
        assert!(before(waiting, [&ann, &bob]).iter().all(|before| *before < 4));
    }

    /// One that is not known has a place where another connection holds more, and so has one of a
    /// gateway's one connection where another name does; what comes later does not take it.
    #[test]
    fn who_is_not_known_finds_a_place_and_keeps_it() {
        let flood = |waiting: &mut Waiting, from: u64, is_one: bool| {
            for number in from..from + 1_000 {
                let (connection, name) =
                    if is_one { (7, format!("user {number}")) } else { (100 + number, "root".to_owned()) };
                add(waiting, on(connection), login(&name, Standing::New));
            }
        };
        for is_one in [false, true] {
            let waiting = &mut Waiting::new();
            for _ in 0..1_000 {
                add(waiting, on(7), login("root", Standing::New));
            }
            let new = placed(waiting, on(if is_one { 7 } else { 8 }), "ann", Standing::New);
            flood(waiting, 0, is_one);
            assert!(before(waiting, [&new])[0] < 4);
        }
    }

    /// SECURITY says this of places that are lost.
    #[test]
    fn a_place_is_lost_only_to_one_of_a_smaller_part() {
        let is_lost = |gone: Option<Job>, answer| gone.is_some_and(|gone| Arc::ptr_eq(&gone.answer, answer));
        let known = |name: &str| login(name, Standing::Address);
        // A neighbour guesses in ann's name, and in those of others; then a third one comes.
        let waiting = &mut Waiting::new();
        assert!(add(waiting, on(1), known("ann")).is_none());
        let ann = placed(waiting, on(2), "ann", Standing::Address);
        for connection in 2..limits::PASSWORDS_PER_ADDRESS_MAX as u64 {
            assert!(add(waiting, on(10 + connection), known(&format!("user {connection}"))).is_none());
        }
        assert!(is_lost(add(waiting, on(5), known("bob")), &ann), "what came last in the longer part");
        let cem = known("cem");
        let answer = Arc::clone(&cem.answer);
        assert!(is_lost(add(waiting, on(6), cem), &answer), "all have one: no name loses its only one");
        // Two of one address, and one of each other: the next address takes the second one's.
        let waiting = &mut Waiting::new();
        assert!(add(waiting, from(1), known("ann")).is_none());
        let bob = placed(waiting, from(1), "bob", Standing::Address);
        for network in 3..=limits::PASSWORDS_WAITING_MAX as u64 {
            assert!(add(waiting, from(network), known("cem")).is_none());
        }
        assert!(is_lost(add(waiting, from(2), known("dan")), &bob), "though bob has one");
    }

    /// Every queue has its turn, however full the others are.
    #[test]
    fn queues_take_turns() {
        let waiting = &mut Waiting::new();
        let standings = [Standing::Connection, Standing::Address, Standing::New];
        for connection in 0..100 {
            for standing in standings {
                assert!(add(waiting, on(connection), login("root", standing)).is_none());
            }
        }
        let (password, salt) = (Secret::from(String::new()), [0; 16]);
        let change = job(Work::Hash { password, salt });
        let answer = Arc::clone(&change.answer);
        assert!(add(waiting, on(1), change).is_none());
        let last = standings.map(|standing| placed(waiting, on(1_000), "ann", standing));
        assert!(before(waiting, [&answer, &last[0], &last[1]]).iter().all(|before| *before < 8));
    }

    /// The caller of a signed login has waited once.
    #[test]
    fn what_is_to_be_signed_waits_behind_no_password() {
        let waiting = &mut Waiting::new();
        for connection in 0..10 {
            assert!(add(waiting, on(connection), login("ann", Standing::New)).is_none());
            let (password, salt) = (Secret::from(String::new()), [0; 16]);
            assert!(add(waiting, on(connection), job(Work::Hash { password, salt })).is_none());
        }
        let signings: [Job; 3] = std::array::from_fn(|_| login("ann", Standing::New));
        let [given_up, answer, last] = signings.each_ref().map(|job| Arc::clone(&job.answer));
        assert!(signings.into_iter().all(|job| waiting.add(Place::Signings, job).is_none()));
        for (answer, is_there) in [(&given_up, true), (&given_up, false), (&last, true)] {
            assert_eq!(waiting.remove(Place::Signings, answer).is_some(), is_there);
        }
        assert!(waiting.next().is_some_and(|next| Arc::ptr_eq(&next.answer, &answer)));
        assert_eq!(std::iter::from_fn(|| waiting.next()).count(), 20);
    }
}
