//! revd, an etcd v3 server: network, consensus, apply.
//!
//! Modules stand in the order in which a request travels, and a module uses only those below it
//! (`tests/tidy.rs` holds that). One Put: `net` reads a call, `api` checks it and hands a command to the
//! log core through `raft::propose`; the log core makes it durable (`wal`) and commits it (`raft`); the state
//! core applies it (`apply`) to the engine and sends the outcome back. One Range: `net`, `api`, `read`, done.

pub mod cli;

pub mod boot;
pub mod cores;
pub mod net;

pub mod api;

pub mod duties;

pub mod watch;

pub mod raft;

pub mod wal;

pub mod apply;

pub mod lease;

pub mod read;

pub mod cluster;

pub mod schema;

pub mod xcore;

// Leaves: anyone may use them.
pub mod budget;
pub mod clock;
pub mod config;
pub mod error;
pub mod limits;
pub mod memory;
pub mod observe;
pub mod reserve;
pub mod version;
pub mod wire;
