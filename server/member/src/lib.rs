//! The decisions of a member of a cluster: consensus, the format of its log, apply, reads, leases,
//! watches.
//!
//! Nothing here does I/O, reads a clock, draws a random number or knows a runtime, a socket or
//! HTTP: events, time and a seed come in, effects and bytes go out. The server (`revd`) carries
//! them out; a simulator may link this crate alone. A module uses only those below it
//! (`server/tests/tidy/` holds that).

pub mod boot;

pub mod cores;

pub mod watch;

pub mod peer;

pub mod raft;

pub mod wal;

pub mod apply;

pub mod auth;

pub mod lease;

pub mod read;

pub mod schema;

pub mod cluster;

// Leaves: every module may use them.
pub mod budget;
pub mod error;
pub mod files;
pub mod limits;
pub mod mutants;
pub mod urls;
pub mod wire;
