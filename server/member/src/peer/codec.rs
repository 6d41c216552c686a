//! Messages between members as bytes.
//!
//! ```text
//! payload of a frame: messages, each (all integers little-endian)
//!   0  u8   kind
//!   1  u32  length of the body
//!   5  body:
//!        1 raft          `raft/message.rs`
//!        2 forward       an entry's data, `apply/command.rs`
//!        3 refused       error; u64 command ids up to the end
//!        4 lease ask     u64 command id, u8 kind: 1 keep alive (i64 lease),
//!                        2 remaining (i64 lease), 3 list,
//!                        4 time to live (i64 lease, u8 1 with keys)
//!        5 lease answer  u64 command id, i64 revision, u8: 0 an error, 1 the reply's bytes; that
//!        6 read ask      u64 term, u64 boot and u64 attempt of the sender
//!        7 read answer   u64 boot and u64 attempt of the receiver, u64 index
//!        8 confirm       u64 term, u64 round
//!        9 confirmed     the same
//!       10 hash ask      u64 index
//!       11 hash          u64 index, u64 the entry that the hash began with, u64 hash
//! error: u8, by the numbers of `ERRORS`
//! ```

use bytes::{Buf, BufMut as _, Bytes};
use revd_engine::mvcc::StateHash;

use crate::apply::command::{self, CommandId, Origin};
use crate::apply::local::{DeadlineRequest, LeaseRequest};
use crate::apply::outcome::{Outcome, Rest};
use crate::apply::state_hashes::HashPoint;
use crate::error::Error;
use crate::limits;
use crate::peer::frame;
use crate::peer::{PeerMessage, ReadContext, Sender};
use crate::raft::message::RaftMessage;

const MESSAGE_HEADER: usize = 1 + 4;
const RAFT: u8 = 1;
const FORWARD: u8 = 2;
const REFUSED: u8 = 3;
const LEASE_ASK: u8 = 4;
const LEASE_ANSWER: u8 = 5;
const READ_ASK: u8 = 6;
const READ_ANSWER: u8 = 7;
const CONFIRM: u8 = 8;
const CONFIRMED: u8 = 9;
const HASH_ASK: u8 = 10;
const HASH: u8 = 11;

/// The errors that members tell each other, with their numbers on the wire: never reuse one.
/// Another error travels as the last one, which leaves open what happened.
const ERRORS: &[(u8, Error)] = &[
    (1, Error::TooManyRequests),
    (2, Error::NoLeader),
    (3, Error::Stopped),
    (4, Error::LeaseNotFound),
    (5, Error::Corrupt),
    (6, Error::NoSpace),
    (9, Error::TimeoutLeaderFailed),
    (10, Error::TimeoutConnectionLost),
    (7, Error::MemberNotFound),
    (8, Error::LearnerNotReady),
    (11, Error::NotLeader),
    (12, Error::ProposalDropped),
    (0, Error::Timeout),
];

/// A message that its sender should not have sent: the connection is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of kind {kind} and {bytes} bytes that no member would send")]
pub struct MessageError {
    /// Its kind.
    pub kind: u8,
    /// Length of its body.
    pub bytes: usize,
}

/// Appends frames with these messages, in order.
pub fn encode(messages: &[PeerMessage], out: &mut Vec<u8>) {
    let mut rest = messages.iter().peekable();
    while rest.peek().is_some() {
        let start = frame::begin(out);
        while let Some(message) = rest.peek() {
            let bytes = out.len() - start + encoded_len(message);
            let is_first = out.len() == start + frame::FRAME_HEADER;
            if bytes > limits::PEER_FRAME_BYTES && !is_first {
                break;
            }
            put_message(out, message);
            rest.next();
        }
        frame::finish(out, start);
    }
}

/// Bytes that [`encode`] appends for a message, or a few more.
#[must_use]
pub fn encoded_len(message: &PeerMessage) -> usize {
    const SMALL: usize = 64;
    match message {
        PeerMessage::Raft(message) => MESSAGE_HEADER + message.encoded_len(),
        PeerMessage::Forward(data) => MESSAGE_HEADER + data.len(),
        PeerMessage::Refused { ids, .. } => SMALL + 8 * ids.len(),
        PeerMessage::LeaseAsk { .. }
        | PeerMessage::ReadAsk { .. }
        | PeerMessage::ReadAnswer { .. }
        | PeerMessage::Confirm { .. }
        | PeerMessage::Confirmed { .. }
        | PeerMessage::HashAsk(_)
        | PeerMessage::Hash(_) => SMALL,
        PeerMessage::LeaseAnswer { outcome, .. } => SMALL + outcome.result.as_ref().map_or(0, Bytes::len),
    }
}

