//! The operator of a cluster: asks members for changes of members, starts those that are added, and
//! sees to it that those that are removed end.

use prost::Message as _;
use revd_engine::random::Random;
use revd_member::apply::command::Kind;
use revd_member::cluster::membership::{MemberChange, Membership};
use revd_proto::etcdserverpb::{MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest};

use crate::files::row;

/// Members that an operator does not go beyond, learners among them.
const MEMBERS_MAX: usize = 6;
const LEARNERS_MAX: u32 = 2;

/// A change that an operator asks for, as a command.
pub(crate) type Asked = (Kind, Vec<u8>);

pub(crate) fn add(id: u64, is_learner: bool) -> Asked {
    (Kind::MemberAdd, MemberChange::encode_add(&row(id, "", is_learner), LEARNERS_MAX).to_vec())
}

pub(crate) fn remove(id: u64) -> Asked {
    (Kind::MemberRemove, MemberRemoveRequest { id }.encode_to_vec())
}

pub(crate) fn promote(id: u64) -> Asked {
    (Kind::MemberPromote, MemberPromoteRequest { id }.encode_to_vec())
}

fn update(id: u64, number: u64) -> Asked {
    let peer_ur_ls = vec![format!("http://m{id}:{}", 2_381 + number)];
    (Kind::MemberUpdate, MemberUpdateRequest { id, peer_ur_ls }.encode_to_vec())
}

/// An edge looks at the members that it knows first, as the API does.
pub(crate) fn is_admitted((kind, payload): &Asked, known: &Membership) -> bool {
    let payload = payload.clone().into();
    let change = match kind {
        Kind::MemberAdd => MemberChange::decode_add(payload),
        Kind::MemberRemove => MemberChange::decode_remove(payload),
        Kind::MemberUpdate => MemberChange::decode_update(payload),
        Kind::MemberPromote => MemberChange::decode_promote(payload),
        _ => unreachable!("{kind:?} changes no members"),
    };
    known.keeps_quorum(&change.unwrap()).is_ok()
}

/// Some change of the members that are known; `new` is an id without a past, `past` any other.
pub(crate) fn any(random: &mut Random, known: &Membership, new: u64, past: u64) -> Asked {
    let ids: Vec<u64> = known.members().map(|member| member.id).collect();
    let learners: Vec<u64> =
        known.members().filter(|member| member.is_learner).map(|member| member.id).collect();
    let member = if ids.is_empty() { past } else { random.pick(&ids) };
    match random.below(12) {
        0..4 if ids.len() < MEMBERS_MAX => add(new, random.one_in(2)),
        4 => add(past, random.one_in(2)),
        5..8 if ids.len() > 2 || random.one_in(4) => remove(member),
        8..10 if !learners.is_empty() => promote(random.pick(&learners)),
        10 => promote(past),
        11 => update(member, random.below(9)),
        _ if ids.len() < 3 => add(new, random.one_in(2)),
        _ => remove(if random.one_in(8) { past } else { member }),
    }
}
