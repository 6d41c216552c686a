//! A message of raft, on its way between members.
//!
//! ```text
//! all integers little-endian
//!   0  u8   kind, by the numbers of `KINDS`
//!   1  u8   flags: 1 rejected, 2 a snapshot follows the entries
//!   2  u64  to, from, term, log term, index, commit, commit term, reject hint, request snapshot
//!  74  i64  priority
//!  82  u32  bytes of the context; the context
//!      u32  number of entries; entries, each:
//!             u64 term, u64 index, u8 kind, u32 bytes of its data; the data
//!      with a snapshot:
//!             u64 index, u64 term, u8 1 if the joint configuration is left by itself,
//!             4 lists of members (voters, learners, outgoing voters, next learners):
//!               u16 number of members, u64 each
//!             u32 bytes of its data; the data
//! ```
//!
//! It is decoded by hand: the bytes come from the network, and rust-protobuf 2, whose types raft-rs
//! uses, recurses without a bound (RUSTSEC-2024-0437).

use std::fmt;

use bytes::{Buf, BufMut, Bytes};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot, SnapshotMetadata};

use crate::limits;
use crate::raft::admission::is_next_part;

/// A message of raft. raft-rs's own type stays inside this folder.
#[derive(Debug, Clone, PartialEq)]
pub struct RaftMessage(pub(super) Message);

/// The kinds that members send to each other, with their numbers on the wire: never reuse one.
/// Read indexes are asked for without raft-rs. Proposals are not among them: a follower forwards
/// its commands, and raft-rs would have rust-protobuf parse what a proposal says about members.
const KINDS: &[(u8, MessageType)] = &[
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgRequestPreVote),
    (6, MessageType::MsgRequestPreVoteResponse),
    (7, MessageType::MsgHeartbeat),
    (8, MessageType::MsgHeartbeatResponse),
    (9, MessageType::MsgSnapshot),
    (10, MessageType::MsgTransferLeader),
    (11, MessageType::MsgTimeoutNow),
];

/// The kinds of entries, with their numbers on the wire, which are those in the log.
const ENTRY_KINDS: &[(u8, EntryType)] =
    &[(0, EntryType::EntryNormal), (1, EntryType::EntryConfChange), (2, EntryType::EntryConfChangeV2)];

const IS_REJECTED: u8 = 1;
const HAS_SNAPSHOT: u8 = 2;
const FIXED: usize = 1 + 1 + 9 * 8 + 8;
const ENTRY_HEADER: usize = 8 + 8 + 1 + 4;

impl fmt::Display for RaftMessage {
    /// In short, for people.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = &self.0;
        let kind = format!("{:?}", message.get_msg_type());
        write!(out, "{} of term {}", kind.trim_start_matches("Msg"), message.term)?;
        match message.get_msg_type() {
            MessageType::MsgAppend => {
                write!(out, ", entries behind {} of term {}:", message.index, message.log_term)?;
                message.entries.iter().try_for_each(|entry| write!(out, " {}", entry.index))?;
            }
            MessageType::MsgAppendResponse => {
                write!(out, ", index {}", message.index)?;
            }
            _ => {}
        }
        if message.commit > 0 {
            write!(out, ", commit {}", message.commit)?;
        }
        if message.reject {
            write!(out, ", rejected, hint {}", message.reject_hint)?;
        }
        Ok(())
    }
}

impl RaftMessage {
    /// The member it is for.
    #[must_use]
    pub fn to(&self) -> u64 {
        self.0.to
    }

    /// The member that has sent it.
    #[must_use]
    pub fn from(&self) -> u64 {
        self.0.from
    }

    /// The term that the sender was in.
    pub(crate) fn term(&self) -> u64 {
        self.0.term
    }

