//! The state of an edge beside its connections: pending requests, reads that wait, watchers.

pub mod change_line;
mod leader_history;
pub mod pending;
pub mod reads;
pub mod slots;
pub mod watchers;
