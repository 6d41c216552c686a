//! Queues between cores and within one, and what else tasks wait for.
//!
//! A core owns its state; cores share only immutable Views, a few atomics and the bounded
//! [`mailbox`]es between them. Rules that keep this free of deadlock:
//!
//! - Messages flow edge -> log -> state -> edge. Only the report of what is durable goes backwards,
//!   state -> log, and its sender never waits (an unsent report is replaced by the next one).
//! - The receiving end of a mailbox never sends: it moves messages into its core's [`queue`], or,
//!   on an edge, has the core hand them on at once.
//! - Requests that an edge has in flight are bounded by `edge::pending`, so every queue behind it
//!   is bounded too.
//! - A core stops when its inputs are closed and drained, and closes its outputs then: edges first,
//!   state last.

pub mod fair_queue;
pub mod gate;
pub mod latch;
pub mod lines;
pub mod mailbox;
pub mod places;
pub mod queue;
pub mod sleep;
pub mod turn;