    /// Bytes that [`RaftMessage::encode`] appends, or a few more.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let entries = self.0.get_entries().iter().map(|entry| ENTRY_HEADER + entry.data.len());
        let lists = |conf: &ConfState| {
            conf.voters.len() + conf.learners.len() + conf.voters_outgoing.len() + conf.learners_next.len()
        };
        let snapshot = self.0.snapshot.as_ref().map_or(0, |snapshot| {
            8 + 8 + 1 + 4 * 2 + 8 * lists(snapshot.get_metadata().get_conf_state()) + 4 + snapshot.data.len()
        });
        FIXED + 4 + self.0.context.len() + 4 + entries.sum::<usize>() + snapshot
    }

    /// Appends its bytes.
    ///
    /// # Panics
    /// For a message that members do not send to each other, or one of four gigabytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let message = &self.0;
        let kind = KINDS.iter().find(|(_, kind)| *kind == message.get_msg_type());
        let (kind, _) =
            kind.unwrap_or_else(|| panic!("{:?} is no message for others", message.get_msg_type()));
        let snapshot = message.snapshot.as_ref();
        out.put_u8(*kind);
        out.put_u8(
            if message.reject { IS_REJECTED } else { 0 } | if snapshot.is_some() { HAS_SNAPSHOT } else { 0 },
        );
        for number in [message.to, message.from, message.term, message.log_term, message.index] {
            out.put_u64_le(number);
        }
        for number in [message.commit, message.commit_term, message.reject_hint, message.request_snapshot] {
            out.put_u64_le(number);
        }
        out.put_i64_le(message.priority);
        put_bytes(out, &message.context);
        out.put_u32_le(u32::try_from(message.get_entries().len()).expect("entries are bounded"));
        for entry in message.get_entries() {
            assert!(entry.context.is_empty(), "entry {}: the log has no place for a context", entry.index);
            out.put_u64_le(entry.term);
            out.put_u64_le(entry.index);
            let kind = ENTRY_KINDS.iter().find(|(_, kind)| *kind == entry.get_entry_type());
            out.put_u8(kind.expect("every kind is listed").0);
            put_bytes(out, &entry.data);
        }
        if let Some(snapshot) = snapshot {
            put_snapshot(out, snapshot);
        }
    }

    /// Decodes a whole message; its entries share the buffer. None for anything that raft would
    /// not have sent.
    #[must_use]
    pub fn decode(mut bytes: Bytes) -> Option<Self> {
        if bytes.len() < FIXED {
            return None;
        }
        let mut message = Message::default();
        let kind = bytes.get_u8();
        message.set_msg_type(KINDS.iter().find(|(number, _)| *number == kind)?.1);
        let flags = bytes.get_u8();
        if flags & !(IS_REJECTED | HAS_SNAPSHOT) != 0 {
            return None;
        }
        message.reject = flags & IS_REJECTED != 0;
        message.to = bytes.get_u64_le();
        message.from = bytes.get_u64_le();
        message.term = bytes.get_u64_le();
        message.log_term = bytes.get_u64_le();
        message.index = bytes.get_u64_le();
        message.commit = bytes.get_u64_le();
        message.commit_term = bytes.get_u64_le();
        message.reject_hint = bytes.get_u64_le();
        message.request_snapshot = bytes.get_u64_le();
        message.priority = bytes.get_i64_le();
        message.context = take_bytes(&mut bytes)?;
        message.set_entries(take_entries(&mut bytes)?.into());
        if flags & HAS_SNAPSHOT != 0 {
            message.set_snapshot(take_snapshot(&mut bytes)?);
        }
        (bytes.is_empty() && is_sound(&message)).then_some(Self(message))
    }
}

/// Whether raft-rs can take it: it stops the process where these do not hold.
fn is_sound(message: &Message) -> bool {
    let (kind, entries) = (message.get_msg_type(), message.get_entries());
    message.from != 0
        && message.to != 0
        && (kind == MessageType::MsgSnapshot) == message.snapshot.is_some()
        && (kind == MessageType::MsgAppend || entries.is_empty())
        && (kind != MessageType::MsgAppend || is_next_part(message))
        // raft-rs takes a message without a term for one of its own program.
        && (message.term != 0 || kind == MessageType::MsgTransferLeader)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.put_u32_le(u32::try_from(bytes.len()).expect("a message is bounded"));
    out.put_slice(bytes);
}

fn take_bytes(bytes: &mut Bytes) -> Option<Bytes> {
    let len = bytes.try_get_u32_le().ok()? as usize;
    (len <= bytes.len()).then(|| bytes.split_to(len))
}

