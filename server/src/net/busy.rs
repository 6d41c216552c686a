//! Connections that have more to do than one turn does. The more of them there are, the shorter are
//! their turns: one that has little to do waits for a turn of each.

use std::cell::Cell;
use std::rc::Rc;

use crate::limits;

/// Edge view: how many connections have asked for another turn.
#[derive(Debug, Default)]
pub(super) struct Busy(Cell<u64>);

/// One connection's place among them.
#[derive(Debug)]
pub(super) struct Turns {
    busy: Rc<Busy>,
    is_counted: bool,
}

impl Turns {
    /// It has nothing to do.
    pub(super) fn new(busy: &Rc<Busy>) -> Self {
        Self { busy: Rc::clone(busy), is_counted: false }
    }

    /// Its turn begins.
    pub(super) fn begin(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.busy.0.set(self.busy.0.get() - 1);
        }
    }

    /// It has asked for another turn.
    pub(super) fn ask(&mut self) {
        self.begin();
        self.is_counted = true;
        self.busy.0.set(self.busy.0.get() + 1);
    }

    /// Microseconds that a turn may last which would last `most` if nobody else had anything to do.
    pub(super) fn microseconds(&self, most: u64) -> u64 {
        (limits::ROUND_MICROSECONDS / (self.busy.0.get() + 1)).clamp(limits::TURN_MICROSECONDS_MIN, most)
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_turns_is_as_long_however_many_take_part() {
        let busy = Rc::<Busy>::default();
        let most = limits::BATCH_MICROSECONDS;
        let mut all: Vec<Turns> = (0..50).map(|_| Turns::new(&busy)).collect();
        assert_eq!(all[0].microseconds(most), most);
        all.iter_mut().for_each(Turns::ask);
        all[0].ask();
        let round: u64 = (0..50)
            .map(|at| {
                all[at].begin();
                let lasted = all[at].microseconds(most);
                all[at].ask();
                lasted
            })
            .sum();
        assert!((limits::ROUND_MICROSECONDS - 50..=limits::ROUND_MICROSECONDS).contains(&round), "{round}");
        all.truncate(1);
        assert_eq!(all[0].microseconds(most), most);
        all[0].begin();
        all.extend((0..10_000).map(|_| Turns::new(&busy)));
        all.iter_mut().for_each(Turns::ask);
        assert_eq!(all[0].microseconds(most), limits::TURN_MICROSECONDS_MIN);
        drop(all);
        assert_eq!(busy.0.get(), 0);
    }
}
