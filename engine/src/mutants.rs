//! Planted mutants: single faults in the code, each behind a name, that tests have to find. They
//! show that the checks of the simulators see what they are there for.
//!
//! Without the feature `mutants`, which no package of the workspace turns on and the server refuses
//! to be built with, [`is`] is a constant false, and the compiler leaves nothing of them. With it,
//! `REVD_MUTANT` names the one that is planted in this process. `cargo run -p revd-mutants` runs
//! them all; docs/TESTING.md has the table.

/// Makes the table of a crate's mutants: a name and a sentence for each, and `is`.
#[macro_export]
macro_rules! mutants {
    ($($(#[doc = $sentence:literal])+ $name:ident,)+) => {
        /// A planted fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $sentence])+ $name,)+
        }

        /// All mutants of this crate: the name, and what it does.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), concat!($($sentence),+))),+];

        /// Whether this mutant is planted.
        #[cfg(feature = "mutants")]
        #[must_use]
        pub fn is(mutant: Mutant) -> bool {
            static PLANTED: std::sync::OnceLock<Option<Mutant>> = std::sync::OnceLock::new();
            let planted = || {
                let name = $crate::mutants::planted()?;
                [$(Mutant::$name),+].into_iter().find(|mutant| format!("{mutant:?}") == name)
            };
            *PLANTED.get_or_init(planted) == Some(mutant)
        }

        /// Whether this mutant is planted: none is.
        #[cfg(not(feature = "mutants"))]
        #[must_use]
        #[inline(always)]
        pub const fn is(_mutant: Mutant) -> bool {
            false
        }
    };
}

/// Faults can be planted in this build.
pub const ARE_PLANTED: bool = cfg!(feature = "mutants");

/// The name of the one that is planted.
#[cfg(feature = "mutants")]
#[must_use]
pub fn planted() -> Option<String> {
    std::env::var("REVD_MUTANT").ok()
}

mutants! {
    /// The new meta slot is written before the pages that it names are synced.
    MetaSlotBeforeSync,
    /// A commit is said to be durable before its meta slot is synced.
    MetaSlotUnsynced,
    /// Pages that a commit has freed are used again while a snapshot still reads them.
    FreedPageReusedUnderReader,
    /// The parts of a list of free pages are free as soon as a full list is placed.
    ListPartsFreeAtOnce,
    /// A transaction that gives pages back does not note it for the list of free pages.
    ReleaseNotNoted,
    /// The state that a file was opened with is taken for durable without being written again.
    OpenedStateUnsettled,
    /// A checkpoint saves the applied index of an entry whose records are not in it.
    AppliedIndexAheadOfData,
    /// A checkpoint saves records and leaves the applied index where it was.
    AppliedIndexBehindData,
    /// A checkpoint that finds no room forgets the rows that it was to save.
    RowsLostOnFullDisk,
    /// A compaction removes records while the saved index still needs them.
    CompactionBeforeIndexSaved,
    /// A compaction removes the deletion at its own revision.
    CompactedDeletionRemoved,
    /// A compaction removes the newest record of a key that was put at its own revision.
    CompactedPutRemoved,
    /// The walk of a compaction passes over some puts that stay.
    KeptPutNotNoted,
    /// The saved index does not learn of keys that were deleted since it was saved last.
    SavedIndexMissesDeletions,
    /// A transaction that fails leaves its records in the tail.
    RevertLeavesRecords,
    /// `HashKV` passes over the records that a compaction has left.
    HashKvSkipsCompacted,
    /// The state hash passes over deletions.
    StateHashSkipsDeletions,
    /// A state that is sent lacks a row.
    SentStateLosesRows,
}
