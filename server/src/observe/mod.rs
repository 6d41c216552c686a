//! What operators see.

pub mod log;