/// Decodes the payload of a frame; what is long shares its buffer.
///
/// # Errors
/// [`MessageError`]
pub fn decode(mut payload: Bytes, sender: Sender) -> Result<Vec<PeerMessage>, MessageError> {
    let (mut messages, bytes) = (Vec::new(), payload.len());
    while !payload.is_empty() {
        let kind = payload.get_u8();
        // Only a message that is long by itself makes a frame longer: small ones would take far
        // more memory decoded, and a long turn.
        if bytes > limits::PEER_FRAME_BYTES && !messages.is_empty() {
            return Err(MessageError { kind, bytes });
        }
        let wrong = |bytes| MessageError { kind, bytes };
        let len = payload.try_get_u32_le().map_err(|_| wrong(payload.len()))? as usize;
        if payload.len() < len {
            return Err(wrong(payload.len()));
        }
        messages.push(take_message(kind, payload.split_to(len), sender).ok_or_else(|| wrong(len))?);
    }
    Ok(messages)
}

fn put_message(out: &mut Vec<u8>, message: &PeerMessage) {
    let start = out.len();
    out.put_bytes(0, MESSAGE_HEADER);
    let kind = match message {
        PeerMessage::Raft(message) => {
            message.encode(out);
            RAFT
        }
        PeerMessage::Forward(data) => {
            out.put_slice(data);
            FORWARD
        }
        PeerMessage::Refused { ids, why } => {
            put_error(out, why);
            ids.iter().for_each(|id| out.put_u64_le(id.0));
            REFUSED
        }
        PeerMessage::LeaseAsk { id, request } => {
            out.put_u64_le(id.0);
            put_lease_request(out, *request);
            LEASE_ASK
        }
        PeerMessage::LeaseAnswer { id, outcome } => {
            out.put_u64_le(id.0);
            put_outcome(out, outcome);
            LEASE_ANSWER
        }
        PeerMessage::ReadAsk { term, context } => {
            put_numbers(out, [*term, context.origin.boot, context.attempt]);
            READ_ASK
        }
        PeerMessage::ReadAnswer { context, index } => {
            put_numbers(out, [context.origin.boot, context.attempt, *index]);
            READ_ANSWER
        }
        PeerMessage::Confirm { term, round } => {
            put_numbers(out, [*term, *round]);
            CONFIRM
        }
        PeerMessage::Confirmed { term, round } => {
            put_numbers(out, [*term, *round]);
            CONFIRMED
        }
        PeerMessage::HashAsk(index) => {
            put_numbers(out, [*index]);
            HASH_ASK
        }
        PeerMessage::Hash(HashPoint { index, hash }) => {
            put_numbers(out, [*index, hash.since, hash.value]);
            HASH
        }
    };
    let len = u32::try_from(out.len() - start - MESSAGE_HEADER).expect("a message is bounded");
    out[start] = kind;
    out[start + 1..start + MESSAGE_HEADER].copy_from_slice(&len.to_le_bytes());
}

