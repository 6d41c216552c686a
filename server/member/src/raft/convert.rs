//! The member's own types as those of raft-rs, and back.

use raft::eraftpb::{self, Entry, EntryType};

use crate::cluster::conf_state::ConfState;
use crate::wal::LogEntry;

pub(super) fn conf_state_to_raft(state: &ConfState) -> eraftpb::ConfState {
    let mut out = eraftpb::ConfState { auto_leave: state.auto_leave, ..eraftpb::ConfState::default() };
    out.voters.clone_from(&state.voters);
    out.learners.clone_from(&state.learners);
    out.voters_outgoing.clone_from(&state.voters_outgoing);
    out.learners_next.clone_from(&state.learners_next);
    out
}

/// raft-rs lists members in another order on each member; the rows of all members are the same.
pub(super) fn conf_state_from_raft(state: &eraftpb::ConfState) -> ConfState {
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable(); // raft has them in an order that each member's past has made
        ids
    };
    ConfState {
        voters: sorted(&state.voters),
        learners: sorted(&state.learners),
        voters_outgoing: sorted(&state.voters_outgoing),
        learners_next: sorted(&state.learners_next),
        auto_leave: state.auto_leave,
    }
}

pub(super) fn to_raft(entry: &LogEntry) -> Entry {
    let mut out = Entry { index: entry.index, term: entry.term, ..Entry::default() };
    out.set_entry_type(match entry.kind {
        1 => EntryType::EntryConfChange,
        2 => EntryType::EntryConfChangeV2,
        _ => EntryType::EntryNormal,
    });
    out.data = entry.data.clone();
    out
}

pub(super) fn from_raft(entry: Entry) -> LogEntry {
    let kind = match entry.get_entry_type() {
        EntryType::EntryNormal => 0,
        EntryType::EntryConfChange => 1,
        EntryType::EntryConfChangeV2 => 2,
    };
    LogEntry { index: entry.index, term: entry.term, kind, data: entry.data }
}

/// Bytes that an entry takes in memory.
pub(super) fn bytes_of(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.data.len() + entry.context.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_all_members_list_votes_in_one_order() {
        let mut state = eraftpb::ConfState { voters: vec![9, 1, 4], ..eraftpb::ConfState::default() };
        state.learners = vec![8, 7];
        let read = conf_state_from_raft(&state);
        assert_eq!((&read.voters[..], &read.learners[..]), (&[1, 4, 9][..], &[7, 8][..]));
    }
}
