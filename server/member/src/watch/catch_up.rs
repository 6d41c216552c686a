//! Lagging watchers: told of the past, step by step, until they know everything.
//!
//! A watcher that lags is *parked* with its stream while that has no room, or else *waits* for a
//! pass that comes by. One pass begins with whoever is furthest behind and takes everybody along
//! whose revision it comes to, so that the records are read once for all of them. Another one does
//! the same for those who are nearly there, so that they need not wait for history they know.

use revd_engine::Result;
use revd_engine::mvcc::View;

use crate::limits;
use crate::watch::hub::Hub;
use crate::watch::pass::{Budget, number};
use crate::watch::watcher::{Place, Watcher};

const FAR: usize = 0;
const NEAR: usize = 1;

impl Hub {
    /// A step for those that are behind.
    pub(super) fn catch_up(&mut self, view: &View, budget: &mut Budget) -> Result<()> {
        self.near_first = !self.near_first;
        let order = if self.near_first { [NEAR, FAR] } else { [FAR, NEAR] };
        self.end_waiting(view.compact_revision(), budget);
        for role in order {
            while !budget.is_spent() && self.sweep(role, view, budget)? {}
        }
        Ok(())
    }

    /// Ends those that should have been told what is gone.
    fn end_waiting(&mut self, compact_revision: i64, budget: &mut Budget) {
        while !budget.is_spent()
            && let Some((next, slot)) = self.waiting.first().copied()
            && next < compact_revision
        {
            let slot = slot as usize;
            if self.streams[self.watchers[slot].stream as usize].has_room() {
                self.end_compacted(slot, compact_revision);
            } else {
                self.park(slot, next);
            }
            budget.spend(3);
        }
    }

    /// Takes one of the two passes on; true while it can go on.
    fn sweep(&mut self, role: usize, view: &View, budget: &mut Budget) -> Result<bool> {
        let pass = self.behind[role];
        let told = self.told();
        let current = &mut self.passes[pass];
        if current.members == 0 && current.is_idle() {
            let near = told - limits::WATCH_NEAR_REVISIONS;
            let first = if role == FAR {
                self.waiting.first().filter(|(next, _)| *next <= near)
            } else {
                self.waiting.range((near + 1, 0)..).next()
            };
            let Some((next, _)) = first.filter(|(next, _)| *next <= told) else { return Ok(false) };
            current.told = next - 1;
        }
        if current.told + 1 < view.compact_revision() {
            self.behind[role] = self.lose(pass, view.compact_revision(), told);
            return Ok(true);
        }
        if !self.run(pass, view, told, budget)? {
            return Ok(true);
        }
        Ok(self.go_live(pass, budget))
    }

    /// Those who know all that live watchers know become live; true if all have.
    fn go_live(&mut self, pass: usize, budget: &mut Budget) -> bool {
        if !self.passes[self.live].is_idle() || self.passes[pass].told != self.told() {
            return false; // a moment later
        }
        while !budget.is_spent()
            && let Some(slot) = self.passes[pass].any()
        {
            let slot = slot as usize;
            self.leave(slot);
            self.join(self.live, slot);
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
        let (is_behind, is_admitted) = match place {
            Place::Pass(pass) => {
                let (pass, watchers) = (&mut self.passes[usize::from(pass)], &mut self.watchers);
                pass.leave(seat, |other, position| watchers[other as usize].seat.position = position);
                (pass.is_behind, pass.is_behind)
            }
            Place::Future => {
                self.future.remove(&entry);
                (false, false)
            }
            Place::Waiting => {
                self.waiting.remove(&entry);
                (true, true)
            }
            Place::Parked => {
                stream.parked.remove(&entry);
                (true, false)
            }
        };
        self.lagging -= usize::from(is_behind);
        stream.lagging -= usize::from(is_behind);
        stream.admitted -= usize::from(is_admitted);
    }
}
