//! The key index: every key's history, in key order, in memory.
//!
//! A copy-on-write B+tree. The state core owns the [`KeyIndex`] and changes it;
//! [`KeyIndex::share`] hands out an immutable [`SharedIndex`] at the cost of one reference count,
//! and a later change copies only the nodes on its path (those a share may still have). Each
//! node keeps how many of its keys are live and when the last of them changed, and a branch has
//! the number of each child's live keys too, so counting a range takes two walks down the tree, and
//! at an old revision one walk of what has changed since.

mod build;
mod count;
mod created;
mod gone_list;
mod index;
mod keys;
mod node;
mod node_box;
mod piece;
mod row;
mod scan;
mod shares;
mod totals;

pub use build::IndexBuilder;
pub use count::Counting;
pub use created::{Created, CreatedSearch};
pub use index::{IndexRoot, KeyIndex, PutResult, SharedIndex, UnneededNodes};
pub use keys::Key;
pub use piece::IndexPiece;
pub use scan::{Direction, Scan, Sought};
