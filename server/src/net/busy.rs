//! Connections that have more to do than one turn does. The more there are, the shorter are their
//! turns: a connection with little to do waits for a turn of each.

use std::cell::Cell;
use std::rc::Rc;

use crate::limits;

/// Edge view: the number of connections that have asked for another turn.
#[derive(Debug, Default)]
pub(super) struct BusyConnections(Cell<u64>);

/// One connection's part in the count of busy connections.
#[derive(Debug)]
pub(super) struct TurnShare {
    busy: Rc<BusyConnections>,
    is_counted: bool,
}

impl TurnShare {
    /// A connection that is not busy.
    pub(super) fn new(busy: &Rc<BusyConnections>) -> Self {
        Self { busy: Rc::clone(busy), is_counted: false }
    }

    /// The connection's turn begins.
    pub(super) fn begin(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.busy.0.set(self.busy.0.get() - 1);
        }
    }

    /// The connection asks for another turn.
    pub(super) fn ask(&mut self) {
        self.begin();
        self.is_counted = true;
        self.busy.0.set(self.busy.0.get() + 1);
    }

    /// Microseconds that a turn may last; `most` if no other connection is busy.
    pub(super) fn microseconds(&self, most: u64) -> u64 {
        (limits::ROUND_MICROSECONDS / (self.busy.0.get() + 1)).clamp(limits::TURN_MICROSECONDS_MIN, most)
    }
}

impl Drop for TurnShare {
    fn drop(&mut self) {
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_turns_is_as_long_however_many_take_part() {
        let busy = Rc::<BusyConnections>::default();
        let most = limits::BATCH_MICROSECONDS;
        let mut all: Vec<TurnShare> = (0..50).map(|_| TurnShare::new(&busy)).collect();
        assert_eq!(all[0].microseconds(most), most);
        all.iter_mut().for_each(TurnShare::ask);
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
        all.extend((0..10_000).map(|_| TurnShare::new(&busy)));
        all.iter_mut().for_each(TurnShare::ask);
        assert_eq!(all[0].microseconds(most), limits::TURN_MICROSECONDS_MIN);
        drop(all);
        assert_eq!(busy.0.get(), 0);
    }
}
