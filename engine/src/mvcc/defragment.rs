//! Giving space back to the file system while serving.
//!
//! ```text
//! Waiting --readers gone, or 100 commits--> Moving --all tables--> Cutting --some commits--> over
//!    `--------- refused 20 times ----------------'-----------------^   `---- refused again ----^
//! ```
//!
//! Each checkpoint of a defragmentation has a part of the tables written again: pages behind the
//! place where the file could end move to free pages before it. When all tables are through, a few
//! commits cut off what has become free at the end. Pages that readers of older states still hold
//! are waited for, before and after, for a while: a reader whose core stands still must not undo
//! the whole. Where they stay, the file cannot get shorter than with what they hold; what finds no
//! lower place stays where it is. Writers and readers go on all the time; a step costs what an
//! ordinary checkpoint of that size costs.

use crate::Result;
use crate::db::Db;
use crate::limits::{
    DEFRAGMENT_BYTES_PER_STEP, DEFRAGMENT_LEAVES_PER_STEP, DEFRAGMENT_LOOKS_PER_STEP,
    DEFRAGMENT_REFUSALS_MAX, DEFRAGMENT_WAITS_MAX, TABLES_MAX,
};
use crate::meta::Table;
use crate::page::PageId;
use crate::txn::{Moves, WriteTxn};

/// A defragmentation, also when it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Defragmentation {
    phase: Phase,
    /// Commits of this phase that found no room.
    refused: u32,
    /// The last commit found no room: the next one moves nothing. A move takes low pages before it
    /// gives high ones back, and what is to be saved may need them.
    skips_step: bool,
    left: Left,
}

/// How far a defragmentation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// This many commits have waited for readers of pages that transaction `freed_by` or an earlier
    /// one has freed: they may be all the room that there is.
    Waiting { freed_by: u64, times: u32 },
    /// Moving what lies at or behind `limit`; this table is next, from this key on. Commits have
    /// waited so many times for room that readers held.
    Moving { limit: PageId, table: u8, from: Vec<u8>, times: u32 },
    /// Everything has moved, in transactions up to `freed_by`; this many commits have cut.
    Cutting { freed_by: u64, times: u32 },
    /// Nothing is left to do.
    Over,
}

/// Why a file is longer behind a defragmentation than it could be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Left {
    /// Checkpoints found no room.
    by_disk: bool,
    /// Readers held pages of older states.
    by_readers: bool,
    /// Values found no free row of pages that is long enough.
    by_rows: bool,
}

impl Defragmentation {
    /// Of the file as it is now.
    pub(crate) fn new(db: &Db) -> Self {
        let phase = Phase::Waiting { freed_by: db.snapshot().txn(), times: 0 };
        Self { phase, refused: 0, skips_step: false, left: Left::default() }
    }

    /// One that has ended before it began: no checkpoint found room.
    pub(crate) fn refused() -> Self {
        let left = Left { by_disk: true, ..Left::default() };
        Self { phase: Phase::Over, refused: 0, skips_step: false, left }
    }

    /// It has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// If it is over and the file could be shorter: why, and what to do.
    pub(crate) fn left(&self) -> Option<&'static str> {
        match self.left {
            _ if !self.is_over() => None,
            Left { by_disk: true, .. } => {
                Some("checkpoints found no room on the disk: free some there, then defragment again")
            }
            Left { by_readers: true, .. } => {
                Some("long reads hold pages of older states: defragment again when they have ended")
            }
            Left { by_rows: true, .. } => {
                Some("values are longer than any free row of pages before them: more has to be deleted")
            }
            Left { .. } => None,
        }
    }

    /// Does one step; must come before other changes of the transaction.
    pub(crate) fn step(mut self, txn: &mut WriteTxn<'_>) -> Result<Self> {
        if self.is_over() {
            return Ok(self);
        }
        txn.shrink();
        if std::mem::take(&mut self.skips_step) {
            return Ok(self);
        }
        self.phase = match self.phase {
            Phase::Waiting { freed_by, times } => {
                let waits = txn.waits_for_readers(freed_by);
                if waits && times < DEFRAGMENT_WAITS_MAX {
                    Phase::Waiting { freed_by, times: times + 1 }
                } else {
                    self.left.by_readers |= waits;
                    moved(txn, txn.shortest(), 0, &[], 0, &mut self.left)?
                }
            }
            Phase::Moving { limit, table, from, times } => {
                moved(txn, limit, table, &from, times, &mut self.left)?
            }
            Phase::Cutting { freed_by, times } => {
                let waits = txn.waits_for_readers(freed_by);
                let is_over = times > 1 && (!waits || times >= DEFRAGMENT_WAITS_MAX);
                self.left.by_readers |= is_over && waits;
                if is_over { Phase::Over } else { Phase::Cutting { freed_by, times: times + 1 } }
            }
            Phase::Over => Phase::Over,
        };
        Ok(self)
    }

    /// A commit with a step found no room; the state before it is that of transaction `base_txn`.
    /// The disk may stay full: after a bounded number of them what has moved is cut off, and after
    /// as many again it is over.
    pub(crate) fn without_room(mut self, base_txn: u64) -> Self {
        if self.is_over() {
            return self;
        }
        self.skips_step = true;
        self.refused += 1;
        if self.refused < DEFRAGMENT_REFUSALS_MAX {
            return self;
        }
        (self.refused, self.left.by_disk) = (0, true);
        self.phase = match self.phase {
            Phase::Waiting { .. } | Phase::Moving { .. } => Phase::Cutting { freed_by: base_txn, times: 0 },
            Phase::Cutting { .. } | Phase::Over => Phase::Over,
        };
        self
    }
}

/// Moves the pages of a bounded number of leaves, and values of a bounded length.
fn moved(
    txn: &mut WriteTxn<'_>,
    limit: PageId,
    mut table: u8,
    from: &[u8],
    times: u32,
    left: &mut Left,
) -> Result<Phase> {
    let mut moves =
        Moves::new(DEFRAGMENT_LEAVES_PER_STEP, DEFRAGMENT_BYTES_PER_STEP, DEFRAGMENT_LOOKS_PER_STEP);
    moves.may_wait = times < DEFRAGMENT_WAITS_MAX && txn.waits_for_readers(txn.base_txn());
    let (mut from, mut next) = (from, None);
    while usize::from(table) < TABLES_MAX {
        next = txn.move_down(Table(table), from, limit, &mut moves)?;
        if next.is_some() {
            break;
        }
        table += 1;
        from = &[];
        moves.leaves = moves.leaves.max(1); // each table may be looked into
    }
    left.by_rows |= moves.stayed > 0;
    Ok(match next {
        Some(from) => Phase::Moving { limit, table, from, times: times + u32::from(moves.waits) },
        None => Phase::Cutting { freed_by: txn.base_txn() + 1, times: 0 },
    })
}
