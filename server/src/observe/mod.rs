//! The log, and numbers for operators.

pub mod certificates;
pub mod counters;
pub mod process;

pub mod bounds;
pub mod calls;
pub mod turns;

pub mod seldom;

pub mod count;
pub mod exposition;
pub mod log;
