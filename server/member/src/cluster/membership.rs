//! The members of a cluster and the rules by which they change: a pure function of the log.
//!
//! A change passes two gates. Where it is asked for, it must leave the cluster a quorum
//! ([`Membership::may_begin`], with `--strict-reconfig-check`; the leader alone knows whether a
//! learner is ready, [`may_promote`]). When it is committed, every member comes to the same verdict
//! about it by the changes before it in the log ([`Membership::judge`]): two callers may have asked
//! for what cannot be had twice. A change that is refused there changes neither rows nor votes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest};

pub use revd_proto::etcdserverpb::Member;

use crate::error::Error;

/// A learner may be promoted when it has nine tenths of the leader's log, as in etcd.
const READY_TENTHS: u64 = 9;

/// The members of a cluster, as the log has them at one index.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Membership {
    members: BTreeMap<u64, Member>,
    /// Ids of former members: they never come back.
    removed: BTreeSet<u64>,
}

/// A change of members, as it is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum MemberChange {
    /// A member that is to be started then.
    Add {
        /// Its row.
        member: Member,
        /// Learners that a cluster may have, as the member has it that was asked.
        learners_max: u32,
    },
    /// This one is no member any more.
    Remove {
        /// Its id.
        id: u64,
    },
    /// A member has other peer URLs.
    Update {
        /// Its id.
        id: u64,
        /// From now on.
        peer_urls: Vec<String>,
    },
    /// A learner gets a vote.
    Promote {
        /// Its id.
        id: u64,
    },
}

/// How this member is connected with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection {
    /// Not at all.
    None,
    /// Not long enough to be relied on.
    Recent,
    /// For long, or it is this member itself.
    Steady,
}

impl MemberChange {
    /// The payload of a command that adds a member.
    ///
    /// ```text
    ///  0  u32  learners that a cluster may have, little-endian
    ///  4       etcdserverpb.Member
    /// ```
    #[must_use]
    pub fn encode_add(member: &Member, learners_max: u32) -> Bytes {
        let mut out = Vec::new();
        out.put_u32_le(learners_max);
        out.extend_from_slice(&member.encode_to_vec());
        out.into()
    }

    /// Reads such a payload.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode_add(mut payload: Bytes) -> Result<Self, Error> {
        let learners_max = payload.try_get_u32_le().map_err(|_| Error::Malformed("a member is cut short"))?;
        Ok(Self::Add { member: Member::decode(payload)?, learners_max })
    }

    /// The change that a `MemberRemoveRequest` asks for.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode_remove(payload: Bytes) -> Result<Self, Error> {
        Ok(Self::Remove { id: MemberRemoveRequest::decode(payload)?.id })
    }

    /// The change that a `MemberUpdateRequest` asks for.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode_update(payload: Bytes) -> Result<Self, Error> {
        let MemberUpdateRequest { id, peer_ur_ls } = MemberUpdateRequest::decode(payload)?;
        Ok(Self::Update { id, peer_urls: peer_ur_ls })
    }

    /// The change that a `MemberPromoteRequest` asks for.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode_promote(payload: Bytes) -> Result<Self, Error> {
        Ok(Self::Promote { id: MemberPromoteRequest::decode(payload)?.id })
    }

    /// The member that changes.
    #[must_use]
    pub fn id(&self) -> u64 {
        match self {
            Self::Add { member, .. } => member.id,
            Self::Remove { id } | Self::Update { id, .. } | Self::Promote { id } => *id,
        }
    }
}

impl Membership {
    /// These members, and the ids of former ones.
    pub fn new(members: impl Iterator<Item = Member>, removed: impl Iterator<Item = u64>) -> Self {
        Self { members: members.map(|member| (member.id, member)).collect(), removed: removed.collect() }
    }

    /// All members, by id.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// A member.
    #[must_use]
    pub fn member(&self, id: u64) -> Option<&Member> {
        self.members.get(&id)
    }

    /// This id belonged to a member that is none any more.
    #[must_use]
    pub fn is_removed(&self, id: u64) -> bool {
        self.removed.contains(&id)
    }

    fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members().filter(|member| !member.is_learner)
    }

    /// Whether a committed change takes effect.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn judge(&self, change: &MemberChange) -> Result<(), Error> {
        let id = change.id();
        if self.removed.contains(&id) {
            return Err(Error::MemberNotFound);
        }
        let found = self.members.get(&id);
        match change {
            MemberChange::Add { member, learners_max } => {
                if found.is_some() {
                    return Err(Error::MemberExists);
                }
                self.are_free(id, &member.peer_ur_ls)?;
                let learners = self.members().filter(|member| member.is_learner).count();
                if member.is_learner && learners >= *learners_max as usize {
                    return Err(Error::TooManyLearners);
                }
                Ok(())
            }
            MemberChange::Remove { .. } => found.map(|_| ()).ok_or(Error::MemberNotFound),
            MemberChange::Update { peer_urls, .. } => {
                found.ok_or(Error::MemberNotFound)?;
                self.are_free(id, peer_urls)
            }
            MemberChange::Promote { .. } => match found {
                None => Err(Error::MemberNotFound),
                Some(member) if member.is_learner => Ok(()),
                Some(_) => Err(Error::MemberNotLearner),
            },
        }
    }

    /// No other member has one of these URLs.
    fn are_free(&self, id: u64, urls: &[String]) -> Result<(), Error> {
        let others = self.members().filter(|member| member.id != id);
        let is_taken = others.flat_map(|member| &member.peer_ur_ls).any(|url| urls.contains(url));
        if is_taken { Err(Error::PeerUrlExists) } else { Ok(()) }
    }

    /// Carries out a change that was judged well.
    pub fn apply(&mut self, change: MemberChange) {
        match change {
            MemberChange::Add { member, .. } => {
                self.members.insert(member.id, member);
            }
            MemberChange::Remove { id } => {
                self.members.remove(&id);
                self.removed.insert(id);
            }
            MemberChange::Update { id, peer_urls } => {
                self.members.entry(id).and_modify(|member| member.peer_ur_ls = peer_urls);
            }
            MemberChange::Promote { id } => {
                self.members.entry(id).and_modify(|member| member.is_learner = false);
            }
        }
    }

    /// A member has told its name and client URLs; with the latter it counts as started.
    pub fn set_attributes(&mut self, id: u64, name: &str, client_urls: &[String]) {
        if let Some(member) = self.members.get_mut(&id) {
            name.clone_into(&mut member.name);
            client_urls.clone_into(&mut member.client_ur_ls);
        }
    }

    /// Whether the cluster keeps a quorum if this change is made, as the member that is asked for
    /// it sees the others. With `--strict-reconfig-check`, a change is refused otherwise.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn may_begin(
        &self,
        change: &MemberChange,
        connection: impl Fn(u64) -> Connection,
    ) -> Result<(), Error> {
        match change {
            MemberChange::Add { member, .. } => {
                if !member.is_learner && !self.has_quorum_with_another() {
                    return Err(Error::NotEnoughStarted);
                }
                let voters = self.voters().count();
                if voters == 1 || self.steady(connection) >= quorum(voters + 1) {
                    Ok(())
                } else {
                    Err(Error::Unhealthy)
                }
            }
            MemberChange::Remove { id } => self.may_remove(*id, connection),
            MemberChange::Update { .. } | MemberChange::Promote { .. } => Ok(()),
        }
    }

    fn may_remove(&self, id: u64, connection: impl Fn(u64) -> Connection) -> Result<(), Error> {
        if self.members.get(&id).is_some_and(|member| member.is_learner) {
            return Ok(());
        }
        let rest = self.voters().filter(|member| member.id != id);
        let (started, all) = count_started(rest);
        if started < quorum(all) {
            return Err(Error::NotEnoughStarted);
        }
        // Without a member that is away the others decide as before.
        if connection(id) == Connection::None {
            return Ok(());
        }
        // Without this one, which is counted, the rest has to be a quorum of itself.
        let rest = self.voters().count().saturating_sub(1);
        if self.steady(connection) > quorum(rest) { Ok(()) } else { Err(Error::Unhealthy) }
    }

    /// Voters that this member has been connected with for long; itself too.
    fn steady(&self, connection: impl Fn(u64) -> Connection) -> usize {
        self.voters().filter(|member| connection(member.id) == Connection::Steady).count()
    }

    /// With one voter more that is not started yet, those that are make a quorum.
    fn has_quorum_with_another(&self) -> bool {
        let (started, all) = count_started(self.voters());
        // A member alone, whose data was restored perhaps, must be able to get company.
        (started == 1 && all == 1) || started >= quorum(all + 1)
    }

    /// With this learner, which is started, as one voter more, those that are make a quorum.
    fn has_quorum_with_learner(&self) -> bool {
        let (started, all) = count_started(self.voters());
        started + 1 >= quorum(all + 1)
    }
}

