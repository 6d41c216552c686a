//! Errors after which this member must not apply anything more.

use crate::apply::command;

/// Why an entry cannot be applied: going on would make state differ from the log.
#[derive(Debug, thiserror::Error)]
pub enum FatalError {
    /// The entry is not ours.
    #[error("entry {index} of the log: {source}")]
    Entry {
        /// Which entry.
        index: u64,
        /// The decoder's error.
        source: command::DecodeError,
    },
    /// Entries must come without gaps.
    #[error("entry {index} came after entry {applied} was applied")]
    Order {
        /// The entry.
        index: u64,
        /// The last one before.
        applied: u64,
    },
    /// A state that another member has sent is not of this cluster's log.
    #[error(
        "another member has sent a state of entry {index} and revision {revision}, but this one is at entry {applied} \
         and revision {before}"
    )]
    Received {
        /// The last entry in it.
        index: u64,
        /// Its revision.
        revision: i64,
        /// The last entry that is applied here.
        applied: u64,
        /// The revision here.
        before: i64,
    },
    /// The store is damaged.
    #[error("entry {index} could not be applied: {source}")]
    Engine {
        /// Which entry.
        index: u64,
        /// The engine's error.
        source: revd_engine::Error,
    },
}
