//! How cores talk.
//!
//! A core owns what it works on; nothing is shared but immutable Views, a few atomics and the bounded
//! [`mailbox`]es between cores. Rules that keep this free of deadlock:
//!
//! - Messages flow edge -> log -> state -> edge. Only the report of what is durable goes backwards, state -> log,
//!   and its sender never waits (an unsent report is replaced by the next one).
//! - The receiving end of a mailbox only moves messages into its core's [`inbox`]; it never sends.
//! - What an edge may have in flight is bounded by `edge::pending`, so every queue behind it is bounded too.
//! - A core stops when its inputs are closed and drained, and closes its outputs then: edges first, state last.

pub mod gate;
pub mod inbox;
pub mod latch;
pub mod mailbox;
pub mod turn;
