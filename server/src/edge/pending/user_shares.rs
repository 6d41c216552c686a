//! The parts that users have of an edge's slots and bytes of commands: each at most as much as it
//! leaves free. One that asks for everything gets half of it, and the next one half of the rest:
//! there is always some for others, and no number to configure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A user, by a number made of its name. Two that share one share a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserNumber(u64);

impl UserNumber {
    /// Of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Slots, and bytes of the commands in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slots: usize,
    pub(super) bytes: usize,
}

/// Edge view: the parts of users with commands under way.
#[derive(Debug, Default)]
pub(super) struct UserShares(BTreeMap<UserNumber, Part>);

impl UserShares {
    /// Whether a user may have one more slot, with so many bytes, while so much is free.
    pub(super) fn fits(&self, user: UserNumber, bytes: usize, free: Part) -> bool {
        let Some(own) = self.0.get(&user) else { return true };
        own.slots < free.slots && own.bytes.saturating_add(bytes) <= free.bytes
    }

    pub(super) fn take(&mut self, user: UserNumber, bytes: usize) {
        let own = self.0.entry(user).or_default();
        own.slots += 1;
        own.bytes += bytes;
    }

    pub(super) fn give(&mut self, user: UserNumber, bytes: usize) {
        let Some(own) = self.0.get_mut(&user) else { return };
        own.slots -= 1;
        own.bytes -= bytes;
        if own.slots == 0 {
            self.0.remove(&user);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use revd_member::apply::command::Kind;

    use super::*;
    use crate::edge::pending::Proposals;
    use crate::edge::pending::tests::{LIMITS, outcome};
    use crate::edge::slots::SlotClass;
    use crate::limits::ProposalLimits;

    /// One user with as many connections as it likes sends without an end: others are served.
    #[test]
    fn a_user_leaves_others_as_much_as_it_takes() {
        let limits = ProposalLimits { inflight_max: 16, inflight_bytes_max: 1_600, ..LIMITS };
        let proposals = Proposals::new(0, limits);
        let put = |name: &str, bytes: usize| {
            let of = (SlotClass::Calls, Some(UserNumber::of(name)));
            proposals.submit_as(of, Kind::Put, Bytes::from(vec![0; bytes]), false)
        };
        let greedy = |name, bytes| std::iter::from_fn(|| put(name, bytes).ok()).collect::<Vec<_>>();
        let anns = greedy("ann", 10);
        let bobs = greedy("bob", 10);
        assert_eq!((anns.len(), bobs.len(), greedy("cat", 10).len()), (8, 4, 2));
        assert!(put("dan", 10).is_ok(), "there is some left");
        for command in proposals.take_batch().commands {
            proposals.resolve(command.id, outcome(1));
        }
        drop((anns, bobs));
        assert_eq!(proposals.table.borrow().users.len(), 0);
        // Bytes are shared alike; a user that has nothing may have all that is there.
        assert_eq!(greedy("ann", 400).len(), 2);
        assert!(put("bob", 800).is_ok());
    }
}
