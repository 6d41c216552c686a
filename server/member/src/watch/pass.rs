//! A pass over the records: all of its members are synced to one revision, and go on together.
//!
//! ```text
//! idle --begin--> reading --at the end of a revision--> delivering --every member is told--> idle
//! ```
//!
//! Each arrow may take many steps: reading stops anywhere, what it has made of the records waits
//! with the cohorts; delivering stops between two members. A batch reads one View from begin to
//! end, and no watcher joins while it is under way.

use std::rc::Rc;

use revd_engine::Result;
use revd_engine::mvcc::{Reader, Revision, View};
use slab::Slab;

use crate::limits;
use crate::mutants::{self, Mutant};
use crate::watch::batch_events::{BatchEvents, CohortEvents};
use crate::watch::events::{RecordEvent, Selection};
use crate::watch::range::WatchRange;
use crate::watch::range_map::RangeMap;

/// A cohort that has no events in the batch so far.
const NOTHING: u32 = u32::MAX;

/// The work that a step may still do: records, matches and deliveries, a third of a microsecond
/// each.
#[derive(Debug)]
pub(super) struct StepBudget(usize);

/// The watchers that read together.
#[derive(Debug)]
pub(super) struct WatchPass {
    /// Every member is synced to this revision, and goes on with the next one.
    pub(super) synced_to: i64,
    pub(super) members: usize,
    /// Its members count as unsynced.
    pub(super) is_catching_up: bool,
    /// A compaction at this revision has taken the next records: the pass is abandoned, and no
    /// watcher joins.
    pub(super) compacted_at: Option<i64>,
    ranges: RangeMap,
    cohorts: Slab<Cohort>,
    batch: Option<PassBatch>,
    /// The events of the batch for each cohort.
    found: Vec<CohortEvents>,
}

/// The members that watch the same keys.
#[derive(Debug)]
struct Cohort {
    range: Rc<WatchRange>,
    members: Vec<u32>,
    /// A bit for each [`Selection`] that a member has, or has had.
    selections: u8,
    /// Its place in `WatchPass::found`.
    found: u32,
}

#[derive(Debug)]
struct PassBatch {
    view: View,
    /// It ends here at the latest.
    limit: i64,
    /// Read up to here.
    at: Revision,
    /// The last range that the record at `at` was held against, if there may be more.
    looked: Option<Rc<WatchRange>>,
    encoded: BatchEvents,
    /// Bytes of events times the watchers that will get them.
    bytes: usize,
    /// Read to the end: everything up to this revision is delivered.
    to: Option<i64>,
}

/// The end of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// The end of the batch: it is to be delivered.
    Whole,
    /// The end of the step.
    Part,
}

/// A member's position in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Seat {
    pub(super) cohort: u32,
    pub(super) position: u32,
}

impl StepBudget {
    pub(super) fn new(work: usize) -> Self {
        Self(work)
    }

    /// Something was done; whether more may be.
    pub(super) fn spend(&mut self, work: usize) -> bool {
        self.0 = self.0.saturating_sub(work);
        self.0 > 0
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0 == 0
    }

    fn left(&self) -> usize {
        self.0
    }
}

impl WatchPass {
    pub(super) fn new(synced_to: i64, is_catching_up: bool) -> Self {
        Self {
            synced_to,
            members: 0,
            is_catching_up,
            compacted_at: None,
            ranges: RangeMap::default(),
            cohorts: Slab::new(),
            batch: None,
            found: Vec::new(),
        }
    }

