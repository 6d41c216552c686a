//! Watches: who wants to know of which keys, and what each is to be told next. Decides only: no clock, no socket.
//!
//! One [`Hub`] per edge core. A *watcher* belongs to a *stream* (one call of a client) and to a *group* (everybody on
//! this edge who watches the same keys). It is
//!
//! - **live** when it has been told of everything up to the hub's revision: the hub finds it through its group when a
//!   new View comes, encodes the group's events once, and leaves a reply that shares them with each stream;
//! - **lagging** when it begins in the past, or when its stream has no room for more: a cursor, no queue. The stream's
//!   own call reads the records behind the cursor in bounded steps, from whatever holds them (tail or tree), until the
//!   cursor meets the hub's revision. Both happen on one thread, so nothing can slip in between.
//!
//! What a compaction took from a lagging watcher cancels it; nothing is ever skipped silently.

mod catch_up;
mod changes;
mod hub;
mod range;
mod range_map;
mod reply;
mod stream;

pub use hub::{Hub, HubCounts, HubLimits, StreamId};
pub use range::WatchRange;
pub use reply::{Content, Reply};
