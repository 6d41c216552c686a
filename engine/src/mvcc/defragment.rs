//! Giving space back to the file system while serving.
//!
//! Each checkpoint of a defragmentation has a part of the tables written again: whatever lies behind the place where the
//! file could end moves to free pages before it. When all tables are through, a few commits cut off what has become free
//! at the end. Writers and readers go on all the time; a step costs what an ordinary checkpoint of that size costs.

use crate::limits::{DEFRAGMENT_CUTS_MAX, DEFRAGMENT_LEAVES_PER_STEP, TABLES_MAX};
use crate::mvcc::store::Store;
use crate::page::PageId;
use crate::txn::{Table, WriteTxn};
use crate::{Error, Result};

/// How far it has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Defragmentation {
    /// Moving what lies at or behind `limit`; this table is next, from this key on.
    Moving { limit: PageId, table: u8, from: Vec<u8> },
    /// Everything has moved; this many commits have cut.
    Cutting(u32),
}

impl Store {
    /// Begins a defragmentation, unless one is under way.
    ///
    /// # Errors
    /// [`Error::Poisoned`] while a checkpoint is being written: ask again after it.
    pub fn defragment(&mut self) -> Result<()> {
        let db = self.db.as_ref().ok_or(Error::Poisoned)?;
        let in_use = db.space.end() - db.space.unused_pages();
        // Some room to move in.
        let limit = PageId(in_use + in_use / 16 + 64);
        if self.defragmentation.is_none() {
            self.defragmentation = Some(Defragmentation::Moving { limit, table: 0, from: Vec::new() });
        }
        Ok(())
    }

    /// A defragmentation is under way.
    #[must_use]
    pub fn is_defragmenting(&self) -> bool {
        self.defragmentation.is_some()
    }
}

impl Defragmentation {
    /// Does a part; must come before other changes of the transaction.
    pub(crate) fn step(self, txn: &mut WriteTxn<'_>) -> Result<Option<Self>> {
        txn.shrink();
        match self {
            Self::Moving { limit, mut table, mut from } => {
                let mut leaves_left = DEFRAGMENT_LEAVES_PER_STEP;
                while usize::from(table) < TABLES_MAX {
                    match txn.move_down(Table(table), &from, limit, leaves_left)? {
                        Some(next) => {
                            return Ok(Some(Self::Moving { limit, table, from: next }));
                        }
                        None => {
                            table += 1;
                            from.clear();
                            leaves_left = leaves_left.div_ceil(2);
                        }
                    }
                }
                Ok(Some(Self::Cutting(0)))
            }
            Self::Cutting(times) if times >= DEFRAGMENT_CUTS_MAX || (times > 1 && !txn.has_pending()) => {
                Ok(None)
            }
            Self::Cutting(times) => Ok(Some(Self::Cutting(times + 1))),
        }
    }
}
