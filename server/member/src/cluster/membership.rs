//! The members of a cluster and the rules by which they change: a pure function of the log.
//!
//! A change passes two gates. Where it is asked for, it must leave the cluster a quorum of started
//! and connected members (with `--strict-reconfig-check`; the leader alone knows whether a learner
//! is ready, [`may_promote`]). When it is committed, every member comes to the same verdict
//! about it by the changes before it in the log ([`Membership::judge`]): two callers may have asked
//! for what cannot be had twice. A change that is refused there changes neither rows nor votes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use revd_proto::etcdserverpb::{MemberPromoteRequest, MemberRemoveRequest, MemberUpdateRequest};

pub use revd_proto::etcdserverpb::Member;

use crate::error::Error;
use crate::mutants::{self, Mutant};

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
#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// The only voter beside this one, if there is one only.
    #[must_use]
    pub fn only_other_voter(&self, member: u64) -> Option<u64> {
        let mut others = self.voters().filter(|voter| voter.id != member);
        others.next().filter(|_| others.next().is_none()).map(|voter| voter.id)
    }

    /// Whether a committed change takes effect.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn judge(&self, change: &MemberChange) -> Result<(), Error> {
        let id = change.id();
        // 0 is raft's word for no member.
        let is_former = self.removed.contains(&id) && !mutants::is(Mutant::IdReusedAfterRemoval);
        if id == 0 || is_former {
            return Err(Error::MemberNotFound);
        }
        let found = self.members.get(&id);
        match change {
            MemberChange::Add { member, learners_max } => {
                // As when the same URLs are added twice in a second: the id is made of both.
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
            MemberChange::Remove { .. } => {
                found.ok_or(Error::MemberNotFound)?;
                // A cluster without voters could not even say so.
                let rest = self.voters().filter(|member| member.id != id).count();
                if rest == 0 { Err(Error::NotEnoughStarted) } else { Ok(()) }
            }
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

    /// Whether the members that are started are still a quorum with this change. A change is
    /// refused otherwise, with `--strict-reconfig-check`.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn keeps_quorum(&self, change: &MemberChange) -> Result<(), Error> {
        let is_learner = |id: &u64| self.members.get(id).is_some_and(|member| member.is_learner);
        let (started, all) = match change {
            MemberChange::Update { .. } => return Ok(()),
            MemberChange::Add { member, .. } if member.is_learner => return Ok(()),
            MemberChange::Remove { id } if is_learner(id) => return Ok(()),
            MemberChange::Add { .. } => match count_started(self.voters()) {
                // A member alone, whose data was restored perhaps, must be able to get company.
                (1, 1) => return Ok(()),
                (started, all) => (started, all + 1),
            },
            MemberChange::Remove { id } => count_started(self.voters().filter(|member| member.id != *id)),
            MemberChange::Promote { .. } => {
                let (started, all) = count_started(self.voters());
                (started + 1, all + 1) // a learner that has the log is started
            }
        };
        if started < quorum(all) { Err(Error::NotEnoughStarted) } else { Ok(()) }
    }

    /// Whether enough members are connected for this change, as the member that is asked for it
    /// sees the others. A change is refused otherwise, with `--strict-reconfig-check`.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn stays_healthy(
        &self,
        change: &MemberChange,
        connection: impl Fn(u64) -> Connection,
    ) -> Result<(), Error> {
        let voters = self.voters().count();
        let is_enough = match change {
            MemberChange::Add { .. } => voters == 1 || self.steady(connection) >= quorum(voters + 1),
            MemberChange::Remove { id } => {
                self.members.get(id).is_some_and(|member| member.is_learner)
                    // Without a member that is away the others decide as before.
                    || connection(*id) == Connection::None
                    // Without the removed one, which is counted, the rest has to be a quorum.
                    || self.steady(connection) > quorum(voters.saturating_sub(1))
            }
            MemberChange::Update { .. } | MemberChange::Promote { .. } => true,
        };
        if is_enough { Ok(()) } else { Err(Error::Unhealthy) }
    }

    /// Whether the voters that the leader is connected with are a quorum with this change. Several
    /// changes may have been asked for at once, at several members, each of which alone was
    /// harmless: they pass here one after the other.
    ///
    /// # Errors
    /// The answer that its caller gets.
    pub fn leaves_quorum(
        &self,
        change: &MemberChange,
        is_connected: impl Fn(u64) -> bool,
    ) -> Result<(), Error> {
        let mut voters: BTreeSet<u64> = self.voters().map(|member| member.id).collect();
        let is_news = match change {
            // A member alone must be able to get company.
            MemberChange::Add { member, .. } if !member.is_learner && voters.len() > 1 => {
                voters.insert(member.id)
            }
            MemberChange::Promote { id } => voters.insert(*id),
            MemberChange::Remove { id } => voters.remove(id),
            MemberChange::Add { .. } | MemberChange::Update { .. } => false,
        };
        let connected = voters.iter().filter(|id| is_connected(**id)).count();
        if is_news && connected < quorum(voters.len()) { Err(Error::Unhealthy) } else { Ok(()) }
    }

    /// Whether the voters of whom this is so are a quorum.
    pub fn has_quorum(&self, is_so: impl Fn(u64) -> bool) -> bool {
        let voters = self.voters().filter(|member| is_so(member.id)).count();
        voters >= quorum(self.voters().count())
    }

    /// Voters that this member has been connected with for long; itself too.
    fn steady(&self, connection: impl Fn(u64) -> Connection) -> usize {
        self.voters().filter(|member| connection(member.id) == Connection::Steady).count()
    }
}

