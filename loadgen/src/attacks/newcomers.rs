//! Callers that come while a server is attacked, on a thread of their own.
//!
//! The attacker's thread has the lowest priority, and so have threads that it starts: callers on
//! these would measure how long the attacker waits for its CPU, not the server.

use std::sync::mpsc::{Sender, channel};

use crate::clock;
use crate::probe;

/// A newcomer should not wait longer for its reply.
const SOON: u64 = clock::SECOND;

/// The thread, which ends with this.
#[derive(Debug)]
pub(super) struct Newcomers(Sender<Sender<String>>);

impl Newcomers {
    /// Starts it, with the priority of this thread.
    pub(super) fn start(come: impl Fn() -> String + Send + 'static) -> Self {
        let (ask, asked) = channel::<Sender<String>>();
        std::thread::spawn(move || {
            for tell in asked {
                let _ = tell.send(come()); // or nobody waits for it
            }
        });
        Self(ask)
    }

    /// How one that comes now is served, when that is known.
    pub(super) fn come(&self) -> String {
        let (tell, told) = channel();
        let said = self.0.send(tell).ok().and_then(|()| told.recv().ok());
        said.unwrap_or_else(|| "newcomer: late, its thread is gone".to_owned())
    }
}

/// A caller that comes now must be served as ever.
pub(super) fn newcomer(endpoint: &str) -> String {
    let since = clock::nanos();
    match probe::status(endpoint) {
        Ok(_) if clock::nanos() - since < SOON => "newcomer: in time".to_owned(),
        Ok(_) => "newcomer: late, more than 1 s".to_owned(),
        Err(error) => format!("newcomer: late, and not served: {error:#}"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getpriority_process, setpriority_process};

    use super::*;

    #[test]
    fn newcomers_have_the_priority_of_others_and_not_that_of_the_attacker() {
        let own = || getpriority_process(None).unwrap().to_string();
        let (newcomers, normal) = (Newcomers::start(own), own());
        let attacker = std::thread::spawn(move || {
            setpriority_process(None, 19).unwrap();
            (own(), newcomers.come())
        });
        assert_eq!(attacker.join().unwrap(), ("19".to_owned(), normal));
    }

    #[test]
    fn a_thread_that_is_gone_is_told() {
        let newcomers = Newcomers::start(|| panic!("a newcomer that fails"));
        assert_eq!((newcomers.come(), newcomers.come()).1, "newcomer: late, its thread is gone");
    }
}
