//! The multi-version key space: every change has a revision, and the past can be read until it is
//! compacted.
//!
//! A change is a *record* keyed by its revision. Records only ever arrive in revision order, so the
//! store has two levels split by revision: the [`tail`] (newest records, in memory; other engines
//! call it a memtable) and the tree file (the rest); a [`checkpoint`](Store::checkpoint) moves the
//! boundary. The [`key_index`] says which revisions a key has. All three can be shared at no cost:
//! a [`View`] is one moment of them.
//!
//! One writer owns the [`Store`]. It begins a [`Txn`] per revision, calls [`Store::set_applied`]
//! for each log entry, publishes Views, and now and then takes a checkpoint, whose work happens on
//! another thread. A reopened store holds exactly what was applied up to the index it reports: the
//! log is applied to it from there on.

pub mod checkpoint;
mod compaction;
mod compaction_hash;
mod compaction_walk;
mod defragment;
mod garbage;
pub mod hash;
mod index_pace;
mod index_part;
mod kept_history;
mod kept_puts;
mod key_change;
mod key_changes;
pub mod key_history;
pub mod key_index;
pub mod key_range;
mod layout;
mod loading;
mod long_keys;
mod reader;
pub mod record;
mod record_counts;
mod replay;
mod restore;
pub mod revision;
mod saved_history;
mod saved_index;
mod saved_ranges;
mod saved_state;
mod state_hash;
mod store;
mod tables;
pub mod tail;
mod tail_chunk;
pub mod verify;
mod view;
mod write;

pub use checkpoint::{Checkpoint, CheckpointKind, Durable, WrittenCheckpoint};
pub use compaction_hash::Hashed;
pub use garbage::Garbage;
pub use hash::HashKv;
pub use index_pace::QuietTime;
pub use key_history::KeyMeta;
pub use key_index::{Counting, Created, CreatedSearch, Direction, Scan, Sought};
pub use key_range::KeyRange;
pub use layout::Applied;
pub use loading::Opening;
pub use reader::Reader;
pub use record::StoredRecord;
pub use revision::Revision;
pub use saved_state::{SavedState, StoreBuilder};
pub use state_hash::StateHash;
pub use store::Store;
pub use tables::{SmallTable, Tables, TablesMark};
pub use view::View;
pub use write::{Reverted, Txn};