/// Whether a learner is ready to vote, as its leader knows: `matched` is the last entry that a
/// member is known to have.
///
/// # Errors
/// The answer that the caller gets.
pub fn may_promote(
    membership: &Membership,
    id: u64,
    own: u64,
    is_strict: bool,
    matched: impl Fn(u64) -> Option<u64>,
) -> Result<(), Error> {
    let learner = matched(id).ok_or(Error::MemberNotFound)?;
    let leader = matched(own).unwrap_or(0);
    if learner.saturating_mul(10) < leader.saturating_mul(READY_TENTHS) {
        return Err(Error::LearnerNotReady);
    }
    if is_strict && !membership.has_quorum_with_learner() {
        return Err(Error::NotEnoughStarted);
    }
    Ok(())
}

fn quorum(members: usize) -> usize {
    members / 2 + 1
}

/// How many of them are started, and how many there are.
fn count_started<'m>(members: impl Iterator<Item = &'m Member>) -> (usize, usize) {
    members.fold((0, 0), |(started, all), member| (started + usize::from(!member.name.is_empty()), all + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 1;

    fn member(id: u64, name: &str, is_learner: bool) -> Member {
        let url = format!("http://m{id}:2380");
        Member { id, name: name.to_owned(), peer_ur_ls: vec![url], is_learner, ..Member::default() }
    }

    /// Voters and learners, of which those not named are not started.
    fn cluster(voters: &[(u64, &str)], learners: &[u64]) -> Membership {
        let voters = voters.iter().map(|(id, name)| member(*id, name, false));
        let learners = learners.iter().map(|id| member(*id, "l", true));
        Membership::new(voters.chain(learners), std::iter::empty())
    }

    fn add(id: u64, is_learner: bool) -> MemberChange {
        MemberChange::Add { member: member(id, "", is_learner), learners_max: 1 }
    }

    /// Row 56 of the list of bugs: what was judged is in the rows, once.
    #[test]
    fn a_committed_change_is_judged_by_those_before_it() {
        let mut cluster = cluster(&[(1, "a"), (2, "b"), (3, "c")], &[]);
        let mut take = |change: MemberChange| {
            let verdict = cluster.judge(&change);
            if verdict.is_ok() {
                cluster.apply(change);
            }
            verdict
        };
        assert_eq!(take(add(4, true)), Ok(()));
        assert_eq!(take(add(4, true)), Err(Error::MemberExists));
        assert_eq!(take(add(5, true)), Err(Error::TooManyLearners));
        let wanted = MemberChange::Add { member: member(5, "", true), learners_max: 2 };
        assert_eq!(take(wanted), Ok(()));
        assert_eq!(take(MemberChange::Promote { id: 4 }), Ok(()));
        assert_eq!(take(MemberChange::Promote { id: 4 }), Err(Error::MemberNotLearner));
        assert_eq!(take(MemberChange::Promote { id: 9 }), Err(Error::MemberNotFound));
        assert_eq!(take(MemberChange::Remove { id: 4 }), Ok(()));
        // Rows 54 and 58: an id never comes back.
        assert_eq!(take(MemberChange::Remove { id: 4 }), Err(Error::MemberNotFound));
        assert_eq!(take(add(4, false)), Err(Error::MemberNotFound));
        assert_eq!(take(MemberChange::Promote { id: 4 }), Err(Error::MemberNotFound));
        assert!(cluster.is_removed(4) && cluster.member(4).is_none());
    }

    #[test]
    fn two_members_have_no_url_in_common() {
        let mut cluster = cluster(&[(1, "a"), (2, "b")], &[3]);
        let update = |id, url: &str| MemberChange::Update { id, peer_urls: vec![url.to_owned()] };
        let taken = MemberChange::Add {
            member: Member { id: 9, peer_ur_ls: vec!["http://m2:2380".to_owned()], ..Member::default() },
            learners_max: 1,
        };
        assert_eq!(cluster.judge(&taken), Err(Error::PeerUrlExists));
        assert_eq!(cluster.judge(&update(1, "http://m2:2380")), Err(Error::PeerUrlExists));
        assert_eq!(cluster.judge(&update(1, "http://m1:2380")), Ok(()));
        assert_eq!(cluster.judge(&update(9, "http://new:1")), Err(Error::MemberNotFound));
        // Row 57: a learner with new URLs still learns.
        assert_eq!(cluster.judge(&update(3, "http://new:1")), Ok(()));
        cluster.apply(update(3, "http://new:1"));
        let learner = cluster.member(3).unwrap();
        assert!(learner.is_learner && learner.name == "l" && learner.peer_ur_ls == ["http://new:1"]);
    }

    /// Row 60: (voters, of them not started, of them connected for long, recently) and what etcd
    /// 3.7.1 answers when a voter is added, a learner is added, member 2 is removed.
    #[test]
    fn a_change_leaves_a_quorum() {
        use Connection::{None, Recent, Steady};
        const OK: Result<(), Error> = Ok(());
        const FEW: Result<(), Error> = Err(Error::NotEnoughStarted);
        const ILL: Result<(), Error> = Err(Error::Unhealthy);
        for (names, connections, voter, learner, removal) in [
            (&["a"][..], &[Steady][..], OK, OK, OK),
            (&["a", "b"], &[Steady, Steady], OK, OK, OK),
            (&["a", "b"], &[Steady, None], ILL, ILL, OK),
            (&["a", ""], &[Steady, None], FEW, ILL, OK),
            (&["a", "b", "c"], &[Steady, Steady, Steady], OK, OK, OK),
            (&["a", "b", "c"], &[Steady, Steady, None], ILL, ILL, ILL),
            (&["a", "b", "c"], &[Steady, Recent, Steady], ILL, ILL, ILL),
            (&["a", "b", "c"], &[Steady, None, Steady], ILL, ILL, OK),
            (&["a", "b", ""], &[Steady, Steady, None], FEW, ILL, FEW),
            (&["a", "b", "c", "d"], &[Steady, Steady, Steady, None], OK, OK, OK),
            (&["a", "b", "c", "d"], &[Steady, Steady, None, None], ILL, ILL, ILL),
            (&["a", "b", "c", "d", "e"], &[Steady, Steady, Steady, Steady, None], OK, OK, OK),
            (&["a", "b", "c", "d", "e"], &[Steady, Steady, Steady, None, None], ILL, ILL, ILL),
        ] {
            let voters: Vec<(u64, &str)> = (1..).zip(names.iter().copied()).collect();
            let cluster = cluster(&voters, &[]);
            let connection =
                |id: u64| (1..).zip(connections).find(|(of, _)| *of == id).map_or(None, |(_, is)| *is);
            let asked = format!("{names:?} {connections:?}");
            assert_eq!(cluster.may_begin(&add(9, false), connection), voter, "voter {asked}");
            let learner_added = cluster.may_begin(&add(9, true), connection);
            assert_eq!(learner_added, learner, "learner {asked}");
            assert_eq!(cluster.may_begin(&MemberChange::Remove { id: 2 }, connection), removal, "{asked}");
        }
        let with_learner = cluster(&[(1, "a"), (2, "b"), (3, "c")], &[4]);
        let alone = |id| if id == OWN { Steady } else { None };
        assert_eq!(with_learner.may_begin(&MemberChange::Remove { id: 4 }, alone), OK);
        let last = cluster(&[(1, "a")], &[]);
        assert_eq!(last.may_begin(&MemberChange::Remove { id: 1 }, alone), FEW);
    }

    /// Row 55: a learner that is not started or not caught up gets no vote.
    #[test]
    fn a_learner_is_promoted_when_it_has_nearly_all() {
        let few = cluster(&[(1, "a"), (2, ""), (3, "")], &[4]);
        let three = cluster(&[(1, "a"), (2, "b"), (3, "c")], &[4]);
        let promote = |cluster: &Membership, is_strict, learner: Option<u64>| {
            let matched = |id| if id == OWN { Some(1_000) } else { learner };
            may_promote(cluster, 4, OWN, is_strict, matched)
        };
        assert_eq!(promote(&three, true, None), Err(Error::MemberNotFound));
        assert_eq!(promote(&three, true, Some(0)), Err(Error::LearnerNotReady));
        assert_eq!(promote(&three, true, Some(899)), Err(Error::LearnerNotReady));
        assert_eq!(promote(&three, true, Some(900)), Ok(()));
        assert_eq!(promote(&few, true, Some(1_000)), Err(Error::NotEnoughStarted));
        assert_eq!(promote(&few, false, Some(1_000)), Ok(()));
    }

    #[test]
    fn a_payload_survives_the_round_trip() {
        let change = add(7, true);
        let MemberChange::Add { member, learners_max } = &change else { unreachable!() };
        let payload = MemberChange::encode_add(member, *learners_max);
        assert_eq!(MemberChange::decode_add(payload.clone()), Ok(change));
        assert!(MemberChange::decode_add(payload.slice(..3)).is_err());
    }
}
