//! One moment of the key space.

use std::sync::Arc;

use crate::db::Sizes;
use crate::mvcc::compaction_hash::{CompactionHashes, Hashed};
use crate::mvcc::garbage::{Collector, Garbage, Kind, Replaced};
use crate::mvcc::key_index::SharedIndex;
use crate::mvcc::layout::{Applied, StoreMeta};
use crate::mvcc::reader::{Reader, TailRef};
use crate::mvcc::tables::Tables;
use crate::mvcc::tail::TailView;
use crate::snapshot::Snapshot;

/// An immutable state of the whole store; clones share it and may go to any thread. It keeps the
/// pages, records and index nodes it refers to, so hold one for a request, not for an hour. The
/// drop of the last clone frees what is left of it, if that is little, but for nodes of the index;
/// see [`Store::collect_garbage`](crate::mvcc::Store::collect_garbage) and
/// [`Store::free_unneeded`](crate::mvcc::Store::free_unneeded).
#[derive(Debug, Clone)]
pub struct View(Arc<ViewParts>);

#[derive(Debug)]
pub(crate) struct ViewParts {
    pub(crate) index: SharedIndex,
    pub(crate) tail: TailView,
    pub(crate) tree: Snapshot,
    pub(crate) tree_revision: i64,
    pub(crate) meta: StoreMeta,
    pub(crate) trimmed: i64,
    pub(crate) tables: Tables,
    pub(crate) sizes: Sizes,
    pub(crate) hashes: CompactionHashes,
    /// Before it was made.
    pub(crate) replaced: Replaced,
    pub(crate) collector: Arc<Collector>,
}

impl Drop for ViewParts {
    fn drop(&mut self) {
        if let Some(collect) = self.collector.wanted(self.replaced) {
            let (index, tail) = (std::mem::take(&mut self.index), std::mem::take(&mut self.tail));
            collect(Garbage(Kind::View(index, tail, self.tree.clone())));
        }
    }
}

impl View {
    pub(crate) fn new(parts: ViewParts) -> Self {
        Self(Arc::new(parts))
    }

    /// Reads it.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader {
            index: &self.0.index,
            tail: TailRef::Shared(&self.0.tail),
            tree: &self.0.tree,
            tree_revision: self.0.tree_revision,
            revision: self.0.meta.revision,
            compact_revision: self.0.meta.compact_revision,
            trimmed: self.0.trimmed,
        }
    }

    /// How far the log was applied.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.0.meta.applied
    }

    /// Newest revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.0.meta.revision
    }

    /// Oldest readable revision, -1 before the first compaction.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.0.meta.compact_revision
    }

    /// The small tables.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        &self.0.tables
    }

    /// The hashes of compactions since the start, the newest first.
    pub fn compaction_hashes(&self) -> impl Iterator<Item = Hashed> {
        self.0.hashes.newest_first()
    }

    /// HashKV of a revision as it was before the compaction at it, if that is known.
    pub(crate) fn compaction_hash(&self, revision: i64) -> Option<Hashed> {
        self.0.hashes.get(revision)
    }

    /// Bytes of the tree file, as of the newest checkpoint.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.0.sizes
    }
}
