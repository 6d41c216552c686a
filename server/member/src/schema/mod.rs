//! Rows of the small tables beside the key space.

mod auth;

pub use auth::{
    AuthState, auth_state, put_auth_state, put_role, put_user, remove_role, remove_user, role, roles, user,
    users,
};

use prost::Message as _;
use revd_engine::mvcc::{SmallTable, Store, Tables};
use revd_proto::etcdserverpb::{AlarmMember, Member};

use crate::cluster::conf_state::ConfState;
use crate::cluster::membership::Membership;
use crate::cluster::version::{AgreedVersions, ClusterVersion};
use crate::mutants::{self, Mutant};

const CLUSTER_VERSION: &[u8] = b"clusterVersion";
/// The target of a downgrade that is enabled.
const DOWNGRADE: &[u8] = b"downgrade";
const CONF_STATE: &[u8] = b"confState";
/// Before the id of a member that differs from others.
const CORRUPT: &[u8] = b"corrupt/";
/// Before the id of a former member.
const REMOVED: &[u8] = b"removed/";

/// A member's row.
#[must_use]
pub fn member(tables: &Tables, id: u64) -> Option<Member> {
    tables.get(SmallTable::Members, &id.to_be_bytes()).and_then(|row| Member::decode(row).ok())
}

/// All members, by id.
pub fn members(tables: &Tables) -> impl Iterator<Item = Member> {
    tables.rows(SmallTable::Members).filter_map(|(_, row)| Member::decode(row).ok())
}

/// Writes a member's row.
pub fn put_member(store: &mut Store, member: &Member) {
    store.table_put(SmallTable::Members, &member.id.to_be_bytes(), &member.encode_to_vec());
}

/// Removes a member's row; its id stays as that of a former member.
pub fn remove_member(store: &mut Store, id: u64) {
    store.table_remove(SmallTable::Members, &id.to_be_bytes());
    store.table_put(SmallTable::Cluster, &[REMOVED, &id.to_be_bytes()].concat(), &[]);
}

/// Writes the row of a former member that is one again.
pub fn restore_member(store: &mut Store, member: &Member) {
    store.table_remove(SmallTable::Cluster, &[REMOVED, &member.id.to_be_bytes()].concat());
    put_member(store, member);
}

/// Ids of former members.
pub fn removed_members(tables: &Tables) -> impl Iterator<Item = u64> {
    tables.rows(SmallTable::Cluster).filter_map(|(key, _)| {
        let id = key.strip_prefix(REMOVED)?;
        Some(u64::from_be_bytes(id.try_into().ok()?))
    })
}

/// The members and the former ones.
#[must_use]
pub fn membership(tables: &Tables) -> Membership {
    Membership::new(members(tables), removed_members(tables))
}

/// The members' votes. Before there were clusters of several members, no row said so: every member
/// had one.
#[must_use]
pub fn conf_state(tables: &Tables) -> ConfState {
    let row = tables.get(SmallTable::Cluster, CONF_STATE).and_then(ConfState::decode);
    row.unwrap_or_else(|| ConfState::of_voters(members(tables).map(|member| member.id).collect()))
}

/// Writes the row of votes.
pub fn put_conf_state(store: &mut Store, state: &ConfState) {
    let is_there = store.tables().get(SmallTable::Cluster, CONF_STATE).is_some();
    if !(is_there && mutants::is(Mutant::ConfStateNotSaved)) {
        store.table_put(SmallTable::Cluster, CONF_STATE, &state.encode());
    }
}

/// The cluster's version, and the downgrade that is enabled.
#[must_use]
pub fn versions(tables: &Tables) -> AgreedVersions {
    let row = |key| {
        let row = tables.get(SmallTable::Cluster, key)?;
        ClusterVersion::parse(std::str::from_utf8(row).ok()?)
    };
    AgreedVersions { cluster: row(CLUSTER_VERSION), downgrade: row(DOWNGRADE) }
}

/// Writes the cluster's version.
pub fn put_cluster_version(store: &mut Store, version: ClusterVersion) {
    store.table_put(SmallTable::Cluster, CLUSTER_VERSION, version.with_patch().as_bytes());
}

/// Writes the target of a downgrade; without one, none is enabled.
pub fn put_downgrade(store: &mut Store, target: Option<ClusterVersion>) {
    match target {
        Some(target) => store.table_put(SmallTable::Cluster, DOWNGRADE, target.with_patch().as_bytes()),
        None => store.table_remove(SmallTable::Cluster, DOWNGRADE),
    }
}

fn alarm_key(alarm: &AlarmMember) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&alarm.member_id.to_be_bytes());
    key[8..].copy_from_slice(&alarm.alarm.to_be_bytes());
    key
}

/// Members that were compared with others and differ.
pub fn corrupt_members(tables: &Tables) -> impl Iterator<Item = u64> {
    tables.rows(SmallTable::Cluster).filter_map(|(key, _)| {
        let id = key.strip_prefix(CORRUPT)?;
        Some(u64::from_be_bytes(id.try_into().ok()?))
    })
}

/// Notes that this member differs.
pub fn put_corrupt_member(store: &mut Store, id: u64) {
    store.table_put(SmallTable::Cluster, &[CORRUPT, &id.to_be_bytes()].concat(), &[]);
}

/// Forgets it.
pub fn remove_corrupt_member(store: &mut Store, id: u64) {
    store.table_remove(SmallTable::Cluster, &[CORRUPT, &id.to_be_bytes()].concat());
}

/// Writes an alarm's row.
pub fn put_alarm(store: &mut Store, alarm: &AlarmMember) {
    store.table_put(SmallTable::Alarms, &alarm_key(alarm), &alarm.encode_to_vec());
}

/// Removes an alarm's row.
pub fn remove_alarm(store: &mut Store, alarm: &AlarmMember) {
    store.table_remove(SmallTable::Alarms, &alarm_key(alarm));
}

/// The raised alarms.
pub fn alarms(tables: &Tables) -> impl Iterator<Item = AlarmMember> {
    tables.rows(SmallTable::Alarms).filter_map(|(_, row)| AlarmMember::decode(row).ok())
}
