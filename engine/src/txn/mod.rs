//! Transactions: what readers hold and what the writer builds.
//!
//! ```text
//! Db::begin -> WriteTxn: put, remove -> commit: pages, sync, meta slot, sync -> Snapshot
//!                             '-- dropped: nothing has happened
//! ```

mod snapshot;
mod write;

pub(crate) use snapshot::Inner as SnapshotInner;
pub use snapshot::Snapshot;
pub use write::WriteTxn;

/// A table of the file, by number below `limits::TABLES_MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table(pub u8);

impl Table {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}
