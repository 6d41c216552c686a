//! Lists of all leases: each is made a part at a time, so that others are served meanwhile. That of
//! the leader is in the order of deadlines, and describes the moment in which it was begun. Another
//! member knows no deadlines: as in etcd it lists what it knows, in no particular order.

use crate::apply::command::CommandId;
use crate::apply::lease_reports::LeaseList;
use crate::lease::{LeaseDeadlines, Leases};
use crate::limits;

/// State core view: who wants to know all leases, and the list that is being made: one
/// for all who had asked by then.
#[derive(Debug, Default)]
pub(super) struct LeaseLists {
    next: Vec<CommandId>,
    current: Option<List>,
}

#[derive(Debug)]
struct List {
    askers: Vec<CommandId>,
    revision: i64,
    found: Vec<(u64, i64)>,
    /// Of the leader.
    is_leaders: bool,
}

/// A list that is made, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The callers to answer.
    pub askers: Vec<CommandId>,
    /// The revision when it was begun.
    pub revision: i64,
    /// The list.
    pub list: LeaseList,
}

impl LeaseLists {
    /// No list is asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty() && self.current.is_none()
    }

    /// A caller asks for all leases.
    pub(super) fn ask(&mut self, asker: CommandId) {
        self.next.push(asker);
    }

    /// There is another leader, or none: what was found so far is worth nothing.
    pub(super) fn begin_again(&mut self) {
        if let Some(List { askers, .. }) = self.current.take() {
            self.next.splice(0..0, askers);
        }
    }

    /// Goes on with the list that is being made, or begins the next one. A member that does not
    /// lead needs the leases of the state for that.
    pub(super) fn go_on(
        &mut self,
        deadlines: &mut LeaseDeadlines,
        known: Option<&Leases>,
        revision: i64,
    ) -> Option<Listed> {
        if deadlines.is_loading() {
            return None;
        }
        let is_leaders = deadlines.term().is_some();
        if self.current.is_none() {
            if self.next.is_empty() {
                return None;
            }
            let found = Vec::with_capacity(if is_leaders { deadlines.len() } else { known?.len() });
            if is_leaders {
                deadlines.begin_reading();
            }
            let askers = std::mem::take(&mut self.next);
            self.current = Some(List { askers, revision, found, is_leaders });
        }
        let List { found, is_leaders, .. } = self.current.as_mut()?;
        let has_more = if *is_leaders {
            deadlines.read_on(limits::LEASES_PER_TURN, |at, id| found.push((at, id)))
        } else {
            let (before, last) = (found.len(), found.last().map(|(_, id)| *id));
            let next = known?.iter_after(last).take(limits::LEASES_PER_TURN);
            found.extend(next.map(|(id, ..)| (0, id)));
            found.len() - before == limits::LEASES_PER_TURN
        };
        if has_more {
            return None;
        }
        let List { askers, revision, found, .. } = self.current.take()?;
        Some(Listed { askers, revision, list: LeaseList(found) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use std::sync::Arc;

    const LEASES: i64 = 10 * limits::LEASES_PER_TURN as i64;

    fn asker(slot: usize) -> CommandId {
        CommandId::new(0, slot, 0)
    }

    /// These leases, as the state has them.
    fn known(leases: i64) -> Leases {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let mut known = Leases::default();
        (1..=leases).for_each(|id| known.grant(&mut store, id, 60).unwrap());
        known
    }

    /// A leader of these leases, which have as many seconds as their id, from time 0 on.
    fn leading(leases: i64) -> LeaseDeadlines {
        let mut deadlines = LeaseDeadlines::default();
        deadlines.lead(1, 0);
        let known = |after: Option<i64>| (after.unwrap_or(0) + 1..=leases).map(|id| (id, id, 0));
        while !deadlines.load(known, limits::LEASES_PER_TURN, 0) {}
        deadlines
    }

    /// Issue 14, number 22: all leases were copied in one turn.
    #[test]
    fn a_list_is_made_in_parts_and_describes_one_moment() {
        let (mut deadlines, mut lists) = (leading(LEASES), LeaseLists::default());
        let expected: Vec<(u64, i64)> = (1..=LEASES).map(|id| (1_000 * id.cast_unsigned(), id)).collect();
        lists.ask(asker(1));
        lists.ask(asker(2));
        let mut parts = 0;
        let listed = loop {
            parts += 1;
            if let Some(listed) = lists.go_on(&mut deadlines, None, parts) {
                break listed;
            }
            // Some end, in front of what was read and behind it, some come, some go and
            // come again, some are kept alive.
            deadlines.revoked(parts);
            deadlines.revoked(LEASES - parts);
            deadlines.granted(LEASES + parts, 60, 0);
            deadlines.revoked(LEASES - 100 - parts);
            deadlines.granted(LEASES - 100 - parts, 5, 0);
            let _ = deadlines.renew(LEASES - 200 - parts, 60_000);
            lists.ask(asker(3));
        };
        assert!((10..=12).contains(&parts), "{parts} parts");
        let list = LeaseList(expected);
        assert_eq!(listed, Listed { askers: vec![asker(1), asker(2)], revision: 1, list });
        assert!(!lists.is_empty(), "those who came later get the next one");
    }

    #[test]
    fn a_list_is_begun_again_when_this_member_begins_or_ceases_to_lead() {
        let (mut deadlines, mut lists) = (leading(LEASES), LeaseLists::default());
        lists.ask(asker(1));
        assert_eq!(lists.go_on(&mut deadlines, None, 1), None);
        lists.ask(asker(2));
        lists.begin_again();
        deadlines.lead(2, 0);
        assert_eq!(lists.go_on(&mut deadlines, None, 2), None, "it waits until all are known");
        assert!(deadlines.load(|_| [(7, 5, 0)].into_iter(), 2, 0));
        let list = LeaseList(vec![(5_000, 7)]);
        let askers = vec![asker(1), asker(2)];
        assert_eq!(lists.go_on(&mut deadlines, None, 3), Some(Listed { askers, revision: 3, list }));
        lists.ask(asker(3));
        deadlines.follow();
        assert_eq!(lists.go_on(&mut deadlines, None, 4), None, "it needs the leases of the state");
        let leases = known(2);
        let list = LeaseList(vec![(0, 1), (0, 2)]);
        let listed = Listed { askers: vec![asker(3)], revision: 5, list };
        assert_eq!(lists.go_on(&mut deadlines, Some(&leases), 5), Some(listed));
        assert!(lists.is_empty());
    }

    #[test]
    fn a_member_that_does_not_lead_lists_what_it_knows_in_parts() {
        let (mut deadlines, mut lists) = (LeaseDeadlines::default(), LeaseLists::default());
        let leases = known(2 * limits::LEASES_PER_TURN as i64);
        lists.ask(asker(1));
        let mut listed = || lists.go_on(&mut deadlines, Some(&leases), 1);
        assert_eq!([listed(), listed()], [None, None]);
        let ids: Vec<i64> = listed().unwrap().list.0.into_iter().map(|(_, id)| id).collect();
        assert!(ids.into_iter().eq(1..=2 * limits::LEASES_PER_TURN as i64));
    }
}
