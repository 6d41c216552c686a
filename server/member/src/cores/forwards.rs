//! Commands that other members have forwarded to this leader. Each member may have as much waiting
//! as it leaves free, and they take turns: one that is flooded leaves room and time to others.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::apply::command::{self, CommandId};
use crate::limits;

/// Log core view: batches that wait to be proposed.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    /// By member; none without batches.
    waiting: BTreeMap<u64, Waiting>,
    /// Each of these members once, the next one first.
    turns: VecDeque<u64>,
    bytes: usize,
}

/// The batches of one member.
#[derive(Debug, Default)]
struct Waiting {
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl Forwards {
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Takes in a batch of this member, unless it is not whole or not the sender's own.
    ///
    /// # Errors
    /// The batch's commands, when there is no room for it.
    pub(super) fn push(&mut self, from: u64, batch: Bytes) -> Result<(), Vec<CommandId>> {
        let Some(ids) = ids_of(from, &batch) else { return Ok(()) };
        let free = limits::FORWARDED_BYTES_MAX.saturating_sub(self.bytes);
        let own = self.waiting.get(&from).map_or(0, |waiting| waiting.bytes);
        // One batch of each member always finds room: others may have left less than it takes.
        if own > 0 && own + batch.len() > free {
            return Err(ids);
        }
        if own == 0 {
            self.turns.push_back(from);
        }
        let waiting = self.waiting.entry(from).or_default();
        waiting.bytes += batch.len();
        self.bytes += batch.len();
        waiting.queue.push_back(batch);
        Ok(())
    }

    /// The next batch.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let member = self.turns.pop_front()?;
        let waiting = self.waiting.get_mut(&member)?;
        let batch = waiting.queue.pop_front()?;
        waiting.bytes -= batch.len();
        self.bytes -= batch.len();
        if waiting.queue.is_empty() {
            self.waiting.remove(&member);
        } else {
            self.turns.push_back(member);
        }
        Some(batch)
    }

    /// This member leads no more: the senders see that by themselves.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The commands of a batch; none if it is not one of this member. A batch that cannot be applied
/// would stop every member.
pub(super) fn ids_of(from: u64, batch: &Bytes) -> Option<Vec<CommandId>> {
    let batch = command::decode(batch.clone()).ok()?;
    let is_own = batch.origin.member == from && !batch.commands.is_empty();
    is_own.then(|| batch.commands.iter().map(|command| command.id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::{Command, Kind, Origin, encode};

    fn batch(member: u64, size: usize) -> Bytes {
        let command =
            Command { id: CommandId(size as u64), kind: Kind::Put, payload: Bytes::from(vec![0; size]) };
        encode(Origin { member, boot: 1 }, &[command]).into()
    }

    #[test]
    fn a_batch_that_is_not_the_senders_own_or_not_whole_is_left_out() {
        let mut forwards = Forwards::default();
        let own = batch(2, 10);
        forwards.push(3, own.clone()).unwrap();
        forwards.push(2, own.slice(1..)).unwrap();
        forwards.push(2, Bytes::new()).unwrap();
        forwards.push(2, encode(Origin { member: 2, boot: 1 }, &[]).into()).unwrap();
        assert!(forwards.is_empty());
        forwards.push(2, own.clone()).unwrap();
        assert_eq!(forwards.pop(), Some(own));
    }

    #[test]
    fn forwards_are_bounded_in_bytes() {
        let mut forwards = Forwards::default();
        let size = limits::FORWARDED_BYTES_MAX / 2;
        forwards.push(2, batch(2, size)).unwrap();
        assert_eq!(forwards.push(2, batch(2, size)), Err(vec![CommandId(size as u64)]));
        assert!(forwards.pop().is_some());
        forwards.push(2, batch(2, size)).unwrap();
        forwards.clear();
        assert!(forwards.is_empty() && forwards.pop().is_none());
        forwards.push(2, batch(2, size)).unwrap();
    }

    /// Users of one member write without an end: those of others are served, and do not wait behind
    /// all of it.
    #[test]
    fn a_member_leaves_others_as_much_as_it_takes() {
        let mut forwards = Forwards::default();
        let size = limits::FORWARDED_BYTES_MAX / 17;
        let mut greedy =
            |member| (0..20).take_while(|_| forwards.push(member, batch(member, size)).is_ok()).count();
        assert_eq!([greedy(2), greedy(3), greedy(4)], [8, 4, 2]);
        let from = |batch: Bytes| command::decode(batch).unwrap().origin.member;
        let turns: Vec<u64> = std::iter::from_fn(|| forwards.pop().map(from)).collect();
        assert_eq!(turns[..8], [2, 3, 4, 2, 3, 4, 2, 3]);
        assert!(turns.len() == 14 && forwards.is_empty());
    }
}
