//! Replies of a watch stream, before they are encoded.

use bytes::Bytes;

/// The answer to a request that does not concern one watcher, or that made none.
pub(super) const NO_WATCHER: i64 = -1;

/// One `WatchResponse`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Which watcher; -1 for none or all.
    pub watch_id: i64,
    /// The revision its header names.
    pub revision: i64,
    /// Its content.
    pub content: Content,
}

/// The content of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The watcher exists.
    Created,
    /// There will be no such watcher, and why.
    Refused(&'static str),
    /// The client has ended it.
    Canceled,
    /// Its client may not watch this any more, and why.
    Revoked(&'static str),
    /// A compaction has taken what it should have been told; the oldest revision that is left.
    Compacted(i64),
    /// Everything up to the header's revision has been sent.
    Progress,
    /// Something happened.
    Events {
        /// Encoded `events` fields, one after the other.
        events: Bytes,
        /// Of whole revisions; or, in a fragment, more of the last one follows.
        fragment: bool,
    },
}

impl Reply {
    /// It tells of events.
    pub(super) fn has_events(&self) -> bool {
        matches!(self.content, Content::Events { .. })
    }

    /// Bytes it counts against what a stream may hold.
    pub(super) fn held_bytes(&self) -> usize {
        let events = if let Content::Events { events, .. } = &self.content { events.len() } else { 0 };
        size_of::<Self>() + events
    }
}
