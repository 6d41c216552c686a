//! What operators see.

pub mod bounds;
pub mod counters;
pub mod log;
pub mod turns;
