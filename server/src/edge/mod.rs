//! What an edge keeps beside its connections.

pub mod pending;
mod slots;
pub mod watchers;
