//! Alarms: conditions of a member that the whole cluster has to heed,
//! until an operator clears them.

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{Store, Tables};
use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{AlarmMember, AlarmRequest, AlarmResponse, AlarmType};

use crate::schema;

/// Which alarms are raised by any member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Raised {
    /// A member has no space left.
    pub no_space: bool,
    /// A member's data is damaged.
    pub corrupt: bool,
}

impl Raised {
    /// The alarms in the tables.
    #[must_use]
    pub fn of(tables: &Tables) -> Self {
        let mut raised = Self::default();
        for alarm in schema::alarms(tables) {
            raised.no_space |= alarm.alarm == AlarmType::Nospace as i32;
            raised.corrupt |= alarm.alarm == AlarmType::Corrupt as i32;
        }
        raised
    }
}

/// The members that were compared with others and differ, until their alarm is cleared; 0 stands
/// for any of them.
#[must_use]
pub fn corrupt_members(tables: &Tables) -> Vec<u64> {
    schema::corrupt_members(tables).collect()
}

/// The payload of a command that says so of a member.
#[must_use]
pub fn raise_corrupt(member: u64) -> Bytes {
    let (action, alarm) = (AlarmAction::Activate as i32, AlarmType::Corrupt as i32);
    AlarmRequest { action, member_id: member, alarm }.encode_to_vec().into()
}

/// Raises or clears an alarm; the reply names it if it was, or is now, there. `is_found`: members
/// were compared. An alarm that a client raises does not make a member corrupt.
pub(super) fn set(store: &mut Store, request: &AlarmRequest, is_found: bool) -> Bytes {
    let is_about_corruption = request.alarm == AlarmType::Corrupt as i32;
    if is_found && is_about_corruption {
        schema::put_corrupt_member(store, request.member_id);
    } else if is_about_corruption && request.action == AlarmAction::Deactivate as i32 {
        schema::remove_corrupt_member(store, request.member_id);
    }
    let alarm = AlarmMember { member_id: request.member_id, alarm: request.alarm };
    let is_raised = schema::alarms(store.tables()).any(|raised| raised == alarm);
    let mut alarms = Vec::new();
    if request.action == AlarmAction::Activate as i32 {
        if request.alarm != AlarmType::None as i32 {
            if !is_raised {
                schema::put_alarm(store, &alarm);
            }
            alarms.push(alarm);
        }
    } else if request.action == AlarmAction::Deactivate as i32 && is_raised {
        schema::remove_alarm(store, &alarm);
        alarms.push(alarm);
    }
    AlarmResponse { header: None, alarms }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;

    const NONE: AlarmType = AlarmType::None;
    const SPACE: AlarmType = AlarmType::Nospace;
    const CORRUPT: AlarmType = AlarmType::Corrupt;

    #[test]
    fn each_alarm_of_each_member_is_raised_and_cleared_by_itself() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let (raise, clear) = (AlarmAction::Activate, AlarmAction::Deactivate);
        // The request, whether the reply names it, and the alarms that there are then.
        let steps = [
            (clear, 1, SPACE, false, vec![]),
            (raise, 1, NONE, false, vec![]),
            (raise, 1, SPACE, true, vec![(1, SPACE)]),
            (raise, 1, SPACE, true, vec![(1, SPACE)]),
            (AlarmAction::Get, 1, SPACE, false, vec![(1, SPACE)]),
            (clear, 2, SPACE, false, vec![(1, SPACE)]),
            (clear, 1, CORRUPT, false, vec![(1, SPACE)]),
            (raise, 2, SPACE, true, vec![(1, SPACE), (2, SPACE)]),
            (raise, 1, CORRUPT, true, vec![(1, SPACE), (1, CORRUPT), (2, SPACE)]),
            (clear, 1, SPACE, true, vec![(1, CORRUPT), (2, SPACE)]),
            (clear, 2, SPACE, true, vec![(1, CORRUPT)]),
            (clear, 1, CORRUPT, true, vec![]),
        ];
        for (number, (action, member_id, alarm, is_named, expected)) in steps.into_iter().enumerate() {
            let request = AlarmRequest { action: action as i32, member_id, alarm: alarm as i32 };
            let reply = AlarmResponse::decode(set(&mut store, &request, false)).unwrap();
            let named = AlarmMember { member_id, alarm: alarm as i32 };
            assert_eq!(reply.alarms, is_named.then_some(named).as_slice(), "step {number}");
            let alarms: Vec<_> = schema::alarms(store.tables()).collect();
            let raised: Vec<_> = alarms.iter().map(|one| (one.member_id, one.alarm())).collect();
            assert_eq!(raised, expected, "step {number}");
            let has = |alarm| expected.iter().any(|(_, raised)| *raised == alarm);
            let expected = Raised { no_space: has(SPACE), corrupt: has(CORRUPT) };
            assert_eq!(Raised::of(store.tables()), expected, "step {number}");
            assert_eq!(corrupt_members(store.tables()), [0; 0], "no members were compared");
        }
    }

    #[test]
    fn a_member_that_was_found_to_differ_does_so_until_its_alarm_is_cleared() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        for member in [3, 0] {
            let request = AlarmRequest::decode(raise_corrupt(member)).unwrap();
            set(&mut store, &request, true);
        }
        assert_eq!(corrupt_members(store.tables()), [0, 3]);
        assert!(Raised::of(store.tables()).corrupt);
        let clear = |member_id, alarm: AlarmType| {
            let action = AlarmAction::Deactivate as i32;
            AlarmRequest { action, member_id, alarm: alarm as i32 }
        };
        set(&mut store, &clear(3, SPACE), false);
        assert_eq!(corrupt_members(store.tables()), [0, 3], "that is another alarm");
        set(&mut store, &clear(3, CORRUPT), false);
        assert_eq!(corrupt_members(store.tables()), [0]);
        set(&mut store, &clear(0, CORRUPT), false);
        assert_eq!(corrupt_members(store.tables()), [0; 0]);
        assert!(!Raised::of(store.tables()).corrupt);
    }
}
