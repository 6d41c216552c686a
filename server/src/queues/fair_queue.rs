//! A queue whose parts are equal at several levels: of everything at the first key of a path, of
//! the first key's part at the second one, and so on. An address that sends a thousand things at
//! once waits for its own; so does a connection of that address, and a user of that connection.
//!
//! Where there is no room, the part that holds most gives way, from level to level, with what came
//! last there; of parts that hold the same, the one that began to wait last. So what is new finds
//! room while another part holds more, and what has a place loses it to no equal: however many come
//! again and again, each place is served in its turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Items that wait, by where they come from: a path of `N` keys.
#[derive(Debug)]
pub struct FairQueue<const N: usize, T> {
    all: Parts<T>,
    /// The next number of a turn.
    next: u64,
    bounds: FairBounds,
}

/// How much may wait.
#[derive(Debug, Clone, Copy)]
pub struct FairBounds {
    /// In all.
    pub all_max: usize,
    /// Under one key of the first level.
    pub part_max: usize,
}

/// The parts of one level, none of them empty. Every part is in `turns` and in `by_len` once.
#[derive(Debug)]
struct Parts<T> {
    of: BTreeMap<u128, Part<T>>,
    turns: BTreeMap<u64, u128>,
    /// Length, when it began to wait, key: the last one gives way.
    by_len: BTreeSet<(usize, u64, u128)>,
    len: usize,
}

#[derive(Debug)]
struct Part<T> {
    since: u64,
    turn: u64,
    inside: Inside<T>,
}

#[derive(Debug)]
enum Inside<T> {
    Parts(Parts<T>),
    /// Behind the last key: oldest first.
    Items(VecDeque<T>),
}

/// The item that is taken.
enum Pick<'p, T> {
    /// Of the part whose turn it is, at each level, the oldest.
    Next,
    /// Of the longest part, at each level, the newest.
    Last,
    /// Of this part the oldest one that is looked for.
    Of(&'p [u128], &'p dyn Fn(&T) -> bool),
}

impl<T> Inside<T> {
    fn new(path: &[u128]) -> Self {
        if path.is_empty() { Self::Items(VecDeque::new()) } else { Self::Parts(Parts::new()) }
    }

    fn len(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.len,
            Self::Items(items) => items.len(),
        }
    }

    fn push(&mut self, path: &[u128], next: &mut u64, item: T) {
        match self {
            Self::Parts(parts) => parts.push(path, next, item),
            Self::Items(items) => items.push_back(item),
        }
    }

    fn take(&mut self, pick: &Pick<'_, T>, next: &mut u64) -> Option<T> {
        match (self, pick) {
            (Self::Parts(parts), _) => parts.take(pick, next),
            (Self::Items(items), Pick::Next) => items.pop_front(),
            (Self::Items(items), Pick::Last) => items.pop_back(),
            (Self::Items(items), Pick::Of(_, is_it)) => items.remove(items.iter().position(is_it)?),
        }
    }
}

impl<T> Parts<T> {
    fn new() -> Self {
        Self { of: BTreeMap::new(), turns: BTreeMap::new(), by_len: BTreeSet::new(), len: 0 }
    }

    fn push(&mut self, path: &[u128], next: &mut u64, item: T) {
        let Some((key, rest)) = path.split_first() else { return };
        let part = self.of.entry(*key).or_insert_with(|| {
            *next += 1;
            self.turns.insert(*next, *key);
            Part { since: *next, turn: *next, inside: Inside::new(rest) }
        });
        self.by_len.remove(&(part.inside.len(), part.since, *key));
        part.inside.push(rest, next, item);
        self.by_len.insert((part.inside.len(), part.since, *key));
        self.len += 1;
    }

