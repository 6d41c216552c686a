//! Changes of members, and the attributes that members publish.

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::Store;
use revd_proto::etcdserverpb::{Member, MemberAddResponse, MemberListResponse};

use crate::apply::command::Command;
use crate::cluster::conf_state::ConfState;
use crate::cluster::membership::MemberChange;
use crate::error::Error;
use crate::schema;

/// The log core's word about a committed change of members: it has judged the change, and raft
/// counts votes accordingly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedChange {
    /// The change takes effect, or the answer of its caller.
    pub verdict: Result<(), Error>,
    /// The votes from now on.
    pub conf_state: ConfState,
}

/// A change of members; the reply has all members that there are then. Without a verdict there is
/// no change: raft would not know of it.
pub(super) fn change(
    store: &mut Store,
    command: &Command,
    verdict: Option<&Result<(), Error>>,
) -> Result<Bytes, Error> {
    let change = command.member_change().unwrap_or(Err(Error::Malformed("no change of members")))?;
    verdict.cloned().unwrap_or(Err(Error::Malformed("a change of members among other commands")))?;
    let mut added = None;
    match change {
        MemberChange::Add { member, .. } => {
            schema::put_member(store, &member);
            added = Some(member);
        }
        MemberChange::Remove { id } => schema::remove_member(store, id),
        MemberChange::Update { id, peer_urls } => {
            edit(store, id, |member| member.peer_ur_ls = peer_urls);
        }
        MemberChange::Promote { id } => edit(store, id, |member| member.is_learner = false),
    }
    let members = schema::members(store.tables()).collect();
    let reply = match added {
        Some(_) => MemberAddResponse { header: None, member: added, members }.encode_to_vec(),
        // The other three replies have this form.
        None => MemberListResponse { header: None, members }.encode_to_vec(),
    };
    Ok(reply.into())
}

/// A member's name and client URLs; the rest of its row stays.
pub(super) fn set_attributes(store: &mut Store, payload: &Bytes) -> Result<Bytes, Error> {
    let published = Member::decode(payload.clone())?;
    edit(store, published.id, |member| {
        member.name = published.name;
        member.client_ur_ls = published.client_ur_ls;
    });
    Ok(Bytes::new())
}

/// Former members have no row that could change.
fn edit(store: &mut Store, id: u64, change: impl FnOnce(&mut Member)) {
    if let Some(mut member) = schema::member(store.tables(), id) {
        change(&mut member);
        schema::put_member(store, &member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_proto::etcdserverpb::MemberUpdateRequest;

    use crate::apply::command::{CommandId, Kind, Origin, encode};
    use crate::apply::outcome::Effect;
    use crate::apply::{CommittedEntry, Machine, MachineConfig};

    const OWN: Origin = Origin { member: 1, boot: 1 };

    fn machine() -> Machine {
        let store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        Machine::new(store, MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 }).unwrap()
    }

    /// Applies a change with what the log core says of it.
    fn apply(
        machine: &mut Machine,
        kind: Kind,
        payload: Bytes,
        judged: Option<JudgedChange>,
    ) -> Result<Bytes, Error> {
        let data = encode(OWN, &[Command { id: CommandId::new(0, 1, 0), kind, payload }]).into();
        let index = machine.store().applied().index + 1;
        let entry = CommittedEntry { index, term: 1, data, change: judged.map(Box::new) };
        let mut effects = Vec::new();
        machine.apply(&entry, 0, &mut effects).unwrap();
        let [Effect::Reply(_, outcome)] = &effects[..] else { panic!("{effects:?}") };
        outcome.result.clone()
    }

    fn judged(verdict: Result<(), Error>, learners: &[u64]) -> Option<JudgedChange> {
        let conf_state = ConfState { learners: learners.to_vec(), ..ConfState::of_voters(vec![1]) };
        Some(JudgedChange { verdict, conf_state })
    }

    #[test]
    fn rows_and_votes_change_in_one_entry_or_not_at_all() {
        let mut machine = machine();
        let learner = Member { id: 7, is_learner: true, ..Member::default() };
        let payload = MemberChange::encode_add(&learner, 1);
        let refused = judged(Err(Error::TooManyLearners), &[]);
        assert_eq!(
            apply(&mut machine, Kind::MemberAdd, payload.clone(), refused),
            Err(Error::TooManyLearners)
        );
        assert_eq!(schema::members(machine.store().tables()).count(), 0);
        let body = apply(&mut machine, Kind::MemberAdd, payload.clone(), judged(Ok(()), &[7])).unwrap();
        let reply = MemberAddResponse::decode(body).unwrap();
        assert_eq!((reply.member, reply.members.len()), (Some(learner), 1));
        assert_eq!(schema::conf_state(machine.store().tables()).learners, [7]);
        // A change that raft does not know of is none.
        assert!(apply(&mut machine, Kind::MemberAdd, payload, None).is_err());
        let promote = Bytes::from_static(&[8, 7]);
        apply(&mut machine, Kind::MemberPromote, promote.clone(), judged(Ok(()), &[])).unwrap();
        assert!(!schema::member(machine.store().tables(), 7).unwrap().is_learner);
        let body = apply(&mut machine, Kind::MemberRemove, promote, judged(Ok(()), &[])).unwrap();
        assert!(MemberListResponse::decode(body).unwrap().members.is_empty());
        let membership = schema::membership(machine.store().tables());
        assert!(membership.is_removed(7) && membership.members().count() == 0);
    }

    #[test]
    fn a_row_keeps_what_a_change_does_not_name() {
        let mut machine = machine();
        let urls = |url: &str| vec![url.to_owned()];
        let added = Member { id: 3, peer_ur_ls: urls("http://a:1"), ..Member::default() };
        let payload = MemberChange::encode_add(&added, 1);
        apply(&mut machine, Kind::MemberAdd, payload, judged(Ok(()), &[])).unwrap();
        let published = Member {
            id: 3,
            name: "three".to_owned(),
            peer_ur_ls: urls("http://ignored:1"),
            client_ur_ls: urls("http://c:1"),
            is_learner: true,
        };
        let reply = apply(&mut machine, Kind::MemberAttributes, published.encode_to_vec().into(), None);
        assert_eq!(reply, Ok(Bytes::new()));
        let mut expected = Member { is_learner: false, peer_ur_ls: urls("http://a:1"), ..published.clone() };
        assert_eq!(schema::member(machine.store().tables(), 3), Some(expected.clone()));

        let update = MemberUpdateRequest { id: 3, peer_ur_ls: urls("http://b:1") }.encode_to_vec().into();
        let body = apply(&mut machine, Kind::MemberUpdate, update, judged(Ok(()), &[])).unwrap();
        expected.peer_ur_ls = urls("http://b:1");
        assert_eq!(MemberListResponse::decode(body).unwrap().members, [expected]);

        // A former member may publish late.
        let late = Member { id: 4, ..published }.encode_to_vec().into();
        assert_eq!(apply(&mut machine, Kind::MemberAttributes, late, None), Ok(Bytes::new()));
        assert_eq!(schema::member(machine.store().tables(), 4), None);
        assert!(apply(&mut machine, Kind::MemberAttributes, Bytes::from_static(b"\xff"), None).is_err());
    }
}
