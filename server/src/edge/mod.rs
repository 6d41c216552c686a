//! What an edge keeps beside its connections.

pub mod pending;
