//! loadgen: load, latency, watch fan-out, against any etcd v3 endpoint; figures of two servers;
//! attacks.
//!
//! ```text
//! command line, suite --> plan --> run --> worker threads --> record --> result --> report
//!                                            |        ^
//!                                  scenario (requests, replies), wire (HTTP/2)
//! ```

#![allow(clippy::cast_precision_loss, reason = "figures are shown with few digits")]

pub mod cli;

pub mod figures;

pub mod attacks;

pub mod suite;
pub mod sweep;
pub mod versus;

pub mod measure;
pub mod presets;
pub mod servers;

pub mod run;

pub mod report;
pub mod scenario;

pub mod ratios;

pub mod compare;

pub mod result;

pub mod calm;
pub mod cost;
pub mod record;

pub mod plan;

pub mod arrivals;
pub mod keys;

pub mod caller;
pub mod probe;

pub mod accounts;
pub mod login;

pub mod wire;

// Leaves: every module may use them.
pub mod certificates;
pub mod clock;
pub mod disk;
mod started;
pub mod table;
pub mod units;
