//! The storage engine of revd: bytes and revisions.
//!
//! Two halves. Below, a copy-on-write B+tree in one file: [`db`] commits whole transactions
//! atomically, readers hold immutable snapshots of mapped pages. Above, [`mvcc`]: a key space in
//! which every change has a revision, kept as an in-memory index, a tail of recent records, and
//! tables of the tree.
//!
//! Everything here is synchronous and decides nothing by clock, thread or chance. The state handed
//! to readers is immutable and may cross threads; there is one writer.
//!
//! A transaction knows the open file, and a commit knows both; the file knows neither: what a
//! commit must hold is in one place, and opening a file needs no code that changes one.
//!
//! Layers, each using only those below it: `mvcc`, `transfer`, `check`, `commit`, `txn`, `db`,
//! `snapshot`, `btree`, `space`, `meta`, `page`, `disk`.

pub mod mvcc;

pub mod transfer;

pub mod check;
mod commit;

pub mod txn;

pub mod db;

pub mod snapshot;

pub mod btree;

pub mod space;

pub mod meta;

pub mod page;

pub mod disk;

// Leaves.
pub mod error;
pub mod key_parts;
pub mod limits;
pub mod mutants;
mod pauses;
mod prefetch;
pub mod random;
pub mod varint;

pub use error::{Error, Result};
