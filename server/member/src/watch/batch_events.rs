//! The events of a batch: each encoded once, and the numbers of those that each cohort is to be
//! told of.

use bytes::Bytes;
use revd_engine::Result;
use revd_engine::mvcc::Reader;
use smallvec::SmallVec;

use crate::limits;
use crate::watch::events::{RecordEvent, Selection};

/// The watched events of a batch, by number.
#[derive(Debug, Default)]
pub(super) struct BatchEvents {
    count: u32,
    by_selection: SmallVec<[SelectionEvents; 1]>,
    /// The events that were put together last: other cohorts often want the same.
    joined: Option<(EventNumbers, u8, Bytes)>,
}

/// Numbers of events, in their order.
type EventNumbers = SmallVec<[u32; 4]>;

/// The events of a batch as watchers with one selection want them.
#[derive(Debug)]
struct SelectionEvents {
    selection: u8,
    open: Vec<u8>,
    sealed: Bytes,
    /// The offset at which each event ends.
    ends: Vec<usize>,
}

/// The events for one cohort.
#[derive(Debug)]
pub(super) struct CohortEvents {
    pub(super) cohort: u32,
    /// The revision of the first one.
    pub(super) first: i64,
    numbers: EventNumbers,
    events: SmallVec<[(u8, Bytes); 1]>,
    /// Members before this position are yet to be told: all of them when delivering begins.
    pub(super) left: usize,
}

impl BatchEvents {
    /// The next event has a number from here on.
    pub(super) fn begin_event(&mut self) {
        self.count += 1;
    }

    /// Encodes the newest event, if that was not done yet; its length, and how much of it is new.
    pub(super) fn add(
        &mut self,
        selection: u8,
        event: &RecordEvent<'_>,
        reader: &Reader<'_>,
    ) -> Result<(usize, usize)> {
        let at = self.by_selection.iter().position(|encoded| encoded.selection == selection).unwrap_or_else(
            || {
                self.by_selection.push(SelectionEvents {
                    selection,
                    open: Vec::new(),
                    sealed: Bytes::new(),
                    ends: Vec::new(),
                });
                self.by_selection.len() - 1
            },
        );
        let encoded = &mut self.by_selection[at];
        let number = self.count as usize - 1;
        let mut new = 0;
        if encoded.ends.len() <= number {
            let before = encoded.open.len();
            encoded.ends.resize(number, before);
            event.encode(Selection::of_index(selection), reader, &mut encoded.open)?;
            encoded.ends.push(encoded.open.len());
            new = encoded.open.len() - before;
        }
        let (start, end) = encoded.place(number);
        Ok((end - start, new))
    }

    /// There will be no more events.
    pub(super) fn seal(&mut self) {
        for encoded in &mut self.by_selection {
            encoded.sealed = std::mem::take(&mut encoded.open).into();
        }
    }

    /// The events of these numbers, one after the other.
    fn events(&mut self, numbers: &EventNumbers, selection: u8) -> Bytes {
        let Some(encoded) = self.by_selection.iter().find(|encoded| encoded.selection == selection) else {
            return Bytes::new();
        };
        if let Some(shared) = encoded.shared(numbers) {
            return shared;
        }
        if let Some((known, how, events)) = &self.joined
            && *how == selection
            && known == numbers
        {
            return events.clone();
        }
        let mut events = Vec::new();
        for number in numbers {
            let (start, end) = encoded.place(*number as usize);
            events.extend_from_slice(&encoded.sealed[start..end]);
        }
        let events = Bytes::from(events);
        self.joined = Some((numbers.clone(), selection, events.clone()));
        events
    }
}

impl SelectionEvents {
    /// Start and end of an event.
    fn place(&self, number: usize) -> (usize, usize) {
        let Some(end) = self.ends.get(number) else { return (0, 0) };
        (number.checked_sub(1).map_or(0, |before| self.ends[before]), *end)
    }

    /// Events that lie behind each other, and are enough for all of them to be kept.
    fn shared(&self, numbers: &EventNumbers) -> Option<Bytes> {
        let mut all: Option<(usize, usize)> = None;
        for number in numbers {
            let (start, end) = self.place(*number as usize);
            all = match all {
                _ if start == end => all,
                None => Some((start, end)),
                Some((first, last)) if last == start => Some((first, end)),
                Some(_) => return None,
            };
        }
        let Some((start, end)) = all else { return Some(Bytes::new()) };
        let is_enough = 4 * (end - start) + limits::EVENT_SHARED_BYTES >= self.sealed.len();
        is_enough.then(|| self.sealed.slice(start..end))
    }
}

impl CohortEvents {
    /// No event yet for a cohort that is to be told of one of this revision.
    pub(super) fn new(cohort: u32, first: i64) -> Self {
        Self { cohort, first, numbers: EventNumbers::new(), events: SmallVec::new(), left: 0 }
    }

    /// The newest event is for this cohort.
    pub(super) fn push(&mut self, encoded: &BatchEvents) {
        self.numbers.push(encoded.count - 1);
    }

    /// How many events.
    pub(super) fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// The encoded events a member wants; empty if none of them. Put together when the first member
    /// has room for them.
    pub(super) fn events(&mut self, selection: Selection, encoded: &mut BatchEvents) -> Bytes {
        let wanted = selection.index();
        if let Some((_, events)) = self.events.iter().find(|(known, _)| *known == wanted) {
            return events.clone();
        }
        let events = encoded.events(&self.numbers, wanted);
        self.events.push((wanted, events.clone()));
        events
    }

    /// The next member to tell.
    pub(super) fn next(&mut self, members: &[u32]) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(members[self.left])
    }
}
