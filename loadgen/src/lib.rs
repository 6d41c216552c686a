//! loadgen: load, latency, watch fan-out, against any etcd v3 endpoint.
//!
//! ```text
//! command line, suite --> plan --> run --> worker threads --> record --> result --> report
//!                                            |        ^
//!                                  scenario (what is said and heard), wire (how)
//! ```

#![allow(clippy::cast_precision_loss, reason = "figures are shown with few digits")]

pub mod arrivals;
pub mod attacks;
pub mod caller;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod cost;
pub mod disk;
pub mod figures;
pub mod keys;
pub mod measure;
pub mod plan;
pub mod presets;
pub mod probe;
pub mod record;
pub mod report;
pub mod result;
pub mod run;
pub mod scenario;
pub mod servers;
pub mod suite;
pub mod sweep;
pub mod versus;
pub mod wire;
