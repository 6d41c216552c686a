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
