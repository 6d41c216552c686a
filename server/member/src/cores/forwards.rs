//! Commands that other members have forwarded to this leader.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::apply::command::{self, CommandId};
use crate::limits;

/// Log core view: batches that wait to be proposed.
#[derive(Debug, Default)]
pub(super) struct Forwards {
    queue: VecDeque<Bytes>,
    bytes: usize,
}

impl Forwards {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes in a batch of this member, unless it is not whole or not the sender's own.
    ///
    /// # Errors
    /// The batch's commands, when there is no room for it.
    pub(super) fn push(&mut self, from: u64, batch: Bytes) -> Result<(), Vec<CommandId>> {
        let Some(ids) = ids_of(from, &batch) else { return Ok(()) };
        // One command alone may be longer than all that wait.
        if self.bytes > 0 && self.bytes + batch.len() > limits::FORWARDED_BYTES_MAX {
            return Err(ids);
        }
        self.bytes += batch.len();
        self.queue.push_back(batch);
        Ok(())
    }

    /// The next batch.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let batch = self.queue.pop_front()?;
        self.bytes -= batch.len();
        Some(batch)
    }

    /// This member leads no more: the senders see that by themselves.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
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
        forwards.push(2, batch(2, size)).unwrap();
    }
}
