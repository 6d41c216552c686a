//! Lists of all leases: each is made a part at a time, so that others are served meanwhile, and
//! describes the moment in which it was begun.

use crate::apply::command::CommandId;
use crate::apply::lease_reports::LeaseList;
use crate::error::Error;
use crate::lease::LeaseDeadlines;
use crate::limits;

/// Leader's view: who wants to know all leases, and the list that is being made: one
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
}

/// A list that is made, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The callers to answer.
    pub askers: Vec<CommandId>,
    /// The revision when it was begun.
    pub revision: i64,
    /// The list.
    pub result: Result<LeaseList, Error>,
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

    /// Goes on with the list that is being made, or begins the next one.
    pub(super) fn go_on(&mut self, deadlines: &mut LeaseDeadlines, revision: i64) -> Option<Listed> {
        if deadlines.is_loading() {
            return None;
        }
        if self.current.is_none() {
            if self.next.is_empty() {
                return None;
            }
            let askers = std::mem::take(&mut self.next);
            if deadlines.term().is_none() {
                return Some(Listed { askers, revision, result: Err(Error::NoLeader) });
            }
            deadlines.begin_reading();
            self.current = Some(List { askers, revision, found: Vec::with_capacity(deadlines.len()) });
        }
        let List { found, .. } = self.current.as_mut()?;
        if deadlines.read_on(limits::LEASES_PER_TURN, |at, id| found.push((at, id))) {
            return None;
        }
        let List { askers, revision, found } = self.current.take()?;
        Some(Listed { askers, revision, result: Ok(LeaseList(found)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASES: i64 = 10 * limits::LEASES_PER_TURN as i64;

    fn asker(slot: usize) -> CommandId {
        CommandId::new(0, slot, 0)
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
            if let Some(listed) = lists.go_on(&mut deadlines, parts) {
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
        let result = Ok(LeaseList(expected));
        assert_eq!(listed, Listed { askers: vec![asker(1), asker(2)], revision: 1, result });
        assert!(!lists.is_empty(), "those who came later get the next one");
    }

    #[test]
    fn a_list_is_begun_again_under_a_new_leader_and_refused_without_one() {
        let (mut deadlines, mut lists) = (leading(LEASES), LeaseLists::default());
        lists.ask(asker(1));
        assert_eq!(lists.go_on(&mut deadlines, 1), None);
        lists.ask(asker(2));
        lists.begin_again();
        deadlines.lead(2, 0);
        assert_eq!(lists.go_on(&mut deadlines, 2), None, "it waits until all are known");
        assert!(deadlines.load(|_| [(7, 5, 0)].into_iter(), 2, 0));
        let result = Ok(LeaseList(vec![(5_000, 7)]));
        let askers = vec![asker(1), asker(2)];
        assert_eq!(lists.go_on(&mut deadlines, 3), Some(Listed { askers, revision: 3, result }));
        lists.ask(asker(3));
        deadlines.follow();
        let refused = Listed { askers: vec![asker(3)], revision: 4, result: Err(Error::NoLeader) };
        assert_eq!(lists.go_on(&mut deadlines, 4), Some(refused));
        assert!(lists.is_empty());
    }
}
