//! Clusters of revd in a simulator: 1, 3 or 5 members on one thread, in virtual time and from one
//! seed, with the step functions that ship. One seed is one run, byte for byte.
//!
//! - `world` is the heap of events and all that there is; one step is the next event.
//! - `member` is one process: log core, state core, edge, log writer and helpers, each with its own
//!   pace, and what is on its way between them.
//! - `outside` is what every process has around it: time, links, the truth about the run, marks.
//! - `network` carries bytes between members: hellos, frames and states, which may be late, cut,
//!   doubled, damaged or lost.
//! - `disk` is the data directory of a member: what a crash leaves of it, and its troubles.
//! - `clients` ask and watch, and their history is judged; a `probe` puts and reads beside them.
//! - `calls` is what clients and members say to each other.
//!
//! A seed draws its storm (`faults`); it happens (`storm`, `operator`, `replacing`), is healed
//! (`heal`), and counted (`ledger`); `runs` does that many times, and cuts down what fails.
//!
//! No clock, thread, socket, file or random number but those of the seed is used by a run.

pub mod runs;

pub mod heal;

pub mod replacing;

pub mod operator;

pub mod storm;

pub mod world;

pub mod ledger;

pub mod faults;

mod calm;

pub mod probe;

pub mod cluster;

pub mod member;

pub mod outside;

pub mod truth;

pub mod clients;

// Leaves: every module may use them.
pub mod calls;
pub mod disk;
pub mod marks;
pub mod network;
pub mod time;
