//! One process of a member: the shipped cores, and what carries out what they decide, in parts that
//! take turns.
//!
//! - `start` is the shipped recovery over the member's directory; `process` is what it starts.
//! - `log`, `writer`, `peers` and `states` are the log core's thread; `state` and `edge` are the
//!   others'.
//! - `common` is what they share: queues, paces, the clock, helpers.

mod common;
mod edge;
mod log;
mod peers;
mod process;
mod start;
mod state;
mod states;
mod writer;

pub use common::{Clock, End};
pub use process::Process;
pub use start::{NoStart, Settings};

pub(crate) use edge::StreamRequest;
pub(crate) use start::{VERSION, start};
