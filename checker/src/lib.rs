//! Did a cluster keep etcd's promises? Clients record into a [`History`] what they asked and were
//! told, whether they talked to real servers or to simulated ones, and [`check`] holds it against
//! what etcd promises.
//!
//! Every reply of etcd names a revision, and every write has one of its own. So the truth need not
//! be searched for: `replay` carries out the writes on a `model` in the order of their revisions,
//! `order` holds the revisions against real time, and all other checks compare with what comes out.
//! As that trusts the revisions, `registers` and `lists` look at values alone.
//!
//! Whether a write without an answer was carried out is decided by what others saw of it. For that
//! the history needs a watcher of every key, on any member, that goes on until the end, and no two
//! writes that put the same value in the same key.

mod errors;

mod file;

mod hash_kv;

mod lists;

mod locks;

mod leases;

mod members;

mod reads;

mod order;

mod registers;

mod replay;

mod known;

mod matching;

// Leaves: every module may use them.
mod fault;
mod history;
mod model;
mod range;
mod rules;
mod watch;

pub use errors::counts as errors;
pub use fault::{Check, Fault};
pub use file::{read, write};
pub use hash_kv::hash_kv;
pub use history::{Call, History, Hold, Outcome, Request, Response, StateAt, Time, Watch};
pub use known::Known;
pub use leases::{Lease, LeasesJudged, leases};
pub use lists::{PREFIX as LISTS, elements};
pub use model::{Attempt, Model, Version};
pub use range::is_in_range;
pub use replay::{Cause, Truth, has_changed, replay};
pub use rules::{Jump, Rules};
pub use watch::{Changes, Transcript, mutants};

/// The findings in a history.
#[derive(Debug)]
pub struct Report {
    /// Everything that happened.
    pub truth: Truth,
    /// Promises that were not kept.
    pub faults: Vec<Fault>,
    /// Keys whose calls were searched for an order without looking at revisions.
    pub registers: usize,
    /// Events that watchers were told of.
    pub events: usize,
    /// How much of leases was judged.
    pub leases: LeasesJudged,
}

/// Holds a history against everything that etcd promises.
#[must_use]
pub fn check(history: &History, rules: &Rules) -> Report {
    let known = Known::of(history);
    let (truth, mut faults) = replay::replay(history, &known, rules);
    faults.extend(order::check(history, &known));
    faults.extend(order::check_members(history, rules));
    let (found, registers) = registers::check(history);
    faults.extend(found);
    faults.extend(lists::check(history));
    faults.extend(locks::check(history, rules));
    faults.extend(members::check(history));
    faults.extend(errors::check(history, rules));
    let (mut events, mut judged) = (0, LeasesJudged::default());
    // The others would find what follows from a replay that came to no end.
    if truth.is_whole {
        faults.extend(reads::check(history, &truth, &known, rules));
        faults.extend(leases::check(history, &truth, &known, rules));
        judged = leases::judged(history, &truth, rules);
        faults.extend(hash_kv::check(history, &truth));
        let (found, told) = watches(history, &truth);
        faults.extend(found);
        events = told;
    }
    Report { truth, faults, registers, events, leases: judged }
}

/// Every watcher's transcript; also how many events they were told of.
fn watches(history: &History, truth: &Truth) -> (Vec<Fault>, usize) {
    let mut changes = Changes::default();
    truth.model.changes().iter().for_each(|event| changes.push(event.clone()));
    let compactions = history.calls.iter().filter_map(|call| match (&call.request, &call.outcome) {
        (_, Outcome::Refused(_)) => None,
        (Request::Compact(request), _) => Some(request.revision),
        _ => None,
    });
    changes.compacted = compactions.max().unwrap_or(0);
    let (mut faults, mut told) = (Vec::new(), 0);
    for watch in &history.watches {
        match watch.transcript.check(&changes) {
            Ok(events) => told += events,
            Err(text) => {
                let Watch { client, member, transcript, .. } = watch;
                let text = format!("client {client} on member {member}: {text}, {:?}", transcript.request);
                faults.push(Fault::new(Check::Watches, text));
            }
        }
    }
    (faults, told)
}