    fn take(&mut self, pick: &Pick<'_, T>, next: &mut u64) -> Option<T> {
        match pick {
            Pick::Next => self.take_of(*self.turns.first_key_value()?.1, pick, next),
            Pick::Last => self.take_of(self.by_len.last()?.2, pick, next),
            Pick::Of(path, is_it) => {
                let (key, rest) = path.split_first()?;
                self.take_of(*key, &Pick::Of(rest, is_it), next)
            }
        }
    }

    /// Takes an item of one part. Whose turn it was goes behind the others.
    fn take_of(&mut self, key: u128, pick: &Pick<'_, T>, next: &mut u64) -> Option<T> {
        let part = self.of.get_mut(&key)?;
        self.by_len.remove(&(part.inside.len(), part.since, key));
        let item = part.inside.take(pick, next);
        self.len -= usize::from(item.is_some());
        let left = part.inside.len();
        let was_its_turn = matches!(pick, Pick::Next);
        if was_its_turn || left == 0 {
            self.turns.remove(&part.turn);
        }
        if left == 0 {
            self.of.remove(&key);
            return item;
        }
        if was_its_turn {
            *next += 1;
            part.turn = *next;
            self.turns.insert(*next, key);
        }
        self.by_len.insert((left, part.since, key));
        item
    }
}

impl<const N: usize, T> FairQueue<N, T> {
    /// Nothing waits.
    #[must_use]
    pub fn new(bounds: FairBounds) -> Self {
        const { assert!(N > 0, "there is a level to share at") };
        Self { all: Parts::new(), next: 0, bounds }
    }

    /// Adds an item. The result is the one that has to go for it, if there is no room.
    pub fn push(&mut self, path: [u128; N], item: T) -> Option<T> {
        let Self { all, next, bounds } = self;
        all.push(&path, next, item);
        if all.of.get(&path[0]).is_some_and(|part| part.inside.len() > bounds.part_max) {
            all.take_of(path[0], &Pick::Last, next)
        } else if all.len > bounds.all_max {
            all.take(&Pick::Last, next)
        } else {
            None
        }
    }

    /// The next one: each part of each level has one at a time.
    pub fn pop(&mut self) -> Option<T> {
        self.all.take(&Pick::Next, &mut self.next)
    }

    /// Takes the oldest one of a path that is looked for.
    pub fn remove(&mut self, path: [u128; N], is_it: impl Fn(&T) -> bool) -> Option<T> {
        self.all.take(&Pick::Of(&path, &is_it), &mut self.next)
    }

    /// How much waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: FairBounds = FairBounds { all_max: 1_000, part_max: 400 };

    fn popped<const N: usize>(queue: &mut FairQueue<N, u128>) -> Vec<u128> {
        let order: Vec<u128> = std::iter::from_fn(|| queue.pop()).collect();
        assert!(queue.is_empty() && queue.all.of.is_empty());
        assert!(queue.all.turns.is_empty() && queue.all.by_len.is_empty());
        order
    }

    fn place(order: &[u128], wanted: u128) -> usize {
        order.iter().position(|item| *item == wanted).unwrap()
    }

    #[test]
    fn a_flood_waits_behind_others() {
        let mut queue = FairQueue::new(BOUNDS);
        for number in 0..300 {
            assert_eq!(queue.push([1, number % 3], 1), None);
        }
        for item in [2, 3] {
            assert_eq!(queue.push([item, 9], item), None);
        }
        assert_eq!(queue.push([1, 77], 4), None);
        let order = popped(&mut queue);
        assert!(place(&order, 2) < 4 && place(&order, 3) < 4, "another address");
        assert!(place(&order, 4) < 8, "another connection of the same address");
        assert_eq!(order.len(), 303);
    }

