//! From committed entries to state and replies.

pub mod command;
pub mod outcome;
