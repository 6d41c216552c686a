//! Giving space back to the file system while serving.
//!
//! Each checkpoint of a defragmentation has a part of the tables written again: pages behind the
//! place where the file could end move to free pages before it. When all tables are through, a few
//! commits cut off what has become free at the end. Pages that readers of older states still hold
//! are waited for, before and after, for a while: a reader whose core stands still must not undo
//! the whole. Where they stay and hold the room, nothing moves. Writers and readers go on all the
//! time; a step costs what an ordinary checkpoint of that size costs.

use crate::Result;
use crate::db::Db;
use crate::limits::{
    DEFRAGMENT_BYTES_PER_STEP, DEFRAGMENT_LEAVES_PER_STEP, DEFRAGMENT_WAITS_MAX, TABLES_MAX,
};
use crate::meta::Table;
use crate::page::PageId;
use crate::txn::{MovesMax, WriteTxn};

/// How far a defragmentation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Defragmentation {
    /// This many commits have waited for readers of pages that transaction `freed_by` or an earlier
    /// one has freed: pages behind `limit` would find no room before it.
    Waiting { limit: PageId, freed_by: u64, times: u32 },
    /// Moving what lies at or behind `limit`; this table is next, from this key on.
    Moving { limit: PageId, table: u8, from: Vec<u8> },
    /// Everything has moved, in transactions up to `freed_by`; this many commits have cut.
    Cutting { freed_by: u64, times: u32 },
}

impl Defragmentation {
    /// Of the file as it is now, with some room to move in.
    pub(crate) fn new(db: &Db) -> Self {
        let in_use = db.space.end() - db.space.unused_pages();
        assert!(in_use > 0, "a file in which nothing is in use has no meta slots either");
        let limit = PageId(in_use + in_use / 16 + 64);
        Self::Waiting { limit, freed_by: db.snapshot().txn(), times: 0 }
    }

    /// Does one step; must come before other changes of the transaction.
    pub(crate) fn step(self, txn: &mut WriteTxn<'_>) -> Result<Option<Self>> {
        txn.shrink();
        match self {
            Self::Waiting { limit, freed_by, times } => {
                if times < DEFRAGMENT_WAITS_MAX && txn.waits_for_readers(freed_by) {
                    return Ok(Some(Self::Waiting { limit, freed_by, times: times + 1 }));
                }
                // The file would grow for what readers hold, and might be cut back no more.
                if !txn.has_room_before(limit) {
                    return Ok(Some(Self::Cutting { freed_by: txn.base_txn(), times: 0 }));
                }
                Self::moved(txn, limit, 0, &[])
            }
            Self::Moving { limit, table, from } => Self::moved(txn, limit, table, &from),
            Self::Cutting { freed_by, times } => {
                let is_over = times > 1 && !txn.waits_for_readers(freed_by);
                let next = Self::Cutting { freed_by, times: times + 1 };
                Ok((times < DEFRAGMENT_WAITS_MAX && !is_over).then_some(next))
            }
        }
    }

    /// Moves the pages of a bounded number of leaves, and values of a bounded length.
    fn moved(txn: &mut WriteTxn<'_>, limit: PageId, mut table: u8, from: &[u8]) -> Result<Option<Self>> {
        let mut most = MovesMax { leaves: DEFRAGMENT_LEAVES_PER_STEP, bytes: DEFRAGMENT_BYTES_PER_STEP };
        let mut from = from;
        while usize::from(table) < TABLES_MAX {
            if let Some(next) = txn.move_down(Table(table), from, limit, &mut most)? {
                return Ok(Some(Self::Moving { limit, table, from: next }));
            }
            table += 1;
            from = &[];
            most.leaves = most.leaves.max(1); // each table may be looked into
        }
        Ok(Some(Self::Cutting { freed_by: txn.base_txn() + 1, times: 0 }))
    }

    /// A commit with a step found no room, and no later one would: what has moved is cut off, for a
    /// bounded number of commits.
    pub(crate) fn without_room(self, base_txn: u64) -> Option<Self> {
        match self {
            Self::Waiting { .. } | Self::Moving { .. } => {
                Some(Self::Cutting { freed_by: base_txn, times: 0 })
            }
            Self::Cutting { times, .. } if times >= DEFRAGMENT_WAITS_MAX => None,
            Self::Cutting { freed_by, times } => Some(Self::Cutting { freed_by, times: times + 1 }),
        }
    }
}
