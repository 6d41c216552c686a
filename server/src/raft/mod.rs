//! Consensus: how commands become committed entries.

pub mod propose;
pub mod status;
