//! The replicated commands: batches of them, one batch per raft entry.
//!
//! ```text
//! entry data (all integers little-endian; an empty entry is raft's own and holds no commands)
//!   0  u8   format version, 1
//!   1  u64  origin member id
//!   9  u64  origin boot number: changes at every start, so that a replayed entry answers nobody
//!  17  u32  number of commands
//!  21  commands, each:
//!        u64  command id (routes the outcome to its caller; means something to the origin only)
//!        u8   kind
//!        u32  payload length
//!        payload: the request message's bytes as the client sent them
//! ```

use bytes::{Buf, BufMut, Bytes};

use crate::cluster::membership::MemberChange;
use crate::error::Error;
use crate::mutants::{self, Mutant};

const FORMAT: u8 = 1;
const BATCH_HEADER: usize = 1 + 8 + 8 + 4;
const COMMAND_HEADER: usize = 8 + 1 + 4;

/// The kind of a command. The numbers are in the log on disk: never reuse one. Requests that are
/// not for the log are in `local.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `etcdserverpb.PutRequest`
    Put = 1,
    /// `etcdserverpb.DeleteRangeRequest`
    DeleteRange = 2,
    /// `etcdserverpb.TxnRequest`
    Txn = 3,
    /// `etcdserverpb.CompactionRequest`
    Compact = 4,
    /// `etcdserverpb.AlarmRequest`, to raise or clear one.
    Alarm = 5,
    /// `etcdserverpb.LeaseGrantRequest`, with the id and the time that were chosen.
    LeaseGrant = 6,
    /// `etcdserverpb.LeaseRevokeRequest`
    LeaseRevoke = 7,
    /// Leases that have expired; see `lease_reports::ExpiredLeases`.
    LeaseExpire = 8,
    /// `etcdserverpb.LeaseCheckpointRequest`: the remaining TTL of leases.
    LeaseCheckpoint = 9,
    /// The state hash begins anew with this entry; no payload.
    BeginHash = 10,
    /// `etcdserverpb.AlarmRequest`, to raise CORRUPT: members were compared, and this one differs.
    Corrupt = 11,
    /// `etcdserverpb.Member`: the name and client URLs a member publishes after its start.
    MemberAttributes = 16,
    /// A cluster version as text, for example `3.7.0`.
    ClusterVersion = 17,
    /// A new member; see `cluster::membership::MemberChange::encode_add`.
    MemberAdd = 18,
    /// `etcdserverpb.MemberRemoveRequest`
    MemberRemove = 19,
    /// `etcdserverpb.MemberUpdateRequest`
    MemberUpdate = 20,
    /// `etcdserverpb.MemberPromoteRequest`
    MemberPromote = 21,
    /// The target of a downgrade as text, or nothing to cancel it.
    Downgrade = 22,
    /// A command in the name of somebody; see `authorized`.
    Authorized = 31,
    /// `etcdserverpb.AuthEnableRequest`
    AuthEnable = 32,
    /// `etcdserverpb.AuthDisableRequest`
    AuthDisable = 33,
    /// A user has logged in; see `users::Login`.
    Authenticate = 34,
    /// `etcdserverpb.AuthUserAddRequest`, with a hash in place of the password.
    UserAdd = 35,
    /// `etcdserverpb.AuthUserDeleteRequest`
    UserDelete = 36,
    /// `etcdserverpb.AuthUserChangePasswordRequest`, with a hash in place of the password.
    UserChangePassword = 37,
    /// `etcdserverpb.AuthUserGrantRoleRequest`
    UserGrantRole = 38,
    /// `etcdserverpb.AuthUserRevokeRoleRequest`
    UserRevokeRole = 39,
    /// `etcdserverpb.AuthRoleAddRequest`
    RoleAdd = 40,
    /// `etcdserverpb.AuthRoleDeleteRequest`
    RoleDelete = 41,
    /// `etcdserverpb.AuthRoleGrantPermissionRequest`
    RoleGrantPermission = 42,
    /// `etcdserverpb.AuthRoleRevokePermissionRequest`
    RoleRevokePermission = 43,
}

impl Kind {
    /// It asks for a change of members.
    #[must_use]
    pub fn changes_members(self) -> bool {
        matches!(self, Self::MemberAdd | Self::MemberRemove | Self::MemberUpdate | Self::MemberPromote)
    }

