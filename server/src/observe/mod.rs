//! What operators see.

pub mod counters;
pub mod log;