    /// Nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.batch.is_none()
    }

    /// The revision from which on it can tell a newcomer everything.
    pub(super) fn reach(&self) -> i64 {
        self.batch.as_ref().map_or(self.synced_to, |batch| batch.limit)
    }

    /// The range of the members that watch the same, if there are any.
    pub(super) fn shared(&self, range: &WatchRange) -> Option<&Rc<WatchRange>> {
        let cohort = self.ranges.get(range)?;
        Some(&self.cohorts[cohort as usize].range)
    }

    /// A new member.
    pub(super) fn join(&mut self, slot: u32, range: &mut Rc<WatchRange>, selection: Selection) -> Seat {
        debug_assert!(self.is_idle() && self.compacted_at.is_none(), "no watcher joins a batch");
        let number = match self.ranges.get(range) {
            Some(known) => known,
            None => {
                let cohort =
                    Cohort { range: Rc::clone(range), members: Vec::new(), selections: 0, found: NOTHING };
                let new = number(self.cohorts.insert(cohort));
                self.ranges.insert(range, new);
                new
            }
        };
        let cohort = &mut self.cohorts[number as usize];
        if !Rc::ptr_eq(range, &cohort.range) {
            *range = Rc::clone(&cohort.range); // one copy is enough
        }
        cohort.selections |= 1 << selection.index();
        if cohort.members.capacity() == 0 {
            cohort.members.reserve_exact(1); // most ranges are watched once
        }
        cohort.members.push(slot);
        self.members += 1;
        Seat { cohort: number, position: self::number(cohort.members.len() - 1) }
    }

    /// A member leaves; `moved` is told which others have another position now.
    pub(super) fn leave(&mut self, seat: Seat, mut moved: impl FnMut(u32, u32)) {
        let cohort = &mut self.cohorts[seat.cohort as usize];
        let mut place = seat.position as usize;
        // Members that are yet to be told stay before the others.
        if let Some(found) = self.found.get_mut(cohort.found as usize)
            && place < found.left
        {
            found.left -= 1;
            cohort.members.swap(place, found.left);
            moved(cohort.members[place], number(place));
            place = found.left;
        }
        cohort.members.swap_remove(place);
        if let Some(other) = cohort.members.get(place) {
            moved(*other, number(place));
        }
        self.members -= 1;
        if cohort.members.is_empty() {
            let cohort = self.cohorts.remove(seat.cohort as usize);
            self.ranges.remove(&cohort.range);
        }
        if self.members == 0 {
            self.drop_batch(); // and with it the View: no watcher may come by for long
        }
    }

    /// Any member.
    pub(super) fn any(&self) -> Option<u32> {
        self.cohorts[self.ranges.any()? as usize].members.last().copied()
    }

    /// Begins to read the records after `synced_to`, up to `limit`.
    pub(super) fn begin(&mut self, view: &View, limit: i64) {
        let main = self.synced_to + i64::from(mutants::is(Mutant::WatchEventLost))
            - i64::from(mutants::is(Mutant::WatchEventDoubled));
        let at = Revision { main, sub: i64::MAX };
        let encoded = BatchEvents::default();
        self.batch =
            Some(PassBatch { view: view.clone(), limit, at, looked: None, encoded, bytes: 0, to: None });
    }

    /// Reads on, until the batch has enough at the end of a revision, or the budget is spent.
    pub(super) fn read(&mut self, budget: &mut StepBudget) -> Result<Reached> {
        let Self { batch: Some(batch), ranges, cohorts, found, .. } = self else {
            return Ok(Reached::Whole);
        };
        if batch.to.is_some() {
            return Ok(Reached::Whole);
        }
        let view = batch.view.clone();
        let reader = view.reader();
        let mut to = Some(batch.limit);
        let mut after = batch.at;
        after.sub -= i64::from(batch.looked.is_some()); // that one again
        reader.each_record_after(after, |key, record| {
            let main = key.revision.main;
            if main > batch.limit {
                return Ok(false);
            }
            let is_new = main > batch.at.main;
            if is_new && (budget.is_spent() || batch.bytes >= limits::WATCH_STEP_BYTES) {
                to = Some(main - i64::from(!mutants::is(Mutant::WatchRevisionCut))); // whole revisions only
                return Ok(false);
            }
            if budget.is_spent() {
                to = None;
                return Ok(false);
            }
            batch.at = key.revision;
            let event = RecordEvent::read(key, record)?;
            let (encoded, work_max) = (&mut batch.encoded, budget.left());
            let mut matches = Matches { cohorts, found, encoded, event, reader: &reader, work: 1, bytes: 0 };
            let last = matches.add_all(ranges, batch.looked.take().as_deref(), work_max)?;
            batch.bytes += matches.bytes;
            budget.spend(matches.work);
            if last.is_some() {
                (batch.looked, to) = (last, None);
            }
            Ok(to.is_some())
        })?;
        batch.to = to;
        if to.is_none() {
            return Ok(Reached::Part);
        }
        batch.encoded.seal();
        for found in found {
            found.left = cohorts.get(found.cohort as usize).map_or(0, |cohort| cohort.members.len());
        }
        Ok(Reached::Whole)
    }

    /// The next cohort to be told, its events, and its members; none when the batch is delivered.
    pub(super) fn next_found(&mut self) -> Option<(&mut CohortEvents, &mut BatchEvents, &[u32])> {
        while let Some(found) = self.found.last() {
            if found.left > 0 {
                break;
            }
            if let Some(cohort) = self.cohorts.get_mut(found.cohort as usize) {
                cohort.found = NOTHING;
            }
            self.found.pop();
        }
        let found = self.found.last_mut()?;
        let members = &self.cohorts[found.cohort as usize].members;
        Some((found, &mut self.batch.as_mut()?.encoded, members))
    }

    /// The revision that the header of a reply names.
    pub(super) fn header_revision(&self) -> i64 {
        self.batch.as_ref().map_or(self.synced_to, |batch| batch.view.revision())
    }

    /// Every member has been told of the batch.
    pub(super) fn end(&mut self) {
        debug_assert!(self.found.is_empty(), "every member was told");
        if let Some(to) = self.batch.take().and_then(|batch| batch.to) {
            self.synced_to = to;
        }
        self.found.shrink_to(limits::WATCH_STEP_WORK);
    }

    /// Lets go of a batch that no member is to be told of.
    pub(super) fn drop_batch(&mut self) {
        self.batch = None;
        for found in self.found.drain(..) {
            if let Some(cohort) = self.cohorts.get_mut(found.cohort as usize) {
                cohort.found = NOTHING;
            }
        }
    }
}

