//! Clusters of revd in a simulator: 1, 3 or 5 members on one thread, in virtual time and from one
//! seed, with the step functions that ship. One seed is one run, byte for byte.
//!
//! - `world` is the heap of events and all that there is; one step is the next event.
//! - `member` is one process: log core, state core, edge, log writer and helpers, each with its own
//!   pace, and what is on its way between them.
//! - `network` carries bytes between members: hellos, frames and states, which may be late, cut,
//!   doubled, damaged or lost.
//! - `disk` is the data directory of a member: what a crash leaves of it, and its troubles.
//! - `clients` ask and watch, and record what they were told (`revd_checker::History`).
//! - `calls` is what clients and members say to each other.
//!
//! No clock, thread, socket, file or random number but those of the seed is used by a run.

// Leaves: every module may use them.
pub mod calls;
pub mod clients;
pub mod disk;
pub mod time;
