//! Watches: which watcher wants which keys, and the events each is to be told next. Decides only:
//! no clock, no socket.
//!
//! One [`Hub`] per edge core. A *watcher* belongs to a *stream* (one call of a client). It is
//!
//! - **synced** when it has been told of everything up to the hub's revision;
//! - **unsynced** (slow) when it begins in the past, or when its stream had no room for more: a
//!   revision, no queue;
//! - of the **future** when it begins later.
//!
//! A *pass* reads records in revision order and tells its members, all of whom have been told of
//! everything up to one revision. The synced pass reads the records that each new View brings. Two
//! others read the past for unsynced watchers (*catch-up*), from the tail or the tree, until they
//! meet the synced pass and their members join it. A pass finds the watchers of a key through its
//! *cohorts* (watchers of the same range), encodes each event once, and leaves replies that share
//! them with the streams. All of it goes in bounded steps on one thread, so nothing can slip in
//! between.
//!
//! A compaction of events that a watcher has yet to be told of cancels it; no event is ever skipped
//! silently.

mod admission;
mod batch_events;
mod catch_up;
mod events;
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
