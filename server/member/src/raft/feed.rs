//! Entries that are read from the segments of the log for one member that lags behind.

use std::collections::VecDeque;

use raft::eraftpb::Entry;

use crate::limits;
use crate::raft::convert::bytes_of;
use crate::wal::writer::FetchError;

/// Entries that are to be read from the segments for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFetch {
    /// That member.
    pub to: u64,
    /// The first entry.
    pub low: u64,
    /// The entry behind the last one; fewer will do.
    pub high: u64,
    /// Bytes behind which nothing more needs to be read.
    pub bytes_max: u64,
}

/// Why entries of a fetch were not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// The log has let go of them.
    Released,
    /// The disk does not give them, or gives others. It may the next time.
    Failed,
}

impl From<&FetchError> for Unread {
    fn from(error: &FetchError) -> Self {
        match error {
            FetchError::Released(_) => Self::Released,
            FetchError::Wal(_) | FetchError::Damaged(_) => Self::Failed,
        }
    }
}

/// Log core view: entries that were read for a member that lags behind.
#[derive(Debug, Default)]
pub(super) struct Feed {
    /// The fetch that is under way.
    pub(super) fetch: Option<LogFetch>,
    /// Those that were read last, in a row.
    entries: VecDeque<Entry>,
    /// By fetch, the last entry and the bytes that the member has yet to confirm.
    unconfirmed: VecDeque<(u64, usize)>,
    /// Reads in a row that have failed.
    failures: u32,
    /// One of them in this tick: the next one waits for the next tick.
    has_failed: bool,
    /// Ticks since it has confirmed something, or was sent something.
    ticks: u64,
    /// The last entry that it has confirmed, and the ticks since.
    progress: (u64, u64),
}

impl Feed {
    /// Those from this entry on, if it was read.
    pub(super) fn entries_from(&self, low: u64) -> Option<impl Iterator<Item = &Entry>> {
        let first = self.entries.front()?.index;
        let from = usize::try_from(low.checked_sub(first)?).ok()?;
        (from < self.entries.len()).then(|| self.entries.range(from..))
    }

    /// The fetch is over, and brought these.
    pub(super) fn put(&mut self, entries: VecDeque<Entry>) {
        let last = entries.back().map_or(0, |entry| entry.index);
        self.unconfirmed.push_back((last, entries.iter().map(bytes_of).sum()));
        (self.entries, self.ticks, self.failures) = (entries, 0, 0);
    }

    /// The fetch is over, and has failed; whether another one may help. Without hope they are
    /// counted anew: the member is sent a state, and may lag behind again after it.
    pub(super) fn fail(&mut self) -> bool {
        self.failures = (self.failures + 1) % limits::LOG_FETCHES_FAILED_MAX;
        self.has_failed = true;
        self.failures > 0
    }

    /// The member has entries up to this one.
    pub(super) fn confirm(&mut self, matched: u64) {
        while self.unconfirmed.pop_front_if(|(last, _)| *last <= matched).is_some() {
            self.ticks = 0;
        }
        if matched > self.progress.0 {
            self.progress = (matched, 0);
        }
    }

    /// More may be read.
    pub(super) fn has_room(&self) -> bool {
        let bytes: usize = self.unconfirmed.iter().map(|(_, bytes)| bytes).sum();
        self.fetch.is_none() && !self.has_failed && bytes < limits::LOG_FEED_BYTES_MAX
    }

    /// The member takes what it is sent, or may again: a pause of its disk or of the network costs
    /// no state.
    pub(super) fn is_active(&self) -> bool {
        self.progress.1 <= limits::STATE_SENT_TICKS
    }

    /// A step of the clock; false if the feed is over. Entries that are not confirmed in
    /// time may be lost.
    pub(super) fn tick(&mut self, is_needed: bool) -> bool {
        self.ticks += 1;
        self.progress.1 += 1;
        self.has_failed = false;
        if self.ticks > limits::LOG_FEED_TICKS {
            self.unconfirmed.clear();
        }
        if !is_needed {
            self.entries.clear();
        }
        is_needed || self.fetch.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries of half of what a member may have unconfirmed.
    fn entries(indexes: std::ops::RangeInclusive<u64>) -> VecDeque<Entry> {
        let data = vec![0; limits::LOG_FEED_BYTES_MAX / 2];
        let entry = |index| Entry { index, data: data.clone().into(), ..Entry::default() };
        indexes.map(entry).collect()
    }

    #[test]
    fn a_member_that_confirms_nothing_is_read_for_no_more_for_a_while() {
        let mut feed = Feed::default();
        feed.put(entries(5..=5));
        assert!(feed.has_room());
        feed.put(entries(6..=6));
        assert!(!feed.has_room());
        feed.confirm(5);
        assert!(feed.has_room(), "it has confirmed some");
        feed.put(entries(7..=7));
        for _ in 0..limits::LOG_FEED_TICKS {
            assert!(feed.tick(true) && !feed.has_room());
        }
        assert!(feed.tick(true) && feed.has_room(), "they may be lost");
        let fetch = LogFetch { to: 2, low: 8, high: 9, bytes_max: 1 };
        feed.fetch = Some(fetch);
        assert!(!feed.has_room(), "one at a time");
        assert!(feed.tick(false), "a read is under way");
        feed.fetch = None;
        assert!(!feed.tick(false));
    }

    #[test]
    fn a_read_that_fails_is_tried_again_a_few_times() {
        let mut feed = Feed::default();
        for _ in 0..2 {
            (1..limits::LOG_FETCHES_FAILED_MAX).for_each(|_| assert!(feed.fail()));
            feed.put(entries(5..=5));
        }
        (1..limits::LOG_FETCHES_FAILED_MAX).for_each(|_| assert!(feed.fail()));
        assert!(!feed.fail(), "the last one");
        assert!(feed.fail(), "after the state that was sent they are counted anew");
        assert!(!feed.has_room(), "not in the same tick");
        feed.confirm(5);
        assert!(feed.tick(true) && feed.has_room());
    }

    /// Bytes that are lost are read again; the log stays for far longer.
    #[test]
    fn a_member_that_pauses_is_waited_for_like_one_that_was_sent_a_state() {
        let mut feed = Feed::default();
        feed.put(entries(5..=6));
        feed.confirm(5);
        for _ in 0..limits::STATE_SENT_TICKS {
            assert!(feed.tick(true) && feed.is_active());
        }
        assert!(feed.has_room());
        feed.put(entries(6..=6));
        feed.confirm(5);
        assert!(feed.tick(true) && !feed.is_active(), "it is sent something, and confirms nothing");
        feed.confirm(6);
        assert!(feed.is_active());
    }

    #[test]
    fn entries_are_given_from_any_on_and_none_else() {
        let mut feed = Feed::default();
        assert!(feed.entries_from(5).is_none());
        feed.put(entries(5..=7));
        let from = |index| feed.entries_from(index).map(|entries| entries.map(|entry| entry.index).collect());
        assert_eq!(from(4), None::<Vec<u64>>);
        assert_eq!(from(6), Some(vec![6, 7]));
        assert_eq!(from(8), None);
    }
}