fn take_entries(bytes: &mut Bytes) -> Option<Vec<Entry>> {
    let count = bytes.try_get_u32_le().ok()? as usize;
    if count.saturating_mul(size_of::<Entry>()) > bytes.len().max(limits::PEER_ENTRIES_BYTES) {
        return None;
    }
    // Each takes at least its header: a false count reserves no more than the message has room for.
    let mut entries = Vec::with_capacity(count.min(bytes.len() / ENTRY_HEADER));
    for _ in 0..count {
        let mut entry = Entry {
            term: bytes.try_get_u64_le().ok()?,
            index: bytes.try_get_u64_le().ok()?,
            ..Entry::default()
        };
        let kind = bytes.try_get_u8().ok()?;
        entry.set_entry_type(ENTRY_KINDS.iter().find(|(number, _)| *number == kind)?.1);
        entry.data = take_bytes(bytes)?;
        entries.push(entry);
    }
    Some(entries)
}

fn put_snapshot(out: &mut Vec<u8>, snapshot: &Snapshot) {
    let metadata = snapshot.get_metadata();
    let conf = metadata.get_conf_state();
    out.put_u64_le(metadata.index);
    out.put_u64_le(metadata.term);
    out.put_u8(u8::from(conf.auto_leave));
    for members in [&conf.voters, &conf.learners, &conf.voters_outgoing, &conf.learners_next] {
        out.put_u16_le(u16::try_from(members.len()).expect("members are bounded"));
        members.iter().for_each(|member| out.put_u64_le(*member));
    }
    put_bytes(out, &snapshot.data);
}

fn take_snapshot(bytes: &mut Bytes) -> Option<Snapshot> {
    let mut metadata = SnapshotMetadata {
        index: bytes.try_get_u64_le().ok()?,
        term: bytes.try_get_u64_le().ok()?,
        ..SnapshotMetadata::default()
    };
    let auto_leave = match bytes.try_get_u8().ok()? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let conf = ConfState {
        auto_leave,
        voters: take_members(bytes)?,
        learners: take_members(bytes)?,
        voters_outgoing: take_members(bytes)?,
        learners_next: take_members(bytes)?,
        ..ConfState::default()
    };
    metadata.set_conf_state(conf);
    let mut snapshot = Snapshot { data: take_bytes(bytes)?, ..Snapshot::default() };
    snapshot.set_metadata(metadata);
    Some(snapshot)
}

