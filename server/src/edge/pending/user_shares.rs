//! The parts that users have of an edge's slots for calls, and of the bytes of commands in them:
//! each at most as much as it leaves free. One that asks for everything gets half of it, and the
//! next one half of the rest: there is always some for others, and no number to configure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use revd_member::auth::Caller;

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

    /// Of the user that calls; none where that is nobody, or the member itself.
    #[must_use]
    pub fn of_caller(caller: &Caller) -> Option<Self> {
        match caller {
            Caller::User(user) => Some(Self::of(&user.name)),
            Caller::Nobody | Caller::BadToken | Caller::Member => None,
        }
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
        // A request without bytes takes none from others.
        own.slots < free.slots && (bytes == 0 || own.bytes.saturating_add(bytes) <= free.bytes)
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
    use revd_member::apply::local::{DeadlineRequest, LeaseRequest, LocalKind};
    use revd_member::auth::User;

    use super::*;
    use crate::edge::pending::Proposals;
    use crate::edge::pending::tests::{KEEP_ALIVE, LIMITS, outcome};
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
        let anns = greedy("ann", 400);
        assert_eq!(anns.len(), 2);
        let bob = put("bob", 800);
        assert!(bob.is_ok() && put("ann", 1).is_err());
        assert!(put("ann", 0).is_ok(), "what has no bytes takes none");
    }

    /// Requests to this member's state take the same slots, by the same rule, together with the
    /// commands of their user; those of the member itself, and keepalives, are not in its part.
    #[test]
    fn local_requests_count_in_the_part_of_their_user() {
        let proposals = Proposals::new(0, ProposalLimits { inflight_max: 16, ..LIMITS });
        let ask = |name: &str, kind: LocalKind| {
            proposals.submit_local(Some(UserNumber::of(name)), kind, false).ok()
        };
        let time_to_live = |keys| LocalKind::from(LeaseRequest::TimeToLive { lease: 7, keys });
        let kinds = [
            time_to_live(false),
            time_to_live(true),
            LeaseRequest::Keys { lease: 7 }.into(),
            LeaseRequest::KeyBytes { lease: 7 }.into(),
            DeadlineRequest::List.into(),
        ];
        let of_ann = (SlotClass::Calls, Some(UserNumber::of("ann")));
        let put = proposals.submit_as(of_ann, Kind::Put, Bytes::from_static(b"put"), false);
        let mut anns: Vec<_> = kinds.map(|kind| ask("ann", kind).unwrap()).into();
        anns.extend(std::iter::from_fn(|| ask("ann", time_to_live(false))));
        assert_eq!(anns.len(), 7, "and a put: half of all");
        let bobs: Vec<_> = std::iter::from_fn(|| ask("bob", time_to_live(false))).collect();
        assert_eq!(bobs.len(), 4);
        assert!(ask("ann", KEEP_ALIVE.into()).is_some(), "keepalives wait, and are not refused");
        for kind in [LocalKind::Defragment, LocalKind::MoveLeader { to: 2 }] {
            assert!(ask("ann", kind).is_some(), "the operator finds a place");
        }
        assert!(proposals.submit_local(None, time_to_live(false), false).is_ok());
        let batch = proposals.take_batch();
        for id in batch.local.iter().map(|it| it.id).chain(batch.commands.iter().map(|it| it.id)) {
            proposals.resolve(id, outcome(1));
        }
        drop((put, anns, bobs));
        assert_eq!(proposals.table.borrow().users.len(), 0);
        assert!(ask("ann", time_to_live(false)).is_some());
    }

    #[test]
    fn only_users_have_parts() {
        let user = User { name: "ann".to_owned(), revision: Some(7) };
        assert_eq!(UserNumber::of_caller(&Caller::User(user.into())), Some(UserNumber::of("ann")));
        for other in [Caller::Nobody, Caller::BadToken, Caller::Member] {
            assert_eq!(UserNumber::of_caller(&other), None);
        }
    }
}
