//! What a batch has found: every change encoded once, and which of them each cohort is to be told
//! of.

use bytes::Bytes;
use revd_engine::Result;
use revd_engine::mvcc::Reader;
use smallvec::SmallVec;

use crate::limits;
use crate::watch::changes::{Change, Selection};

/// The changes of a batch that anybody watches, by number.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    changes: u32,
    ways: SmallVec<[Way; 1]>,
    /// What was put together last: others often want the same.
    joined: Option<(Changes, u8, Bytes)>,
}

/// Numbers of changes, in their order.
type Changes = SmallVec<[u32; 4]>;

/// Events as those with one selection want them.
#[derive(Debug)]
struct Way {
    selection: u8,
    open: Vec<u8>,
    sealed: Bytes,
    /// Where the event of each change ends.
    ends: Vec<usize>,
}

/// Changes for a cohort.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) cohort: u32,
    /// The revision of the first one.
    pub(super) first: i64,
    changes: Changes,
    events: SmallVec<[(u8, Bytes); 1]>,
    /// Members before this place have not been told yet; nobody has before delivering begins.
    pub(super) left: usize,
}

impl Encoded {
    /// The next change has a number from here on.
    pub(super) fn begin_change(&mut self) {
        self.changes += 1;
    }

    /// Encodes the newest change, if that was not done yet; its length, and how much of it is new.
    pub(super) fn add(
        &mut self,
        selection: u8,
        change: &Change<'_>,
        reader: &Reader<'_>,
    ) -> Result<(usize, usize)> {
        let at = self.ways.iter().position(|way| way.selection == selection).unwrap_or_else(|| {
            self.ways.push(Way { selection, open: Vec::new(), sealed: Bytes::new(), ends: Vec::new() });
            self.ways.len() - 1
        });
        let way = &mut self.ways[at];
        let number = self.changes as usize - 1;
        let mut new = 0;
        if way.ends.len() <= number {
            let before = way.open.len();
            way.ends.resize(number, before);
            change.encode(Selection::of_index(selection), reader, &mut way.open)?;
            way.ends.push(way.open.len());
            new = way.open.len() - before;
        }
        let (start, end) = way.place(number);
        Ok((end - start, new))
    }

    /// There will be no more changes.
    pub(super) fn seal(&mut self) {
        for way in &mut self.ways {
            way.sealed = std::mem::take(&mut way.open).into();
        }
    }

    /// The events of these changes, one after the other.
    fn events(&mut self, changes: &Changes, selection: u8) -> Bytes {
        let Some(way) = self.ways.iter().find(|way| way.selection == selection) else { return Bytes::new() };
        if let Some(shared) = way.shared(changes) {
            return shared;
        }
        if let Some((known, how, events)) = &self.joined
            && *how == selection
            && known == changes
        {
            return events.clone();
        }
        let mut events = Vec::new();
        for number in changes {
            let (start, end) = way.place(*number as usize);
            events.extend_from_slice(&way.sealed[start..end]);
        }
        let events = Bytes::from(events);
        self.joined = Some((changes.clone(), selection, events.clone()));
        events
    }
}

impl Way {
    /// Where the event of a change is.
    fn place(&self, number: usize) -> (usize, usize) {
        let Some(end) = self.ends.get(number) else { return (0, 0) };
        (number.checked_sub(1).map_or(0, |before| self.ends[before]), *end)
    }

    /// Events that lie behind each other, and are enough for all of them to be kept.
    fn shared(&self, changes: &Changes) -> Option<Bytes> {
        let mut all: Option<(usize, usize)> = None;
        for number in changes {
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

impl Found {
    /// Nothing yet for a cohort that is to be told of a change of this revision.
    pub(super) fn new(cohort: u32, first: i64) -> Self {
        Self { cohort, first, changes: Changes::new(), events: SmallVec::new(), left: 0 }
    }

    /// The newest change is for this cohort.
    pub(super) fn push(&mut self, encoded: &Encoded) {
        self.changes.push(encoded.changes - 1);
    }

    /// How many changes.
    pub(super) fn count(&self) -> u64 {
        self.changes.len() as u64
    }

    /// The encoded events a member wants; empty if none of them. Put together when somebody has
    /// room for them.
    pub(super) fn events(&mut self, selection: Selection, encoded: &mut Encoded) -> Bytes {
        let wanted = selection.index();
        if let Some((_, events)) = self.events.iter().find(|(known, _)| *known == wanted) {
            return events.clone();
        }
        let events = encoded.events(&self.changes, wanted);
        self.events.push((wanted, events.clone()));
        events
    }

    /// The next member to tell.
    pub(super) fn next(&mut self, members: &[u32]) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        Some(members[self.left])
    }
}
