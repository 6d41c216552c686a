//! A member that goes on alone (`--force-new-cluster`) with the data of a cluster that is lost: its
//! data may be the last copy.

use bytes::Bytes;
use revd_engine::mvcc::Store;

use crate::apply::command::{self, Origin};
use crate::cluster::initial::InitialCluster;
use crate::cluster::membership::{Member, MemberChange};
use crate::cores::member_changes::FORCED_BOOT;
use crate::raft::conf_change::batch_in;
use crate::schema;
use crate::wal::LogEntry;
use crate::wal::reader::RecoveredLog;

/// The entry type of changes of members.
const CHANGE: u8 = 1;

/// Empties the entries that would remove this member from the cluster that is lost; empty ones
/// change nothing. A member that goes on alone has them at the end of its log; at a later start
/// they are in front of the changes that made it alone, and their file still has them.
pub(super) fn keep_member(log: &mut RecoveredLog, forces_new: bool) {
    let own = log.owner.member;
    let forced = Origin { member: own, boot: FORCED_BOOT };
    let is_forced = |entry: &&LogEntry| change_in(entry).is_some_and(|(origin, _)| origin == forced);
    let last = if forces_new { log.entries.back() } else { log.entries.iter().rfind(is_forced) };
    let Some(last) = last.map(|entry| entry.index) else { return };
    for entry in log.entries.iter_mut().filter(|entry| entry.index <= last) {
        if change_in(entry).is_some_and(|(_, change)| change == MemberChange::Remove { id: own }) {
            entry.data = Bytes::new();
        }
    }
}

/// A member whose own removal is in its state already is a member again, with the name and the URLs
/// of its flags. That is durable with the checkpoint of its first entry; a member that ends before
/// is forced once more.
pub(super) fn restore_member(store: &mut Store, own: u64, initial: &InitialCluster) {
    if schema::membership(store.tables()).is_removed(own) {
        let (name, peer_ur_ls) = (initial.name.clone(), initial.advertised.clone());
        schema::restore_member(store, &Member { id: own, name, peer_ur_ls, ..Member::default() });
    }
}

/// A change of members, and where it comes from.
fn change_in(entry: &LogEntry) -> Option<(Origin, MemberChange)> {
    if entry.kind != CHANGE {
        return None;
    }
    let (origin, command) = command::decode_member_change(&batch_in(entry.data.clone()))?;
    Some((origin, command.member_change()?.ok()?))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use revd_proto::etcdserverpb::MemberRemoveRequest;

    use super::*;
    use crate::apply::command::{Command, CommandId, Kind};
    use crate::cluster::Identity;
    use crate::raft::conf_change::{VoteChange, entry_of};
    use crate::wal::birth::empty_log;

    /// Removals of these members, from these runs of member 1.
    fn log_of(removals: &[(u64, u64)]) -> RecoveredLog {
        let mut log = empty_log(Identity { cluster: 9, member: 1 });
        let entry = |(index, (id, boot)): (u64, &(u64, u64))| {
            let payload = MemberRemoveRequest { id: *id }.encode_to_vec().into();
            let command = Command { id: CommandId::new(0, 0, 0), kind: Kind::MemberRemove, payload };
            let batch = command::encode(Origin { member: 1, boot: *boot }, &[command]).into();
            LogEntry { index, term: 1, kind: CHANGE, data: entry_of(VoteChange::Gone(*id), batch).data }
        };
        log.entries = (2..).zip(removals).map(entry).collect();
        log
    }

    /// Indexes of entries that change nothing.
    fn emptied(mut log: RecoveredLog, forces_new: bool) -> Vec<u64> {
        keep_member(&mut log, forces_new);
        log.entries.iter().filter(|entry| entry.data.is_empty()).map(|entry| entry.index).collect()
    }

    #[test]
    fn the_last_copy_of_the_data_is_not_removed() {
        let lost = [(2, 7), (1, 7), (3, 7)];
        assert_eq!(emptied(log_of(&lost), false), [0; 0], "its cluster is not lost");
        assert_eq!(emptied(log_of(&lost), true), [3]);
        // Later starts come to the same; then it can be removed as any other member.
        let alone = [(2, 7), (1, 7), (3, FORCED_BOOT), (4, FORCED_BOOT), (1, 8)];
        assert_eq!(emptied(log_of(&alone), false), [3]);
        assert_eq!(emptied(log_of(&alone), true), [3, 6]);
        assert_eq!(emptied(log_of(&[]), true), [0; 0]);
    }
}
