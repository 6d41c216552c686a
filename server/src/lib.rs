//! revd, an etcd v3 server: sockets, cores, files. The decisions of a member are the crate
//! `revd-member`.
//!
//! Modules stand in the order in which a request travels, and a module uses only those below it
//! (`tests/tidy/` holds that). One Put: `net` reads a call, `api` checks it and hands a command to
//! the log core through `edge::pending`; the log core makes it durable and commits it
//! (`revd_member::{wal, raft}`); the state core applies it (`revd_member::apply`) to the engine and
//! sends the outcome back. One Range: `net`, `api`, `revd_member::read`, done.

/// Faults are planted in tests of the crates below alone: no program that serves has them.
const _: () = assert!(!revd_member::mutants::ARE_PLANTED, "build revd without the feature `mutants`");

pub mod cli;

pub mod boot;
pub mod cores;
pub mod duties;
pub mod peer;

pub mod net;

pub mod api;

pub mod edge;

pub mod disk;

pub mod queues;

// Leaves: anyone may use them.
pub mod clock;
pub mod config;
pub mod limits;
pub mod memory;
pub mod observe;
pub mod resolve;
pub mod secret;
pub mod threads;
pub mod version;
