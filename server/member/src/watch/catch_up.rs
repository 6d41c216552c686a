//! Catch-up: unsynced watchers are told of the past, step by step, until they are synced.
//!
//! An unsynced watcher is *parked* with its stream while that has no room, or else *waits* for a
//! pass that comes by. One pass begins with the watcher that is furthest behind and takes along all
//! those whose revision it comes to, so that the records are read once for all of them. Another one
//! does the same for those that are nearly synced, so that they need not wait for history they know
//! already.

use revd_engine::Result;
use revd_engine::mvcc::View;

use crate::limits;
use crate::mutants::{self, Mutant};
use crate::watch::hub::Hub;
use crate::watch::pass::{StepBudget, number};
use crate::watch::watcher::{Watcher, WatcherPlace};

const FAR: usize = 0;
const NEAR: usize = 1;

impl Hub {
    /// A step for unsynced watchers.
    pub(super) fn catch_up(&mut self, view: &View, budget: &mut StepBudget) -> Result<()> {
        self.near_first = !self.near_first;
        let order = if self.near_first { [NEAR, FAR] } else { [FAR, NEAR] };
        self.cancel_waiting(view.compact_revision(), budget);
        for role in order {
            while !budget.is_spent() && self.sweep(role, view, budget)? {}
        }
        Ok(())
    }

    /// Cancels waiting watchers whose next events are compacted.
    fn cancel_waiting(&mut self, compact_revision: i64, budget: &mut StepBudget) {
        while !budget.is_spent()
            && let Some((next, slot)) = self.waiting.first().copied()
            && next < compact_revision
        {
            let slot = slot as usize;
            if mutants::is(Mutant::UnsyncedWatcherDropped) {
                self.remove(slot);
            } else if self.streams[self.watchers[slot].stream as usize].has_room() {
                self.cancel_compacted(slot, compact_revision);
            } else {
                self.park(slot, next);
            }
            budget.spend(3);
        }
    }

    /// Takes one of the two passes on; true while it can go on.
    fn sweep(&mut self, role: usize, view: &View, budget: &mut StepBudget) -> Result<bool> {
        let pass = self.catching_up[role];
        let synced_to = self.synced_to();
        let current = &mut self.passes[pass];
        if current.members == 0 && current.is_idle() {
            let near = synced_to - limits::WATCH_NEAR_REVISIONS;
            let first = if role == FAR {
                self.waiting.first().filter(|(next, _)| *next <= near)
            } else {
                self.waiting.range((near + 1, 0)..).next()
            };
            let Some((next, _)) = first.filter(|(next, _)| *next <= synced_to) else { return Ok(false) };
            current.synced_to = next - 1;
        }
        // A batch that is under way reads an older View, and some of its members are told already.
        if current.is_idle() && current.synced_to + 1 < view.compact_revision() {
            self.catching_up[role] = self.abandon(pass, view.compact_revision(), synced_to);
            return Ok(true);
        }
        // Newcomers may have made it newer than this View.
        if !self.run(pass, view, synced_to.min(view.revision()), budget)? {
            return Ok(true);
        }
        Ok(self.join_synced(pass, budget))
    }

    /// Members that are synced to the same revision as the synced pass join it; true if all have.
    fn join_synced(&mut self, pass: usize, budget: &mut StepBudget) -> bool {
        if !self.passes[self.synced].is_idle() || self.passes[pass].synced_to != self.synced_to() {
            return false; // a moment later
        }
        while !budget.is_spent()
            && let Some(slot) = self.passes[pass].any()
        {
            let slot = slot as usize;
            self.leave(slot);
            self.join(self.synced, slot);
            self.admit_if_idle(self.watchers[slot].stream as usize);
            budget.spend(4);
        }
        self.passes[pass].members == 0
    }

    /// Takes a watcher out of where it stands.
    pub(super) fn leave(&mut self, slot: usize) {
        let Watcher { place, next, stream, seat, .. } = self.watchers[slot];
        let entry = (next, number(slot));
        let stream = &mut self.streams[stream as usize];
        let (is_catching_up, is_admitted) = match place {
            WatcherPlace::Pass(pass) => {
                let (pass, watchers) = (&mut self.passes[usize::from(pass)], &mut self.watchers);
                pass.leave(seat, |other, position| watchers[other as usize].seat.position = position);
                (pass.is_catching_up, pass.is_catching_up)
            }
            WatcherPlace::Future => {
                self.future.remove(&entry);
                (false, false)
            }
            WatcherPlace::Waiting => {
                self.waiting.remove(&entry);
                (true, true)
            }
            WatcherPlace::Parked => {
                stream.parked.remove(&entry);
                (true, false)
            }
        };
        self.unsynced -= usize::from(is_catching_up);
        stream.unsynced -= usize::from(is_catching_up);
        stream.admitted -= usize::from(is_admitted);
    }
}