    #[test]
    fn what_is_new_finds_room_and_takes_none_from_a_part_that_has_less() {
        let mut queue = FairQueue::new(BOUNDS);
        let gone: Vec<u128> = (0..1_000).filter_map(|number| queue.push([1, 1], number)).collect();
        assert_eq!(gone, (400..1_000).collect::<Vec<_>>(), "an address has its part, and no more come in");
        assert_eq!(queue.push([1, 2], 2_000), Some(399), "the connection that has most gives way");
        for address in 2..=4 {
            for _ in 0..200 {
                assert_eq!(queue.push([address, 1], address), None);
            }
        }
        assert_eq!(queue.len(), 1_000);
        assert_eq!(queue.push([9, 1], 9_000), Some(398), "the address that has most gives way");
        let order = popped(&mut queue);
        assert_eq!(order.len(), 1_000);
        assert!(place(&order, 9_000) < 5);
        assert!(place(&order, 2_000) < 10, "turns of five addresses, and of two connections");
    }

    /// A flood of equals takes no place from what waits, however often it comes again.
    #[test]
    fn of_equal_parts_the_last_gives_way() {
        let mut queue = FairQueue::new(FairBounds { all_max: 3, part_max: 3 });
        for connection in 0..3 {
            assert_eq!(queue.push([1, connection], connection), None);
        }
        for connection in 3..1_000 {
            assert_eq!(queue.push([1, connection], connection), Some(connection));
        }
        for (address, gone) in [(2, 2), (3, 1), (4, 104), (5, 105)] {
            assert_eq!(queue.push([address, 1], 100 + address), Some(gone));
        }
        assert_eq!(popped(&mut queue), [0, 102, 103], "each of the first addresses has one of three places");
    }

    #[test]
    fn what_is_given_up_leaves() {
        let mut queue = FairQueue::new(BOUNDS);
        for number in 0..12 {
            assert_eq!(queue.push([number % 2, number % 3], number), None);
        }
        assert_eq!(queue.remove([0, 1], |number| *number == 10), Some(10));
        for (path, looked_for) in [([0, 1], 10), ([0, 2], 4), ([7, 1], 4)] {
            assert_eq!(queue.remove(path, |number| *number == looked_for), None, "of another part");
        }
        assert_eq!(queue.remove([0, 1], |_| true), Some(4));
        assert_eq!(queue.len(), 10);
        assert_eq!(popped(&mut queue), [0, 1, 2, 3, 6, 5, 8, 7, 9, 11]);
    }

    /// Against a model without an order of its own: nothing is lost, told twice, or beyond bounds,
    /// and no part gives way while a longer one is beside it.
    #[test]
    fn random_pushes_and_pops_keep_the_parts() {
        let mut queue = FairQueue::new(FairBounds { all_max: 40, part_max: 15 });
        let mut waiting = BTreeMap::<u128, [u128; 3]>::new();
        let mut random = 88_172_645_463_325_252_u64;
        for number in 0..20_000_u128 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let of = |shift: u32, count: u64| u128::from((random >> shift) % count);
            if random.is_multiple_of(3) {
                let next = queue.pop();
                assert_eq!(next.is_none(), waiting.is_empty());
                next.map(|next| waiting.remove(&next).expect("it waited, once"));
                continue;
            }
            if random.is_multiple_of(7) {
                if let Some((number, path)) = waiting.pop_first() {
                    assert_eq!(queue.remove(path, |it| *it == number), Some(number));
                }
                continue;
            }
            let path = [of(8, 5), of(20, 4), of(30, 3)];
            waiting.insert(number, path);
            if let Some(gone) = queue.push(path, number) {
                let of_gone = waiting[&gone];
                let len = |of: u128| waiting.values().filter(|path| path[0] == of).count();
                let is_longest = (0..5).all(|other| len(other) <= len(of_gone[0]));
                assert!(is_longest || of_gone[0] == path[0] && len(path[0]) == 16);
                waiting.remove(&gone);
            }
            assert_eq!(queue.len(), waiting.len());
            assert!(waiting.len() <= 40);
        }
        let mut left = popped(&mut queue);
        left.sort_unstable();
        assert_eq!(left, waiting.into_keys().collect::<Vec<_>>());
    }
}
