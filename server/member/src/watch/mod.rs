//! Watches: who wants to know of which keys, and what each is to be told next. Decides only: no
//! clock, no socket.
//!
//! One [`Hub`] per edge core. A *watcher* belongs to a *stream* (one call of a client). It is
//!
//! - **live** when it has been told of everything up to the hub's revision;
//! - **lagging** when it begins in the past, or when its stream had no room for more: a revision,
//!   no queue;
//! - of the **future** when it begins later.
//!
//! A *pass* reads records in revision order and tells its members, all of whom have been told of
//! everything up to one revision. The live pass reads what each new View brings. Two others read
//! the past for those who lag, from whatever holds it (tail or tree), until they meet the live pass
//! and their members become live. A pass finds who watches a key through its *cohorts* (everybody
//! who watches the same keys), encodes each event once, and leaves replies that share them with the
//! streams. All of it goes in bounded steps on one thread, so nothing can slip in between.
//!
//! What a compaction took from a watcher cancels it; nothing is ever skipped silently.

mod admission;
mod catch_up;
mod changes;
mod found;
mod hub;
mod pass;
mod progress;
mod range;
mod range_map;
mod reply;
mod requests;
mod starved;
mod stream;
mod watcher;

pub use hub::{Hub, HubCounts, HubLimits};
pub use range::WatchRange;
pub use reply::{Content, Reply};
pub use stream::StreamId;