    /// Only members propose it, and not in anybody's name.
    #[must_use]
    pub fn is_of_members_alone(self) -> bool {
        match self {
            Self::LeaseExpire
            | Self::LeaseCheckpoint
            | Self::BeginHash
            | Self::Corrupt
            | Self::MemberAttributes
            | Self::ClusterVersion
            | Self::Authenticate => true,
            // These have entries of a form of their own.
            kind => kind.changes_members(),
        }
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Put,
            2 => Self::DeleteRange,
            3 => Self::Txn,
            4 => Self::Compact,
            5 => Self::Alarm,
            6 => Self::LeaseGrant,
            7 => Self::LeaseRevoke,
            8 => Self::LeaseExpire,
            9 => Self::LeaseCheckpoint,
            10 => Self::BeginHash,
            11 => Self::Corrupt,
            16 => Self::MemberAttributes,
            17 => Self::ClusterVersion,
            18 => Self::MemberAdd,
            19 => Self::MemberRemove,
            20 => Self::MemberUpdate,
            21 => Self::MemberPromote,
            22 => Self::Downgrade,
            31 => Self::Authorized,
            32 => Self::AuthEnable,
            33 => Self::AuthDisable,
            34 => Self::Authenticate,
            35 => Self::UserAdd,
            36 => Self::UserDelete,
            37 => Self::UserChangePassword,
            38 => Self::UserGrantRole,
            39 => Self::UserRevokeRole,
            40 => Self::RoleAdd,
            41 => Self::RoleDelete,
            42 => Self::RoleGrantPermission,
            43 => Self::RoleRevokePermission,
            _ => return None,
        })
    }
}

/// Names a waiting caller: edge number, slot in that edge's table, and the slot's generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandId(pub u64);

impl CommandId {
    /// Bits of the slot and of the generation; the rest is the edge number.
    const SLOT_BITS: u32 = 24;
    const GENERATION_BITS: u32 = 24;
    /// Slots an edge may have.
    pub const SLOTS_MAX: usize = 1 << Self::SLOT_BITS;

    /// Packs the three parts; the generation wraps around.
    #[must_use]
    pub fn new(edge: u16, slot: usize, generation: u32) -> Self {
        assert!(slot < Self::SLOTS_MAX, "slot {slot} does not fit a command id");
        let generation = u64::from(generation) & ((1 << Self::GENERATION_BITS) - 1);
        Self(
            u64::from(edge) << (Self::SLOT_BITS + Self::GENERATION_BITS)
                | generation << Self::SLOT_BITS
                | slot as u64,
        )
    }

    /// The edge that waits for the outcome.
    #[must_use]
    pub fn edge(self) -> u16 {
        (self.0 >> (Self::SLOT_BITS + Self::GENERATION_BITS)) as u16
    }

    /// The slot in that edge's table.
    #[must_use]
    pub fn slot(self) -> usize {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as usize
    }
}

/// The proposer of a batch: a member, in one incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Member id.
    pub member: u64,
    /// Unique per start of that member.
    pub boot: u64,
}

impl Origin {
    /// Of commands of this member that nobody waits for: no run of a member has this number.
    #[must_use]
    pub fn unattended(member: u64) -> Self {
        Self { member, boot: 0 }
    }
}

/// One request on its way through the log.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// Whom to answer.
    pub id: CommandId,
    /// The kind of its request.
    pub kind: Kind,
    /// The request message's bytes.
    pub payload: Bytes,
}

/// With the length of its payload alone, which may have a password's hash in it.
impl std::fmt::Debug for Command {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, kind, payload } = self;
        let mut fields = formatter.debug_struct("Command");
        fields.field("id", id).field("kind", kind).field("payload_bytes", &payload.len()).finish()
    }
}

impl Command {
    /// The change of members that it asks for, if it does; such a command has an entry for itself,
    /// of a kind of its own.
    #[must_use]
    pub fn member_change(&self) -> Option<Result<MemberChange, Error>> {
        let payload = self.payload.clone();
        Some(match self.kind {
            Kind::MemberAdd => MemberChange::decode_add(payload),
            Kind::MemberRemove => MemberChange::decode_remove(payload),
            Kind::MemberUpdate => MemberChange::decode_update(payload),
            Kind::MemberPromote => MemberChange::decode_promote(payload),
            _ => return None,
        })
    }

    /// Bytes this command takes in an entry.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        COMMAND_HEADER + self.payload.len()
    }
}

/// The commands of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Their proposer: a member, in one incarnation.
    pub origin: Origin,
    /// In the order in which they apply.
    pub commands: Vec<Command>,
}

/// Why an entry's bytes are not a batch. The log has checksums, so this is a bug
/// or a foreign log, never noise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer revd.
    #[error(
        "entry format {0} is unknown (this version reads format {FORMAT}): start the version that wrote it"
    )]
    Format(u8),
    /// A command kind of a newer revd.
    #[error("command kind {0} is unknown: start the version that wrote it")]
    Kind(u8),
    /// Lengths do not add up.
    #[error("entry of {0} bytes is cut short")]
    Short(usize),
}

/// Encodes commands as the data of one entry.
///
/// # Panics
/// If a payload or the number of commands exceeds `u32`; request limits are far below.
#[must_use]
pub fn encode(origin: Origin, commands: &[Command]) -> Vec<u8> {
    let len = BATCH_HEADER + commands.iter().map(Command::encoded_len).sum::<usize>();
    let mut out = Vec::with_capacity(len);
    out.put_u8(FORMAT);
    out.put_u64_le(origin.member);
    out.put_u64_le(origin.boot);
    out.put_u32_le(u32::try_from(commands.len()).expect("a batch is bounded"));
    for command in commands {
        out.put_u64_le(command.id.0);
        out.put_u8(command.kind as u8);
        out.put_u32_le(u32::try_from(command.payload.len()).expect("a payload is bounded"));
        out.put_slice(&command.payload);
    }
    out
}