fn take_message(kind: u8, mut body: Bytes, sender: Sender) -> Option<PeerMessage> {
    let message = match kind {
        RAFT => {
            let message = RaftMessage::decode(std::mem::take(&mut body))?;
            let is_theirs = message.from() == sender.from && message.to() == sender.to;
            PeerMessage::Raft(is_theirs.then_some(message)?)
        }
        FORWARD => {
            // It is proposed as it is: a batch that cannot be read would stop every member.
            let data = std::mem::take(&mut body);
            // Only a command that is long by itself makes a batch longer; small ones would take far
            // more memory decoded.
            if data.len() > limits::PEER_FRAME_BYTES && command::claimed(&data) != Some(1) {
                return None;
            }
            let batch = command::decode(data.clone()).ok()?;
            let is_theirs = batch.origin.member == sender.from && !batch.commands.is_empty();
            PeerMessage::Forward(is_theirs.then_some(data)?)
        }
        // The ids are of one batch.
        REFUSED if body.len() <= limits::ENTRY_BYTES_MAX => {
            let why = take_error(&mut body)?;
            let count = body.len() / 8;
            PeerMessage::Refused { why, ids: (0..count).map(|_| CommandId(body.get_u64_le())).collect() }
        }
        LEASE_ASK => PeerMessage::LeaseAsk {
            id: CommandId(body.try_get_u64_le().ok()?),
            request: take_lease_request(&mut body)?,
        },
        LEASE_ANSWER => PeerMessage::LeaseAnswer {
            id: CommandId(body.try_get_u64_le().ok()?),
            outcome: take_outcome(&mut body)?,
        },
        READ_ASK => {
            let [term, boot, attempt] = take_numbers(&mut body)?;
            let origin = Origin { member: sender.from, boot };
            PeerMessage::ReadAsk { term, context: ReadContext { origin, attempt } }
        }
        READ_ANSWER => {
            let [boot, attempt, index] = take_numbers(&mut body)?;
            let origin = Origin { member: sender.to, boot };
            PeerMessage::ReadAnswer { context: ReadContext { origin, attempt }, index }
        }
        CONFIRM => {
            let [term, round] = take_numbers(&mut body)?;
            PeerMessage::Confirm { term, round }
        }
        CONFIRMED => {
            let [term, round] = take_numbers(&mut body)?;
            PeerMessage::Confirmed { term, round }
        }
        // 0 is this member's own way to ask for the newest.
        HASH_ASK => PeerMessage::HashAsk(body.try_get_u64_le().ok().filter(|index| *index > 0)?),
        HASH => {
            let [index, since, value] = take_numbers(&mut body)?;
            PeerMessage::Hash(HashPoint { index, hash: StateHash { value, since } })
        }
        _ => return None,
    };
    body.is_empty().then_some(message)
}

fn put_numbers<const N: usize>(out: &mut Vec<u8>, numbers: [u64; N]) {
    numbers.into_iter().for_each(|number| out.put_u64_le(number));
}

fn take_numbers<const N: usize>(bytes: &mut Bytes) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        *number = bytes.try_get_u64_le().ok()?;
    }
    Some(numbers)
}

fn put_error(out: &mut Vec<u8>, error: &Error) {
    let listed = ERRORS.iter().find(|(_, listed)| listed == error).or(ERRORS.last());
    out.put_u8(listed.expect("errors are listed").0);
}

fn take_error(bytes: &mut Bytes) -> Option<Error> {
    let number = bytes.try_get_u8().ok()?;
    ERRORS.iter().find(|(listed, _)| *listed == number).map(|(_, error)| error.clone())
}

/// # Panics
/// For a request that a member makes to itself only.
fn put_lease_request(out: &mut Vec<u8>, request: LeaseRequest) {
    match request {
        LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease }) => {
            out.put_u8(1);
            out.put_i64_le(lease);
        }
        LeaseRequest::Deadline(DeadlineRequest::Remaining { from }) => {
            out.put_u8(2);
            out.put_i64_le(from);
        }
        LeaseRequest::Deadline(DeadlineRequest::List) => out.put_u8(3),
        LeaseRequest::TimeToLive { lease, keys } => {
            out.put_u8(4);
            out.put_i64_le(lease);
            out.put_u8(u8::from(keys));
        }
        LeaseRequest::Keys { .. }
        | LeaseRequest::KeyBytes { .. }
        | LeaseRequest::Expired
        | LeaseRequest::Heard(_) => {
            panic!("{request:?} is for this member alone")
        }
    }
}

fn take_lease_request(bytes: &mut Bytes) -> Option<LeaseRequest> {
    Some(match bytes.try_get_u8().ok()? {
        1 => LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease: bytes.try_get_i64_le().ok()? }),
        2 => LeaseRequest::Deadline(DeadlineRequest::Remaining { from: bytes.try_get_i64_le().ok()? }),
        3 => LeaseRequest::Deadline(DeadlineRequest::List),
        4 => LeaseRequest::TimeToLive { lease: bytes.try_get_i64_le().ok()?, keys: take_flag(bytes)? },
        _ => return None,
    })
}

fn put_outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    assert!(outcome.rest.parts().is_empty(), "the answer to a lease request is whole");
    out.put_i64_le(outcome.revision);
    out.put_u8(u8::from(outcome.result.is_ok()));
    match &outcome.result {
        Ok(reply) => out.put_slice(reply),
        Err(error) => put_error(out, error),
    }
}

