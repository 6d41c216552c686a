//! The storage engine of revd: bytes and revisions.
//!
//! Two halves. Below, a copy-on-write B+tree in one file: [`db`] commits whole transactions atomically, readers
//! hold immutable snapshots of mapped pages. Above, [`mvcc`]: a key space in which every change has a revision,
//! kept as an in-memory index, a tail of recent records, and tables of the tree.
//!
//! Everything here is synchronous and decides nothing by clock, thread or chance. What is handed to readers is
//! immutable and may cross threads; there is one writer.
//!
//! Layers, each using only those below it: `mvcc`, `check`, `db`, `txn`, `btree`, `space`, `meta`, `page`, `disk`.

pub mod mvcc;

pub mod check;
pub mod db;
pub mod txn;

pub mod btree;

pub mod space;

pub mod meta;

pub mod page;

pub mod disk;

// Leaves.
pub mod error;
pub mod limits;
pub mod random;
pub mod varint;

pub use error::{Error, Result};