/// An event on its way to the cohorts that watch its key.
struct Matches<'m, 'v> {
    cohorts: &'m mut Slab<Cohort>,
    found: &'m mut Vec<CohortEvents>,
    encoded: &'m mut BatchEvents,
    event: RecordEvent<'v>,
    reader: &'m Reader<'v>,
    work: usize,
    bytes: usize,
}

impl Matches<'_, '_> {
    /// Adds it for the cohorts whose range is behind `looked`; the last range if this came to
    /// `work_max` before the end.
    fn add_all(
        &mut self,
        ranges: &RangeMap,
        looked: Option<&WatchRange>,
        work_max: usize,
    ) -> Result<Option<Rc<WatchRange>>> {
        if looked.is_none() {
            self.encoded.begin_event();
        }
        let mut result = Ok(());
        let last = ranges.each_group(self.event.key, looked, |cohort| {
            result = self.add(cohort);
            result.is_ok() && self.work < work_max
        });
        result.map(|()| last)
    }

    fn add(&mut self, number: u32) -> Result<()> {
        let cohort = &mut self.cohorts[number as usize];
        if cohort.found == NOTHING {
            cohort.found = self::number(self.found.len());
            self.found.push(CohortEvents::new(number, self.event.revision));
        }
        self.found[cohort.found as usize].push(self.encoded);
        let mut longest = 0;
        for selection in (0..8).filter(|selection| cohort.selections & (1 << selection) != 0) {
            let (len, new) = self.encoded.add(selection, &self.event, self.reader)?;
            longest = longest.max(len);
            self.work += 1 + new / 1024;
        }
        self.bytes += longest * cohort.members.len();
        Ok(())
    }
}

/// Slots and places are fewer than `u32` has; see [`limits::WATCHERS_PER_CORE_MAX`].
pub(super) fn number(at: usize) -> u32 {
    u32::try_from(at).expect("fewer watchers than that")
}
