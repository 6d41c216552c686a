//! One watcher: what it watches, what it wants to be told, and where it stands.

use std::rc::Rc;

use crate::watch::changes::Selection;
use crate::watch::pass::Seat;
use crate::watch::range::WatchRange;

/// Where a watcher stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In `Hub::passes`.
    Pass(u8),
    /// In `Hub::future`.
    Future,
    /// In `Hub::waiting`.
    Waiting,
    /// In `Stream::parked`.
    Parked,
}

/// One watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) id: i64,
    pub(super) range: Rc<WatchRange>,
    /// It wants nothing from before this revision; where it waits or is parked, it was told of
    /// everything before.
    pub(super) next: i64,
    pub(super) stream: u32,
    /// In a pass.
    pub(super) seat: Seat,
    pub(super) place: Place,
    pub(super) selection: Selection,
    pub(super) fragment: bool,
    pub(super) progress_notify: bool,
    /// No event since it was last considered for a progress reply.
    pub(super) is_quiet: bool,
    /// It asked for a revision that had not been there.
    pub(super) begins_later: bool,
}
