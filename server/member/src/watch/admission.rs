//! Admission: of unsynced watchers, as many are read for as their streams have room for.
//!
//! A watcher whose stream has no room is parked with it. A stream on which replies wait is looked
//! at again when its client takes one; a starved stream when others let go of memory.

use std::task::Context;

use crate::limits;
use crate::watch::hub::Hub;
use crate::watch::pass::{StepBudget, number};
use crate::watch::watcher::WatcherPlace;

impl Hub {
    /// A watcher's stream has no room for what happened at `next`: it is unsynced.
    pub(super) fn park(&mut self, slot: usize, next: i64) {
        self.leave(slot);
        let watcher = &mut self.watchers[slot];
        (watcher.next, watcher.place) = (next, WatcherPlace::Parked);
        watcher.begins_later = false;
        let number_of_stream = watcher.stream as usize;
        let stream = &mut self.streams[number_of_stream];
        stream.parked.insert((next, number(slot)));
        stream.unsynced += 1;
        self.unsynced += 1;
        self.wait_for_room(number_of_stream);
    }

    /// A new watcher that begins in the past.
    pub(super) fn make_unsynced(&mut self, slot: usize) {
        let watcher = &mut self.watchers[slot];
        let stream = &mut self.streams[watcher.stream as usize];
        stream.unsynced += 1;
        self.unsynced += 1;
        let entry = (watcher.next, number(slot));
        if stream.has_room() {
            stream.admitted += 1;
            watcher.place = WatcherPlace::Waiting;
            self.waiting.insert(entry);
        } else {
            watcher.place = WatcherPlace::Parked;
            stream.parked.insert(entry);
            let stream = watcher.stream as usize;
            self.wait_for_room(stream);
        }
    }

    /// Lets parked watchers of a stream try again once none of those that did before are still at
    /// it.
    pub(super) fn admit_if_idle(&mut self, stream: usize) {
        let idle = &self.streams[stream];
        if idle.admitted > 0 || idle.parked.is_empty() || idle.is_closed {
            return;
        }
        if idle.has_room() {
            let last = idle.admitted_last; // all of them are synced, and there is room left
            self.admit(stream, last);
        } else {
            self.wait_for_room(stream);
        }
    }

    /// The stream has room again.
    pub(super) fn readmit(&mut self, stream: usize) {
        let served = std::mem::take(&mut self.streams[stream].served) as usize;
        self.admit(stream, served);
        self.call_stepper();
    }

    /// The stream has room: twice as many of its parked watchers try again as were served the last
    /// time, those furthest behind first.
    pub(super) fn admit(&mut self, stream: usize, served: usize) {
        let stream = &mut self.streams[stream];
        let count = limits::WATCH_ADMITTED_MIN.max(2 * served);
        stream.admitted_last = count;
        for _ in 0..count {
            let Some(entry) = stream.parked.pop_first() else { return };
            self.watchers[entry.1 as usize].place = WatcherPlace::Waiting;
            self.waiting.insert(entry);
            stream.admitted += 1;
        }
    }

    /// A watcher of the stream was not told of an event for want of room: the stream will be looked
    /// at again.
    pub(super) fn wait_for_room(&mut self, stream: usize) {
        if !self.streams[stream].fill() {
            self.starve(stream);
        }
    }

    /// There is no room for a stream on which nothing waits.
    pub(super) fn starve(&mut self, stream: usize) {
        let waiting = &mut self.streams[stream];
        if waiting.starved.is_none() && !waiting.is_closed {
            waiting.starved = Some(self.starved.add(stream));
        }
    }

    /// A stream does not wait for others any more.
    pub(super) fn forget_starved(&mut self, stream: usize) {
        if let Some(ticket) = self.streams[stream].starved.take() {
            self.starved.remove(ticket);
        }
    }

    /// Some starved streams have yet to be looked at since others let go of memory.
    pub(super) fn may_retry_starved(&self) -> bool {
        let Some(first) = self.starved.first() else { return false };
        self.starved.is_looking(self.streams[first].share().budget().releases())
    }

    /// The task of `context` is woken when others let go of memory, if a stream is starved.
    pub(super) fn listen(&self, context: &Context<'_>) {
        if let Some(first) = self.starved.first() {
            self.streams[first].share().budget().listen(context.waker());
        }
    }

    /// Lets those starved streams go on for which there is room again.
    pub(super) fn retry_starved(&mut self, budget: &mut StepBudget) {
        let Some(first) = self.starved.first() else { return };
        self.starved.look(self.streams[first].share().budget().releases());
        while !budget.is_spent()
            && let Some(stream) = self.starved.next()
        {
            budget.spend(1);
            if self.streams[stream].has_room_again() {
                self.forget_starved(stream);
                self.readmit(stream);
                budget.spend(self.streams[stream].admitted_last);
            }
        }
    }
}
