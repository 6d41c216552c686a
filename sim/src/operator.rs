//! The operator of a cluster: asks members for changes of members, and starts those that are added.
//!
//! As an operator should, this one replaces a member whose disk is lost, and asks for one change
//! after the other. It does not wait for an answer that never comes.

use prost::Message as _;
use revd_engine::random::Random;
use revd_member::apply::command::Kind;
use revd_member::cluster::membership::{MemberChange, Membership};
use revd_proto::etcdserverpb::{Member, MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest};

use crate::calls::{Door as _, Request};
use crate::network::url;
use crate::time::SECOND;
use crate::world::World;

/// Members beyond which the operator does not go, learners among them.
const MEMBERS_MAX: usize = 6;
const LEARNERS_MAX: u32 = 2;
/// Machines of a run.
pub(crate) const SLOTS_MAX: usize = 12;

/// A change that the operator asks for, as a command.
pub(crate) type Asked = (Kind, Vec<u8>);

pub(crate) fn add(id: u64, slot: usize, is_learner: bool) -> Asked {
    let row = Member { id, peer_ur_ls: vec![url(slot)], is_learner, ..Member::default() };
    (Kind::MemberAdd, MemberChange::encode_add(&row, LEARNERS_MAX).to_vec())
}

pub(crate) fn remove(id: u64) -> Asked {
    (Kind::MemberRemove, MemberRemoveRequest { id }.encode_to_vec())
}

pub(crate) fn promote(id: u64) -> Asked {
    (Kind::MemberPromote, MemberPromoteRequest { id }.encode_to_vec())
}

fn update(id: u64, slot: usize, number: u64) -> Asked {
    let peer_ur_ls = vec![format!("http://m{slot}:{}", 2_381 + number)];
    (Kind::MemberUpdate, MemberUpdateRequest { id, peer_ur_ls }.encode_to_vec())
}

/// An edge looks at the members that it knows first, as the API does.
fn is_admitted((kind, payload): &Asked, known: &Membership) -> bool {
    let payload = payload.clone().into();
    let change = match kind {
        Kind::MemberAdd => MemberChange::decode_add(payload),
        Kind::MemberRemove => MemberChange::decode_remove(payload),
        Kind::MemberUpdate => MemberChange::decode_update(payload),
        Kind::MemberPromote => MemberChange::decode_promote(payload),
        _ => unreachable!("{kind:?} changes no members"),
    };
    known.keeps_quorum(&change.expect("it was just encoded")).is_ok()
}

impl World {
    /// Members that were added and are not known to have begun.
    fn has_unstarted(&self, known: &Membership) -> bool {
        known.members().any(|member| member.name.is_empty())
    }

    /// The members change; whether a member was asked for it.
    pub(crate) fn change_members(&mut self, random: &mut Random) -> bool {
        let ready = self.cluster.running();
        let Some(at) = (!ready.is_empty()).then(|| random.pick(&ready)) else { return false };
        let Some(known) = self.cluster.slots[at].process.as_ref().map(|process| process.membership()) else {
            return false;
        };
        let ids: Vec<u64> = known.members().map(|member| member.id).collect();
        if ids.is_empty() {
            return false;
        }
        let learners: Vec<u64> =
            known.members().filter(|member| member.is_learner).map(|member| member.id).collect();
        let member = random.pick(&ids);
        let grows = ids.len() < 3 || ids.len() < MEMBERS_MAX && random.one_in(2);
        let asked = match random.below(10) {
            0..3 if !learners.is_empty() => promote(random.pick(&learners)),
            3 => self
                .cluster
                .slot_of(member)
                .map_or_else(|| remove(member), |at| update(member, at, random.below(9))),
            _ if grows && !self.has_unstarted(&known) && self.cluster.slots.len() < SLOTS_MAX => {
                self.added(random)
            }
            _ if ids.len() > 2 => remove(member),
            _ => return false,
        };
        self.ask_for_change(at, asked, &known)
    }

    /// Asks a member that knows these for a change; whether it was asked.
    pub(crate) fn ask_for_change(&mut self, at: usize, asked: Asked, known: &Membership) -> bool {
        if !is_admitted(&asked, known) {
            return false;
        }
        let (kind, payload) = asked;
        // It may be carried out without an answer.
        self.cluster.call(at, Request::Command { kind, payload: payload.into() }).is_some()
    }

    /// Another machine, whose member is to be added; it tries to join for as long as the run lasts.
    fn added(&mut self, random: &mut Random) -> Asked {
        let slot = self.cluster.add_slot(false, random);
        self.cluster.plan_start(slot, 3 * SECOND);
        add(random.number() | 1 << 63, slot, random.one_in(2))
    }
}
