//! Messages of other members that raft-rs may be given.
//!
//! raft-rs ends the process when a message contradicts what must be true among members that keep
//! their promises. A member that has lost its disk, or a program that only says that it is one,
//! must not have that power: such messages are left out.

use raft::eraftpb::{Message, MessageType};
use raft::{INVALID_ID, Raft, Storage};

/// Terms and indexes above this are of no cluster: a term every microsecond takes 100,000 years to
/// get there.
const NUMBER_MAX: u64 = 1 << 61;

/// Whether raft may be given this message of another member.
pub(super) fn may_step<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let numbers = [
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
    ];
    let is_ours = message.to == raft.id && message.from != INVALID_ID && message.from != raft.id;
    if !is_ours || numbers.iter().any(|number| *number > NUMBER_MAX) {
        return false;
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => is_next_part(message) && !contradicts_commits(raft, message),
        // A leader names no commit index that this member has not acknowledged.
        MessageType::MsgHeartbeat => message.commit <= raft.raft_log.last_index(),
        MessageType::MsgAppendResponse => {
            let last = raft.raft_log.last_index();
            message.index <= last && message.reject_hint <= last && message.request_snapshot == 0
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp => message.entries.len() == 1,
        // A member that is alone has nobody to take over from.
        MessageType::MsgTimeoutNow => !raft.prs().is_singleton(),
        MessageType::MsgRequestVote
        | MessageType::MsgRequestVoteResponse
        | MessageType::MsgRequestPreVote
        | MessageType::MsgRequestPreVoteResponse
        | MessageType::MsgHeartbeatResponse => true,
        // Commands come as forwards, and a transfer is asked of the leader itself. Snapshots are
        // not sent yet.
        _ => false,
    }
}

/// Entries follow the one that the message names, without a gap.
fn is_next_part(message: &Message) -> bool {
    let mut before = (message.index, message.log_term);
    message.entries.iter().all(|entry| {
        let is_next = entry.index == before.0 + 1 && entry.term >= before.1 && entry.term <= message.term;
        before = (entry.index, entry.term);
        is_next
    })
}

/// An entry would replace one that is committed here.
fn contradicts_commits<S: Storage>(raft: &Raft<S>, message: &Message) -> bool {
    let log = &raft.raft_log;
    log.match_term(message.index, message.log_term)
        && message
            .entries
            .iter()
            .take_while(|entry| entry.index <= log.committed)
            .any(|entry| entry.index >= log.first_index() && !log.match_term(entry.index, entry.term))
}
