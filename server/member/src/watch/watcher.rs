//! One watcher: its range, the events it wants, and the revision it is synced to.

use std::rc::Rc;

use crate::watch::events::Selection;
use crate::watch::pass::Seat;
use crate::watch::range::WatchRange;

/// The list that a watcher is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatcherPlace {
    /// In `Hub::passes`.
    Pass(u8),
    /// In `Hub::future`.
    Future,
    /// In `Hub::waiting`.
    Waiting,
    /// In `WatchStream::parked`.
    Parked,
}

/// One watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) id: i64,
    pub(super) range: Rc<WatchRange>,
    /// It wants no event from before this revision; while it waits or is parked, it is synced to
    /// the one before.
    pub(super) next: i64,
    pub(super) stream: u32,
    /// In a pass.
    pub(super) seat: Seat,
    pub(super) place: WatcherPlace,
    pub(super) selection: Selection,
    pub(super) fragment: bool,
    pub(super) progress_notify: bool,
    /// No event since it was last considered for a progress reply.
    pub(super) is_quiet: bool,
    /// It asked for a revision that had not been there.
    pub(super) begins_later: bool,
}
