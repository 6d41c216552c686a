//! The state of an edge beside its connections: pending requests, reads that wait, watchers.

mod leader_history;
pub mod pending;
pub mod reads;
pub mod slots;
pub mod watchers;
