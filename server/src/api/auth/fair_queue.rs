//! A queue in which addresses have equal shares, and so have the connections of each address: one
//! that sends a thousand at once waits for its own, and is refused when there is no room.

use std::collections::{BTreeMap, VecDeque};

use crate::api::call::{Address, Source};

/// Node view: what waits, by where it comes from.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    lanes: BTreeMap<Address, Lane<T>>,
    /// The addresses of those, in the order of their turns.
    turns: VecDeque<Address>,
    len: usize,
    bounds: FairBounds,
}

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct FairBounds {
    /// In all.
    pub(super) all_max: usize,
    /// Of one address.
    pub(super) address_max: usize,
}

/// All that one address has waiting: its connections in the order of their turns.
#[derive(Debug)]
struct Lane<T> {
    connections: VecDeque<(u64, VecDeque<T>)>,
    len: usize,
}

impl<T> Lane<T> {
    fn new() -> Self {
        Self { connections: VecDeque::new(), len: 0 }
    }

    fn push(&mut self, connection: u64, item: T) {
        self.len += 1;
        match self.connections.iter_mut().find(|(other, _)| *other == connection) {
            Some((_, items)) => items.push_back(item),
            None => self.connections.push_back((connection, VecDeque::from([item]))),
        }
    }

    fn pop(&mut self) -> Option<T> {
        let (connection, mut items) = self.connections.pop_front()?;
        let item = items.pop_front()?;
        self.len -= 1;
        if !items.is_empty() {
            self.connections.push_back((connection, items));
        }
        Some(item)
    }

    fn len_of(&self, connection: u64) -> usize {
        self.connections.iter().find(|(other, _)| *other == connection).map_or(0, |(_, items)| items.len())
    }

    /// Takes out what came last of the connection that has most, if it has more than so much.
    fn evict(&mut self, more_than: usize) -> Option<T> {
        let at = (0..self.connections.len()).max_by_key(|at| self.connections[*at].1.len())?;
        let (_, items) = &mut self.connections[at];
        if items.len() <= more_than {
            return None;
        }
        let item = items.pop_back()?;
        if items.is_empty() {
            self.connections.remove(at);
        }
        self.len -= 1;
        Some(item)
    }
}

impl<T> FairQueue<T> {
    pub(super) fn new(bounds: FairBounds) -> Self {
        Self { lanes: BTreeMap::new(), turns: VecDeque::new(), len: 0, bounds }
    }

    /// Adds an item from there. The result is the item that has to go for it, if there was no room:
    /// another one's that has more waiting, or this one.
    pub(super) fn push(&mut self, source: Source, item: T) -> Option<T> {
        let Source { address, connection } = source;
        let own = self.lanes.get(&address).map_or(0, |lane| lane.len);
        let mut evicted = None;
        if own >= self.bounds.address_max {
            let Some(lane) = self.lanes.get_mut(&address) else { return Some(item) };
            let of_connection = lane.len_of(connection);
            evicted = lane.evict(of_connection + 1);
        } else if self.len >= self.bounds.all_max {
            let longest = self.lanes.iter_mut().max_by_key(|(_, lane)| lane.len);
            evicted = longest.filter(|(_, lane)| lane.len > own + 1).and_then(|(_, lane)| lane.evict(0));
        }
        if evicted.is_some() {
            self.len -= 1;
        } else if own >= self.bounds.address_max || self.len >= self.bounds.all_max {
            return Some(item);
        }
        if own == 0 {
            self.turns.push_back(address);
        }
        self.lanes.entry(address).or_insert_with(Lane::new).push(connection, item);
        self.len += 1;
        evicted
    }

    /// The next one: each address has one at a time, and so has each of its connections.
    pub(super) fn pop(&mut self) -> Option<T> {
        let address = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&address)?;
        let item = lane.pop()?;
        self.len -= 1;
        if lane.len > 0 {
            self.turns.push_back(address);
        } else {
            self.lanes.remove(&address);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: FairBounds = FairBounds { all_max: 1_000, address_max: 400 };

    fn from(address: u8, connection: u64) -> Source {
        Source { address: Address::of([10, 0, 0, address].into()), connection }
    }

    #[test]
    fn a_flood_waits_behind_others() {
        let mut queue = FairQueue::new(BOUNDS);
        for number in 0..300 {
            assert_eq!(queue.push(from(1, number % 3), 1), None);
        }
        for item in [2, 3] {
            assert_eq!(queue.push(from(u8::try_from(item).unwrap(), 9), item), None);
        }
        assert_eq!(queue.push(from(1, 77), 4), None);
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        let at = |wanted| order.iter().position(|item| *item == wanted).unwrap();
        assert!(at(2) < 4 && at(3) < 4, "another address");
        assert!(at(4) < 8, "another connection of the same address");
        assert_eq!(order.len(), 303);
    }

    #[test]
    fn there_is_room_for_who_has_little_waiting() {
        let mut queue = FairQueue::new(BOUNDS);
        let refused = (0..1_000).filter(|_| queue.push(from(1, 1), 1) == Some(1)).count();
        assert_eq!(refused, 600, "an address has its share");
        assert_eq!(queue.push(from(1, 2), 2), Some(1), "the connection that has most gives way");
        assert_eq!(queue.push(from(1, 1), 1), Some(1), "its own is refused");
        for address in 2..=4 {
            for _ in 0..200 {
                assert_eq!(queue.push(from(address, 1), u32::from(address)), None);
            }
        }
        assert_eq!(queue.len, 1_000);
        assert_eq!(queue.push(from(9, 1), 9), Some(1), "the address that has most gives way");
        assert_eq!(queue.push(from(1, 1), 1), Some(1));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order.len(), 1_000);
        assert!(order.iter().position(|item| *item == 9).unwrap() < 5);
        assert!(queue.lanes.is_empty() && queue.turns.is_empty() && queue.len == 0);
    }
}