/// Whether a learner is ready to vote, as its leader knows: `matched` is the last entry that a
/// member is known to have.
///
/// # Errors
/// The answer that the caller gets.
pub fn may_promote(id: u64, own: u64, matched: impl Fn(u64) -> Option<u64>) -> Result<(), Error> {
    let learner = matched(id).ok_or(Error::MemberNotFound)?;
    let leader = matched(own).unwrap_or(0);
    if learner.saturating_mul(10) < leader.saturating_mul(READY_TENTHS) {
        return Err(Error::LearnerNotReady);
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
    fn bug_056_a_committed_change_is_judged_by_those_before_it() {
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
    fn bug_057_two_members_have_no_url_in_common_and_a_learner_with_others_learns() {
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
    fn bug_060_a_change_leaves_a_quorum() {
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
            let may = |change: MemberChange| {
                cluster.keeps_quorum(&change).and_then(|()| cluster.stays_healthy(&change, connection))
            };
            assert_eq!(may(add(9, false)), voter, "voter {asked}");
            assert_eq!(may(add(9, true)), learner, "learner {asked}");
            assert_eq!(may(MemberChange::Remove { id: 2 }), removal, "{asked}");
        }
        let with_learner = cluster(&[(1, "a"), (2, "b"), (3, "c")], &[4]);
        let alone = |id| if id == OWN { Steady } else { None };
        assert_eq!(with_learner.stays_healthy(&MemberChange::Remove { id: 4 }, alone), OK);
        assert_eq!(with_learner.keeps_quorum(&MemberChange::Remove { id: 4 }), OK);
        let last = cluster(&[(1, "a")], &[]);
        assert_eq!(last.keeps_quorum(&MemberChange::Remove { id: 1 }), FEW);
        assert_eq!(last.judge(&MemberChange::Remove { id: 1 }), FEW);
    }

    /// Row 55: a learner that is not started or not caught up gets no vote.
    #[test]
    fn bug_055_a_learner_is_promoted_when_it_has_nearly_all() {
        let promote =
            |learner: Option<u64>| may_promote(4, OWN, |id| if id == OWN { Some(1_000) } else { learner });
        assert_eq!(promote(None), Err(Error::MemberNotFound));
        assert_eq!(promote(Some(0)), Err(Error::LearnerNotReady));
        assert_eq!(promote(Some(899)), Err(Error::LearnerNotReady));
        assert_eq!(promote(Some(900)), Ok(()));
        let few = cluster(&[(1, "a"), (2, ""), (3, "")], &[4]);
        assert_eq!(few.keeps_quorum(&MemberChange::Promote { id: 4 }), Err(Error::NotEnoughStarted));
        let three = cluster(&[(1, "a"), (2, "b"), (3, "")], &[4]);
        assert_eq!(three.keeps_quorum(&MemberChange::Promote { id: 4 }), Ok(()));
    }

    /// Three voters of which two are not started yet: each was added while the other was not there.
    #[test]
    fn changes_that_were_asked_for_at_once_leave_a_quorum() {
        let is_connected = |id| id <= 3;
        let mut cluster = cluster(&[(1, "a"), (2, "b"), (3, "c"), (7, ""), (8, "")], &[4]);
        let may = |cluster: &Membership, change| cluster.leaves_quorum(&change, is_connected);
        assert_eq!(may(&cluster, add(9, false)), Err(Error::Unhealthy));
        assert_eq!(may(&cluster, add(9, true)), Ok(()));
        assert_eq!(may(&cluster, MemberChange::Promote { id: 4 }), Err(Error::Unhealthy));
        assert_eq!(may(&cluster, MemberChange::Remove { id: 3 }), Err(Error::Unhealthy));
        for change in [7, 4, 99].map(|id| MemberChange::Remove { id }) {
            assert_eq!(may(&cluster, change), Ok(()), "the others decide as before");
        }
        cluster.apply(MemberChange::Remove { id: 7 });
        assert_eq!(may(&cluster, add(9, false)), Ok(()));
        let alone = self::cluster(&[(1, "a")], &[4]);
        assert_eq!(may(&alone, add(9, false)), Ok(()), "it has nobody else to ask");
        assert_eq!(may(&alone, MemberChange::Promote { id: 4 }), Err(Error::Unhealthy));
        assert_eq!(alone.only_other_voter(2), Some(1));
        assert_eq!((alone.only_other_voter(1), cluster.only_other_voter(1)), (None, None));
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