fn take_members(bytes: &mut Bytes) -> Option<Vec<u64>> {
    let count = usize::from(bytes.try_get_u16_le().ok()?);
    if bytes.len() < count * 8 {
        return None;
    }
    Some((0..count).map(|_| bytes.get_u64_le()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: MessageType) -> Message {
        let mut message = Message { to: 2, from: 1, term: 9, ..Message::default() };
        message.set_msg_type(kind);
        message
    }

    fn entry(index: u64, term: u64, kind: EntryType, data: &'static [u8]) -> Entry {
        let mut entry = Entry { index, term, data: Bytes::from_static(data), ..Entry::default() };
        entry.set_entry_type(kind);
        entry
    }

    /// One of each kind, with every field that it has.
    fn samples() -> Vec<RaftMessage> {
        let mut samples: Vec<Message> = KINDS.iter().map(|(_, kind)| message(*kind)).collect();
        for sample in &mut samples {
            sample.index = 41;
            sample.log_term = 7;
            sample.commit = 40;
            sample.context = Bytes::from_static(b"context");
            match sample.get_msg_type() {
                MessageType::MsgAppend => sample.set_entries(
                    vec![
                        entry(42, 7, EntryType::EntryNormal, b"one"),
                        entry(43, 8, EntryType::EntryConfChange, b""),
                        entry(44, 9, EntryType::EntryConfChangeV2, b"three"),
                    ]
                    .into(),
                ),
                MessageType::MsgAppendResponse => {
                    sample.reject = true;
                    sample.reject_hint = 39;
                    sample.request_snapshot = 5;
                    sample.commit_term = 6;
                    sample.priority = -3;
                }
                MessageType::MsgSnapshot => {
                    let conf = ConfState {
                        voters: vec![1, 2, 3],
                        learners: vec![u64::MAX],
                        voters_outgoing: vec![1, 2],
                        learners_next: vec![3],
                        auto_leave: true,
                        ..ConfState::default()
                    };
                    let mut metadata = SnapshotMetadata { index: 40, term: 7, ..SnapshotMetadata::default() };
                    metadata.set_conf_state(conf);
                    let data = Bytes::from_static(b"data");
                    sample.set_snapshot(Snapshot { data, ..Snapshot::default() });
                    sample.mut_snapshot().set_metadata(metadata);
                }
                _ => {}
            }
        }
        samples.into_iter().map(RaftMessage).collect()
    }

    /// Each takes several times its bytes in memory.
    #[test]
    fn more_small_entries_than_members_send_are_refused() {
        let most = limits::PEER_ENTRIES_BYTES / size_of::<Entry>();
        let append = |entries: usize| {
            let mut sample = message(MessageType::MsgAppend);
            let indexes = 1..=entries as u64;
            sample.set_entries(indexes.map(|index| entry(index, 1, EntryType::EntryNormal, b"")).collect());
            Bytes::from(encoded(&RaftMessage(sample)))
        };
        assert!(RaftMessage::decode(append(most)).is_some());
        assert!(RaftMessage::decode(append(most + 1)).is_none());
    }

    fn encoded(message: &RaftMessage) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out);
        assert_eq!(out.len(), message.encoded_len());
        out
    }

    #[test]
    fn every_kind_survives_the_round_trip() {
        for sample in samples() {
            let bytes = Bytes::from(encoded(&sample));
            assert_eq!(RaftMessage::decode(bytes).as_ref(), Some(&sample));
        }
    }

    #[test]
    fn every_cut_is_refused_and_no_flip_panics() {
        for sample in samples() {
            let bytes = encoded(&sample);
            for len in 0..bytes.len() {
                assert_eq!(RaftMessage::decode(Bytes::copy_from_slice(&bytes[..len])), None, "cut at {len}");
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(RaftMessage::decode(longer.into()), None, "one byte more");
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut bad = bytes.clone();
                    bad[at] ^= 1 << bit;
                    if let Some(message) = RaftMessage::decode(Bytes::from(bad.clone())) {
                        assert_eq!(encoded(&message), bad, "one meaning, one form");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_lie_reserve_nothing() {
        let mut bytes = encoded(&RaftMessage(message(MessageType::MsgAppend)));
        let entries = FIXED + 4;
        bytes[entries..entries + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(RaftMessage::decode(bytes.into()), None);
        let mut bytes = encoded(&RaftMessage(message(MessageType::MsgHeartbeat)));
        bytes[FIXED..FIXED + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(RaftMessage::decode(bytes.into()), None);
    }

    #[test]
    fn messages_that_would_stop_raft_are_refused() {
        let refused = |change: fn(&mut Message)| {
            let mut sample = samples().swap_remove(0).0;
            change(&mut sample);
            assert_eq!(RaftMessage::decode(encoded(&RaftMessage(sample.clone())).into()), None, "{sample:?}");
        };
        refused(|message| message.index = 40); // a gap before the first entry
        refused(|message| message.mut_entries()[1].index = 42); // the same index twice
        refused(|message| message.mut_entries()[2].term = 10); // of a later term than its leader's
        refused(|message| message.mut_entries()[1].term = 6); // terms go back
        refused(|message| message.index = u64::MAX);
        refused(|message| message.from = 0);
        refused(|message| message.term = 0);
        refused(|message| message.set_msg_type(MessageType::MsgHeartbeat)); // entries out of place
        refused(|message| message.set_msg_type(MessageType::MsgSnapshot)); // without one
        refused(|message| message.set_snapshot(Snapshot::default()));
    }

    #[test]
    #[expect(clippy::should_panic_without_expect, reason = "any panic will do")]
    #[should_panic]
    fn a_proposal_is_no_message_for_others() {
        encoded(&RaftMessage(message(MessageType::MsgPropose)));
    }

    #[test]
    fn a_message_is_shown_with_the_fields_that_it_has() {
        let mut append = message(MessageType::MsgAppend);
        (append.index, append.log_term, append.commit) = (41, 7, 40);
        append
            .set_entries([42, 43].map(|index| entry(index, 9, EntryType::EntryNormal, b"")).to_vec().into());
        let mut response = message(MessageType::MsgAppendResponse);
        (response.index, response.reject, response.reject_hint) = (41, true, 39);
        for (message, text) in [
            (append, "Append of term 9, entries behind 41 of term 7: 42 43, commit 40"),
            (response, "AppendResponse of term 9, index 41, rejected, hint 39"),
            (message(MessageType::MsgRequestVote), "RequestVote of term 9"),
        ] {
            assert_eq!(RaftMessage(message).to_string(), text);
        }
    }
}
