//! What an edge keeps beside its connections.

pub mod pending;
pub mod watchers;
