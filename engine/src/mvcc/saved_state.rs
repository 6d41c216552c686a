//! The state that the newest finished checkpoint has saved, to be copied to another member.
//!
//! It is whole without memory: the tree file holds every record, the saved index, all small tables
//! and the store meta of one applied index. So it is what the log of that member goes on from, and
//! copying it needs no part of the store that changes. A compaction under way is copied as far as
//! it has come, and the copy goes on with it.

use std::sync::Arc;

use crate::disk::Disk;
use crate::mvcc::layout::{Applied, INDEX, RECORDS, StoreMeta};
use crate::mvcc::store::{Store, rows_of};
use crate::mvcc::tables::SmallTable;
use crate::snapshot::Snapshot;
use crate::transfer::{FileBuilder, LaidOut, StateStream, TableKinds};
use crate::{Error, Result};

/// A saved state; its pages stay in the file as long as this or its stream lives.
#[derive(Debug, Clone)]
pub struct SavedState {
    tree: Snapshot,
    meta: StoreMeta,
    bytes: u64,
}

impl Store {
    /// The state that the newest finished checkpoint has saved; none if nothing was ever saved.
    #[must_use]
    pub fn saved_state(&self) -> Option<SavedState> {
        let (tree, meta, bytes) = (self.tree.clone(), self.saved, self.sizes().in_use);
        (tree.txn() > 0).then_some(SavedState { tree, meta, bytes })
    }
}

impl SavedState {
    /// The last entry of the log that has an effect in it.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.meta.applied
    }

    /// Its newest revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.meta.revision
    }

    /// Bytes that its pages take: a file that is made of its stream has about as many, or fewer.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The rows of a small table.
    ///
    /// # Errors
    /// When the file is damaged.
    pub fn rows(&self, table: SmallTable) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        rows_of(&self.tree, table)
    }

    /// All of it.
    #[must_use]
    pub fn stream(&self) -> StateStream {
        StateStream::new(self.tree.clone())
    }
}

/// A store's file being made of such a stream. When it is finished, [`Store::open`] opens it.
#[derive(Debug)]
pub struct StoreBuilder {
    file: FileBuilder,
}

impl StoreBuilder {
    /// Makes a store's file on an empty disk.
    ///
    /// # Errors
    /// When the disk is not empty.
    pub fn new(disk: Arc<dyn Disk>) -> Result<Self> {
        Ok(Self { file: FileBuilder::new(disk, TableKinds { cold: RECORDS, sharing: INDEX })? })
    }

    /// Takes the next chunk. Blocks for the disk.
    ///
    /// # Errors
    /// [`Error::Stream`] when it is not the next one, or what comes cannot be a store; when the
    /// disk refuses. The file must be thrown away then.
    pub fn add(&mut self, chunk: &[u8]) -> Result<()> {
        self.lay_out(chunk)?;
        self.take_laid_out().map_or(Ok(()), LaidOut::write)
    }

    /// Takes the next chunk, and lays out the pages that it fills. They are to be taken then.
    ///
    /// # Errors
    /// As [`StoreBuilder::add`].
    pub fn lay_out(&mut self, chunk: &[u8]) -> Result<()> {
        let had_head = self.file.user().is_some();
        self.file.lay_out(chunk)?;
        match self.meta() {
            Some(meta) if !had_head && !meta.is_sound() => {
                Err(Error::stream(format!("has a store meta that cannot be true: {meta:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Pages that are laid out, to be written on any thread before the file is finished.
    pub fn take_laid_out(&mut self) -> Option<LaidOut> {
        self.file.take_laid_out()
    }

    fn meta(&self) -> Option<StoreMeta> {
        self.file.user().map(StoreMeta::decode)
    }

    /// The last entry of the log that has an effect in it, once the first chunk has come.
    #[must_use]
    pub fn applied(&self) -> Option<Applied> {
        self.meta().map(|meta| meta.applied)
    }

    /// A job that makes durable what has come so far, so that less is left for
    /// [`StoreBuilder::finish`]. More may be added while it runs. It fails when the disk refuses,
    /// which takes nothing more then: the file must be thrown away.
    pub fn sync(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        self.file.sync()
    }

    /// Everything has come.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.file.is_whole()
    }

    /// Makes the file durable, and one that can be opened.
    ///
    /// # Errors
    /// [`Error::Stream`] when a part is missing; when the disk refuses.
    pub fn finish(self) -> Result<()> {
        self.file.finish()
    }
}
