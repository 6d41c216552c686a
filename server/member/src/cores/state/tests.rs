//! Tests of the state core that look inside.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::limits::LOOK_AHEAD_KEYS_MAX;
use revd_engine::mvcc::{Checkpoint, SavedState, Store, View};

use super::*;
use crate::apply::MachineConfig;
use crate::apply::command::{self, Command, Kind, Origin};
use crate::apply::lease_reports::LeaseCounts;
use crate::apply::received::ReplacedState;
use crate::apply::state_hashes::HashPoint;
use crate::cores::long::LongList;

/// A clock of which each look takes a turn's time; everything else is dropped.
#[derive(Default)]
struct SlowClock(Cell<u64>);

impl StateEffects for SlowClock {
    fn microseconds(&self) -> u64 {
        self.0.replace(self.0.get() + limits::APPLY_MICROSECONDS)
    }

    fn last_index(&self) -> u64 {
        0
    }

    fn counted(&mut self, _: LeaseCounts) {}
    fn publish(&mut self, _: View, _: u64, _: usize) {}
    fn answer(&mut self, _: CommandId, _: Outcome) {}
    fn answer_member(&mut self, _: u64, _: CommandId, _: Outcome) {}
    fn end_reads(&mut self, _: u16, _: u64, _: Result<(), Error>) {}
    fn lost(&mut self, _: Lost) {}
    fn hear(&mut self, _: u64) {}
    fn tell_of_view(&mut self) {}
    fn write(&mut self, _: Checkpoint, _: bool) {}
    fn remind(&mut self, _: Duration) {}
    fn durable(&mut self, _: DurableIndex) {}
    fn run(&mut self, _: LongCommand) {}
    fn encode(&mut self, _: LongList) {}
    fn install(&mut self) {}
    fn discard(&mut self, _: ReplacedState) {}
    fn stream(&mut self, _: u64, _: u64, _: Option<SavedState>) {}
    fn hashed(&mut self, _: u64, _: HashPoint, _: &[u64]) {}
    fn corrupt(&mut self, _: bool) {}
    fn note(&mut self, _: Note) {}
}

/// Over the ends of entries and of turns: once for all commands that it was for.
#[test]
fn commands_that_wait_are_looked_ahead_at_together() {
    const OF_ENTRY: usize = 10;
    let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
    let own = Origin { member: 1, boot: 1 };
    let config = MachineConfig { own, quota_bytes: 0, lease_extension: 0 };
    let mut core = StateCore::new(Machine::new(store, config).unwrap(), 1);
    let put = |slot| Command {
        id: CommandId::new(0, slot, 0),
        kind: Kind::Put,
        payload: vec![0x0a, 2, b'k', u8::try_from(slot).unwrap()].into(),
    };
    let commands: Vec<_> = (0..OF_ENTRY).map(put).collect();
    let entry = |index| {
        let data = command::encode(own, &commands).into();
        Work::Entry(CommittedEntry { index, term: 1, data, change: None })
    };
    let mut effects = SlowClock::default();
    core.receive(StateEvent::Work((1..=5).map(entry).collect()), &mut effects).unwrap();
    let mut looks = 0;
    while core.backlog() > 0 || core.machine().is_some_and(Machine::is_within_entry) {
        let (before, done) = (core.ahead, revision(&core));
        core.turn(Standpoint { is_ready: true }, &mut effects).unwrap();
        let applied = usize::try_from(revision(&core) - done).unwrap();
        assert!(applied <= 4, "{applied} commands in a turn");
        let looked = core.ahead + applied - before;
        looks += usize::from(looked > 0);
        assert!(looked == 0 || looked == LOOK_AHEAD_KEYS_MAX || core.backlog() == 0, "{looked} commands");
    }
    assert_eq!((looks, core.ahead), ((5 * OF_ENTRY).div_ceil(LOOK_AHEAD_KEYS_MAX), 0));
}

fn revision(core: &StateCore) -> i64 {
    core.machine().unwrap().store().revision()
}
