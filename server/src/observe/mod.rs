//! The log, and numbers for operators.

pub mod bounds;
pub mod count;
pub mod counters;
pub mod log;
pub mod seldom;
pub mod turns;