/// Decodes the data of a non-empty entry; payloads share its buffer.
///
/// # Errors
/// When the bytes are not a batch of this format.
pub fn decode(mut data: Bytes) -> Result<Batch, DecodeError> {
    let total = data.len();
    if total < BATCH_HEADER {
        return Err(DecodeError::Short(total));
    }
    let format = data.get_u8();
    if format != FORMAT {
        return Err(DecodeError::Format(format));
    }
    let origin = Origin { member: data.get_u64_le(), boot: data.get_u64_le() };
    let count = data.get_u32_le() as usize;
    // Each command takes at least its header: a false count cannot reserve
    // more than the entry's own size.
    let mut commands = Vec::with_capacity(count.min(data.len() / COMMAND_HEADER));
    for _ in 0..count {
        if data.len() < COMMAND_HEADER {
            return Err(DecodeError::Short(total));
        }
        let id = CommandId(data.get_u64_le());
        let kind = data.get_u8();
        let kind = Kind::from_byte(kind).ok_or(DecodeError::Kind(kind))?;
        let len = data.get_u32_le() as usize;
        if data.len() < len {
            return Err(DecodeError::Short(total));
        }
        commands.push(Command { id, kind, payload: data.split_to(len) });
    }
    if data.has_remaining() {
        return Err(DecodeError::Short(total));
    }
    if mutants::is(Mutant::CommandCarriedOutTwice) {
        commands.extend(commands.last().cloned());
    }
    Ok(Batch { origin, commands })
}

/// Commands that the data of an entry claims to hold.
#[must_use]
pub fn claimed(data: &Bytes) -> Option<usize> {
    let count = data.get(BATCH_HEADER - 4..BATCH_HEADER)?;
    Some(u32::from_le_bytes(count.try_into().ok()?) as usize)
}

/// The batch in the data of an entry, if it is a change of members; others are not decoded.
#[must_use]
pub fn decode_member_change(data: &Bytes) -> Option<(Origin, Command)> {
    let kind = *data.get(BATCH_HEADER + 8)?;
    if !Kind::from_byte(kind)?.changes_members() {
        return None;
    }
    let Batch { origin, mut commands } = decode(data.clone()).ok()?;
    let command = commands.pop()?;
    commands.is_empty().then_some((origin, command))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Origin, Vec<Command>) {
        let origin = Origin { member: 7, boot: 9 };
        let commands = [(Kind::Put, "one"), (Kind::Txn, ""), (Kind::Compact, "three")]
            .iter()
            .enumerate()
            .map(|(slot, (kind, payload))| Command {
                id: CommandId::new(3, slot, 5),
                kind: *kind,
                payload: Bytes::from_static(payload.as_bytes()),
            })
            .collect();
        (origin, commands)
    }

    #[test]
    fn a_batch_survives_the_round_trip() {
        let (origin, commands) = sample();
        assert_eq!(claimed(&encode(origin, &commands).into()), Some(3));
        assert_eq!(claimed(&encode(origin, &[])[1..].to_vec().into()), None);
        let batch = decode(encode(origin, &commands).into()).unwrap();
        assert_eq!(batch, Batch { origin, commands });
    }

    #[test]
    fn every_cut_and_every_flip_is_an_error_or_a_batch() {
        let (origin, commands) = sample();
        let data = Bytes::from(encode(origin, &commands));
        for len in 0..data.len() {
            assert!(decode(data.slice(..len)).is_err(), "cut at {len}");
        }
        for at in 0..data.len() {
            for bit in 0..8 {
                let mut bad = data.to_vec();
                bad[at] ^= 1 << bit;
                let _ = decode(Bytes::from(bad)); // must not panic
            }
        }
    }

    /// A panic or a log line may show it.
    #[test]
    fn a_command_does_not_show_what_is_in_it() {
        let payload = Bytes::from_static(b"hash of a password");
        let command = Command { id: CommandId::new(3, 1, 5), kind: Kind::UserAdd, payload };
        let shown = format!("{command:?}");
        assert!(shown.contains("UserAdd") && shown.contains("payload_bytes: 18"), "{shown}");
        assert!(!shown.contains("hash"), "{shown}");
    }

    #[test]
    fn an_id_keeps_its_parts() {
        let id = CommandId::new(u16::MAX, CommandId::SLOTS_MAX - 1, u32::MAX);
        assert_eq!((id.edge(), id.slot()), (u16::MAX, CommandId::SLOTS_MAX - 1));
        assert_ne!(CommandId::new(1, 2, 3), CommandId::new(1, 2, 4));
    }
}
