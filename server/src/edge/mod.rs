//! The state of an edge beside its connections: pending requests and watchers.

pub mod pending;
mod slots;
pub mod watchers;