fn take_outcome(bytes: &mut Bytes) -> Option<Outcome> {
    let revision = bytes.try_get_i64_le().ok()?;
    let result = if take_flag(bytes)? { Ok(std::mem::take(bytes)) } else { Err(take_error(bytes)?) };
    Some(Outcome { revision, result, rest: Rest::NONE })
}

fn take_flag(bytes: &mut Bytes) -> Option<bool> {
    match bytes.try_get_u8().ok()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::command::{Command, Kind};
    use crate::peer::frame::FrameReader;
    use crate::peer::hello::PROTOCOL;

    const SENDER: Sender = Sender { from: 1, to: 2 };

    fn forward(member: u64) -> PeerMessage {
        let payload = Bytes::from_static(b"\x0a\x01k");
        let command = Command { id: CommandId(9), kind: Kind::Put, payload };
        PeerMessage::Forward(command::encode(Origin { member, boot: 3 }, &[command]).into())
    }

    fn raft(from: u64, to: u64) -> PeerMessage {
        // A heartbeat, as `raft/message.rs` draws it.
        let mut bytes = vec![7, 0];
        for number in [to, from, 5, 0, 0, 4, 0, 0, 0, 0] {
            bytes.put_u64_le(number);
        }
        bytes.put_u64_le(0);
        PeerMessage::Raft(RaftMessage::decode(bytes.into()).unwrap())
    }

    fn samples() -> Vec<PeerMessage> {
        let id = CommandId::new(3, 4, 5);
        let context = |member| ReadContext { origin: Origin { member, boot: 6 }, attempt: 7 };
        let ask = |request| PeerMessage::LeaseAsk { id, request };
        let answer = |result| PeerMessage::LeaseAnswer {
            id,
            outcome: Outcome { revision: 7, result, rest: Rest::NONE },
        };
        let mut samples = vec![
            raft(1, 2),
            forward(1),
            PeerMessage::Refused { ids: vec![id, CommandId(u64::MAX)], why: Error::TooManyRequests },
            PeerMessage::Refused { ids: vec![], why: Error::NoLeader },
            ask(LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease: -1 })),
            ask(LeaseRequest::Deadline(DeadlineRequest::Remaining { from: i64::MIN })),
            ask(LeaseRequest::Deadline(DeadlineRequest::List)),
            ask(LeaseRequest::TimeToLive { lease: 6, keys: true }),
            answer(Ok(Bytes::from_static(b"reply"))),
            answer(Ok(Bytes::new())),
            PeerMessage::ReadAsk { term: 5, context: context(SENDER.from) },
            PeerMessage::ReadAnswer { context: context(SENDER.to), index: u64::MAX },
            PeerMessage::Confirm { term: 5, round: 6 },
            PeerMessage::Confirmed { term: 7, round: 8 },
            PeerMessage::HashAsk(u64::MAX),
            PeerMessage::Hash(HashPoint { index: 1, hash: StateHash { value: u64::MAX, since: 3 } }),
        ];
        samples.extend(ERRORS.iter().map(|(_, error)| answer(Err(error.clone()))));
        samples
    }

    /// Members of another version are refused by the number of their protocol. One whose bytes
    /// changed without that is connected to, not understood, and connected to again without an end.
    #[test]
    fn other_bytes_are_another_protocol() {
        let mut bytes = Vec::new();
        let without_errors = samples().len() - ERRORS.len();
        encode(&samples()[..without_errors], &mut bytes);
        assert_eq!((PROTOCOL, crc32fast::hash(&bytes)), (3, 0xce9c_4c3d));
    }

    /// The payloads of the frames in these bytes.
    fn payloads(mut bytes: &[u8]) -> Vec<Bytes> {
        let (mut reader, mut payloads) = (FrameReader::default(), Vec::new());
        while !bytes.is_empty() {
            payloads.extend(reader.take(&mut bytes).unwrap());
        }
        payloads
    }

    fn payload(messages: &[PeerMessage]) -> Bytes {
        let mut out = Vec::new();
        encode(messages, &mut out);
        let mut payloads = payloads(&out);
        assert_eq!(payloads.len(), 1);
        payloads.swap_remove(0)
    }

    #[test]
    fn every_kind_survives_the_round_trip() {
        assert_eq!(decode(payload(&samples()), SENDER).unwrap(), samples());
        for sample in samples() {
            let payload = payload(std::slice::from_ref(&sample));
            assert!(payload.len() <= encoded_len(&sample), "{sample:?}");
            assert_eq!(decode(payload, SENDER).unwrap(), [sample]);
        }
    }

    #[test]
    fn an_error_that_is_not_listed_leaves_open_what_happened() {
        let refused = PeerMessage::Refused { ids: vec![], why: Error::EmptyKey };
        let timeout = PeerMessage::Refused { ids: vec![], why: Error::Timeout };
        assert_eq!(decode(payload(&[refused]), SENDER).unwrap(), [timeout]);
    }

    #[test]
    fn every_cut_is_refused_and_no_flip_panics() {
        for sample in samples() {
            let payload = payload(&[sample]);
            for len in 1..payload.len() {
                assert!(decode(payload.slice(..len), SENDER).is_err(), "cut at {len}");
            }
            for at in 0..payload.len() {
                for bit in 0..8 {
                    let mut bad = payload.to_vec();
                    bad[at] ^= 1 << bit;
                    let _ = decode(bad.into(), SENDER);
                }
            }
        }
    }

    #[test]
    fn a_member_speaks_for_itself_alone() {
        for foreign in [raft(3, 2), raft(1, 3), forward(2)] {
            assert!(decode(payload(&[foreign]), SENDER).is_err());
        }
        let no_batch = PeerMessage::Forward(Bytes::from_static(b"\x01no batch"));
        assert!(decode(payload(&[no_batch]), SENDER).is_err());
        let empty = command::encode(Origin { member: 1, boot: 3 }, &[]);
        assert!(decode(payload(&[PeerMessage::Forward(empty.into())]), SENDER).is_err());
    }

    /// Each of them takes many times its bytes in memory.
    #[test]
    fn a_frame_of_more_small_messages_than_members_send_is_refused() {
        let mut frame = payload(&[PeerMessage::HashAsk(1)]).to_vec();
        frame = frame.repeat(limits::PEER_FRAME_BYTES / frame.len());
        assert!(decode(frame.clone().into(), SENDER).is_ok());
        frame.extend_from_slice(&payload(&[PeerMessage::HashAsk(1)]));
        assert!(decode(frame.into(), SENDER).is_err());
        let refused = |ids| PeerMessage::Refused { ids: vec![CommandId(1); ids], why: Error::Timeout };
        let most = limits::ENTRY_BYTES_MAX / 8 - 1;
        assert!(decode(payload(&[refused(most)]), SENDER).is_ok());
        assert!(decode(payload(&[refused(most + 1)]), SENDER).is_err());
    }

    /// Each of them takes several times its bytes in memory.
    #[test]
    fn a_message_of_more_small_parts_than_members_send_is_refused() {
        let forward = |bytes: usize, commands: usize| {
            let command = |_| Command { id: CommandId(9), kind: Kind::Put, payload: vec![0; bytes].into() };
            let commands: Vec<Command> = (0..commands).map(command).collect();
            PeerMessage::Forward(command::encode(Origin { member: 1, boot: 3 }, &commands).into())
        };
        let is_taken = |message| decode(payload(&[message]), SENDER).is_ok();
        assert!(is_taken(forward(limits::PEER_FRAME_BYTES, 1)), "a long command");
        assert!(is_taken(forward(0, limits::ENTRY_BYTES_MAX / 13)), "a batch as long as they are");
        assert!(!is_taken(forward(0, limits::PEER_FRAME_BYTES / 13 + 1)));
    }

    #[test]
    fn many_messages_are_cut_into_frames_and_a_long_one_has_its_own() {
        let large = |bytes| PeerMessage::LeaseAnswer {
            id: CommandId(1),
            outcome: Outcome { revision: 1, result: Ok(vec![7; bytes].into()), rest: Rest::NONE },
        };
        let half = limits::PEER_FRAME_BYTES / 2;
        let messages = [large(half), large(half), large(9), large(3 * half), large(1)];
        let mut out = Vec::new();
        encode(&messages, &mut out);
        let payloads = payloads(&out);
        assert_eq!(payloads.len(), 4);
        let decoded: Vec<_> =
            payloads.into_iter().flat_map(|payload| decode(payload, SENDER).unwrap()).collect();
        assert_eq!(decoded, messages);
    }
}
