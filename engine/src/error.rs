//! Errors of the engine: what the caller may have to tell apart, and what to do about it.

use std::io;
use std::sync::Arc;

/// A result of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// An operator's way out of damage.
const ADVICE: &str = "stop this member, keep a copy, and restore it from a snapshot or let it rejoin empty";

/// Why the engine did not do what it was asked to.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read, written or synced.
    Io {
        /// The operation, with the file's name where known.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The disk has no room for it. Nothing was changed; it may be tried again.
    NoSpace {
        /// The operation, with the file's name where known.
        what: String,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The file is not what was written: bit rot, a misdirected write, a foreign file.
    Corrupt(String),
    /// The file is of a later format.
    Newer {
        /// Its format.
        format: u32,
        /// The latest format that this version reads.
        known: u32,
    },
    /// The revision asked for is below the compaction.
    Compacted {
        /// The oldest revision that can be read.
        compact_revision: i64,
    },
    /// The revision asked for does not exist yet.
    FutureRevision {
        /// The newest revision.
        current: i64,
    },
    /// A stream that a file is to be made of is damaged, cut short, or of another version.
    Stream(String),
    /// An earlier write or sync failed; what is on disk is unknown until the file is opened again.
    Poisoned,
}

impl Error {
    /// An I/O failure with its context.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        Self::Io { what: what.into(), source: Arc::new(source) }
    }

    /// Room that could not be made, for whatever reason.
    pub(crate) fn growing(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::NoSpace { what: what.into(), source: Arc::new(source) }
            }
            _ => Self::io(what, source),
        }
    }

    /// The disk is full, and nothing else is wrong.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::NoSpace { .. })
    }

    /// Damage, with where it is and what to do about it.
    pub(crate) fn corrupt(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(format!("{what}; the tree file is damaged: {ADVICE}"))
    }

    /// A fault of a stream.
    pub(crate) fn stream(what: impl Into<String>) -> Self {
        Self::Stream(what.into())
    }

    /// Damage that a mistake of our own could have made as well.
    pub(crate) fn corrupt_or_bug(what: impl std::fmt::Display) -> Self {
        Self::Corrupt(format!(
            "{what}; the tree file is damaged, or revd has a bug: please report this, {ADVICE}"
        ))
    }

    /// The process must not go on with this store.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Corrupt(_) | Self::Newer { .. } | Self::Poisoned)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { what, source } | Self::NoSpace { what, source } => write!(out, "{what}: {source}"),
            Self::Corrupt(what) => out.write_str(what),
            Self::Newer { format, known } => write!(
                out,
                "the tree file has format {format}, this revd reads formats up to {known}: a newer revd has \
                 written it, start that one"
            ),
            Self::Stream(what) => write!(out, "the stream of a state {what}"),
            Self::Compacted { compact_revision } => {
                write!(out, "the revision is below the compaction at {compact_revision}")
            }
            Self::FutureRevision { current } => {
                write!(out, "the revision does not exist yet, the newest is {current}")
            }
            Self::Poisoned => out.write_str("an earlier write failed: open the store again"),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk and a used-up quota are waited for; any other error of the same call is not.
    #[test]
    fn only_missing_room_is_waited_for() {
        for (kind, is_room) in [
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::QuotaExceeded, true),
            (io::ErrorKind::FileTooLarge, false),
            (io::ErrorKind::Other, false),
        ] {
            let error = Error::growing("the file", io::Error::from(kind));
            assert_eq!((error.is_no_space(), error.is_fatal()), (is_room, !is_room), "{kind}");
            assert!(Error::io("the file", io::Error::from(kind)).is_fatal(), "a write has its room already");
        }
    }

    #[test]
    fn a_store_goes_on_after_what_only_a_request_has_wrong() {
        let newer = Error::Newer { format: 9, known: 8 };
        for fatal in [Error::corrupt("a page"), Error::corrupt_or_bug("a page"), newer, Error::Poisoned] {
            assert!(fatal.is_fatal() && !fatal.is_no_space(), "{fatal}");
        }
        let compacted = Error::Compacted { compact_revision: 7 };
        for other in [compacted, Error::FutureRevision { current: 7 }, Error::stream("ends early")] {
            assert!(!other.is_fatal() && !other.is_no_space(), "{other}");
        }
    }
}
