//! The revisions that were shown to clients, by time.

use crate::history::{Call, History, Time};

/// A revision that was shown: when, and by which member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shown {
    pub(crate) at: Time,
    pub(crate) revision: i64,
    pub(crate) place: (u32, u32),
}

/// Revisions that were shown to anybody, by time.
#[derive(Debug, Default)]
pub struct Known(Vec<(Time, i64)>);

impl Known {
    /// All that replies and watchers showed.
    #[must_use]
    pub fn of(history: &History) -> Self {
        let mut shown = by_replies(history);
        shown.extend(by_watchers(history));
        shown.sort_unstable();
        let mut grown: Vec<(Time, i64)> = Vec::new();
        for Shown { at, revision, .. } in shown {
            if revision > grown.last().map_or(history.first, |(_, newest)| *newest) {
                grown.push((at, revision));
            }
        }
        Self(grown)
    }

    /// The newest revision that was shown before a time; 0 if none was.
    #[must_use]
    pub fn before(&self, time: Time) -> i64 {
        let later = self.0.partition_point(|(at, _)| *at < time);
        later.checked_sub(1).map_or(0, |last| self.0[last].1)
    }

    /// When a revision, or a later one, was first shown.
    #[must_use]
    pub fn when(&self, revision: i64) -> Option<Time> {
        let older = self.0.partition_point(|(_, shown)| *shown < revision);
        self.0.get(older).map(|(at, _)| *at)
    }
}

/// By replies to calls.
pub(crate) fn by_replies(history: &History) -> Vec<Shown> {
    let shown = |call: &Call| {
        let revision = call.shown()?;
        Some(Shown { at: call.returned, revision, place: (call.member, call.life) })
    };
    history.calls.iter().filter_map(shown).collect()
}

/// By responses to watchers.
pub(crate) fn by_watchers(history: &History) -> impl Iterator<Item = Shown> {
    history.watches.iter().flat_map(|watch| {
        let responses = watch.times.iter().zip(&watch.transcript.responses);
        responses.map(|(at, response)| {
            let revision = response.header.as_ref().map_or(0, |header| header.revision);
            Shown { at: *at, revision, place: (watch.member, watch.life) }
        })
    })
}
