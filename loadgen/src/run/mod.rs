//! Runs of a plan: [`round()`] starts worker threads, each with its connections, its clock, its
//! callers and its watchers.

mod beside;
mod callers;
mod compactions;
mod connections;
mod disk_probe;
mod idle;
mod links;
mod looks;
mod patience;
mod round;
mod samples;
mod shared;
mod watchers;
mod worker;
mod worker_report;

pub use round::{Progress, RoundOutcome, Surroundings, greet, preload, round};
