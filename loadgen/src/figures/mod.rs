//! The figures of README.md and docs/results: two servers, started alike on fresh directories,
//! measured in turn.
//!
//! A part ([`FigurePart`]) is one question, and has servers of its own: earlier parts have no
//! effect on it. Scenarios of callers that any endpoint can be asked are [`crate::versus`]; here
//! are figures that need a restart, a look at memory and disk, or h2load.

mod away;
mod background;
mod calls;
mod expiry;
mod failover;
mod fan_out;
mod footprint;
mod growth;
mod h2load;
mod part;
mod ranges;
mod sizes;
mod store;
mod table;
mod watch_memory;
mod watchers;

pub use part::{FigurePart, run};
pub use sizes::FigureSizes;
