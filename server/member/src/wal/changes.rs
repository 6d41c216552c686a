//! Changes of the log's directory, in the order in which they are made: one at a time, for two that
//! are under way at once would meet on the spare. After something has failed nothing more is done.
//!
//! Segments that go may be hundreds, when the log was kept for a member that lagged behind: they go
//! one by one with pauses in between, and what the log needs to go on goes before them. Other
//! changes are made in the order in which they were begun.

use std::collections::VecDeque;
use std::path::PathBuf;

use crate::wal::WalError;

/// The changes that are to be made before another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// All that were begun.
    All,
    /// All but removals.
    Other,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A segment goes: a pause follows.
    Removal,
    /// Anything else.
    Other,
}

/// Changes that were begun and are to be made.
#[derive(Debug)]
pub struct Changes<C> {
    others: VecDeque<C>,
    /// Segments that go, behind those.
    removals: VecDeque<C>,
}

impl<C> Default for Changes<C> {
    fn default() -> Self {
        Self { others: VecDeque::new(), removals: VecDeque::new() }
    }
}

impl<C> Changes<C> {
    /// A change begins.
    pub fn begin(&mut self, kind: Kind, change: C) {
        match kind {
            Kind::Removal => self.removals.push_back(change),
            Kind::Other => self.others.push_back(change),
        }
    }

    /// The change that is made next: a removal if nothing else waits.
    pub fn take_next(&mut self) -> Option<(Kind, C)> {
        let other = self.others.pop_front().map(|change| (Kind::Other, change));
        other.or_else(|| self.removals.pop_front().map(|change| (Kind::Removal, change)))
    }

    /// The next of the changes that are made before another one, without pauses.
    pub fn next_before(&mut self, before: Before) -> Option<C> {
        match before {
            Before::All => self.take_next().map(|(_, change)| change),
            Before::Other => self.others.pop_front(),
        }
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.others.is_empty() && self.removals.is_empty()
    }
}

/// How the changes went so far.
#[derive(Debug, Default)]
pub enum Progress {
    /// All were made.
    #[default]
    Well,
    /// One in the background failed; the next caller is told.
    Failed(WalError),
    /// A caller was told of a failure.
    Told,
}

impl Progress {
    /// All were made.
    #[must_use]
    pub fn is_well(&self) -> bool {
        matches!(self, Self::Well)
    }

    /// A change in the background was made, or not.
    pub fn note(&mut self, made: Result<(), WalError>) {
        if let Err(error) = made {
            *self = Self::Failed(error);
        }
    }

    /// A change that somebody waits for comes next.
    ///
    /// # Errors
    /// When one before it has failed.
    pub fn check(&mut self) -> Result<(), WalError> {
        if self.is_well() {
            return Ok(());
        }
        match std::mem::replace(self, Self::Told) {
            Self::Failed(error) => Err(error),
            Self::Well | Self::Told => {
                let source = std::io::Error::other("an earlier change of the log's directory failed");
                Err(WalError::Io { what: "changing", path: PathBuf::new(), source })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_one_by_one_and_behind_what_the_log_needs() {
        let mut changes = Changes::default();
        changes.begin(Kind::Removal, "first");
        changes.begin(Kind::Removal, "second");
        changes.begin(Kind::Other, "prepared");
        assert_eq!(changes.take_next(), Some((Kind::Other, "prepared")));
        assert_eq!(changes.take_next(), Some((Kind::Removal, "first")));
        changes.begin(Kind::Other, "made");
        assert_eq!(changes.next_before(Before::Other), Some("made"));
        assert_eq!(changes.next_before(Before::Other), None);
        assert!(!changes.is_empty());
        assert_eq!(changes.next_before(Before::All), Some("second"));
        assert_eq!((changes.take_next(), changes.is_empty()), (None, true));
    }

    #[test]
    fn a_failure_is_told_and_nothing_follows_it() {
        let failed =
            || WalError::Io { what: "making", path: "x".into(), source: std::io::Error::other("no") };
        let mut progress = Progress::default();
        assert!(progress.check().is_ok());
        progress.note(Ok(()));
        assert!(progress.is_well());
        progress.note(Err(failed()));
        assert!(!progress.is_well());
        assert_eq!(progress.check().unwrap_err().to_string(), failed().to_string());
        assert!(progress.check().unwrap_err().to_string().contains("earlier change"));
        assert!(!progress.is_well());
    }
}
