//! Callers at other members: their requests about leases come to the leader, which answers them as
//! those of its own edges, by ids of this table.

use slab::Slab;

use crate::apply::command::CommandId;
use crate::limits;

/// State core view: who asked at which other member, by slot.
#[derive(Debug, Default)]
pub(super) struct MemberCallers {
    callers: Slab<MemberCaller>,
}

/// A caller at another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemberCaller {
    /// That member.
    pub(super) member: u64,
    /// Its name for the caller.
    pub(super) id: CommandId,
}

/// In the place of an edge's number. Edges are far fewer.
const NO_EDGE: u16 = u16::MAX;

const _: () = assert!(limits::MEMBER_CALLERS_MAX <= CommandId::SLOTS_MAX, "each has an id");

impl MemberCallers {
    /// An id of this member for a caller at another one; none when there are too many.
    pub(super) fn enter(&mut self, caller: MemberCaller) -> Option<CommandId> {
        let slot = self.callers.vacant_key();
        if slot >= limits::MEMBER_CALLERS_MAX {
            return None;
        }
        self.callers.insert(caller);
        Some(CommandId::new(NO_EDGE, slot, 0))
    }

    /// The caller at another member that is answered by this id, if it is one; once.
    pub(super) fn leave(&mut self, id: CommandId) -> Option<MemberCaller> {
        if id.edge() == NO_EDGE { self.callers.try_remove(id.slot()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_bounded_and_leave_once() {
        let mut callers = MemberCallers::default();
        let caller = MemberCaller { member: 3, id: CommandId::new(1, 2, 3) };
        let first = callers.enter(caller).unwrap();
        assert!((1..limits::MEMBER_CALLERS_MAX).all(|_| callers.enter(caller).is_some()));
        assert_eq!(callers.enter(caller), None);
        assert_eq!(callers.leave(first), Some(caller));
        assert_eq!(callers.leave(first), None);
        assert_eq!(callers.enter(caller), Some(first));
        // An edge's own caller is in no table here.
        assert_eq!(callers.leave(CommandId::new(0, first.slot(), 0)), None);
    }
}
