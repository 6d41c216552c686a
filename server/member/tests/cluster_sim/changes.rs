//! Changes of members: what an operator asks of a cluster, and what must be true of leaders and
//! entries whoever the members are.

use revd_member::apply::command;
use revd_member::cluster::membership::MemberChange;

use crate::cluster::Cluster;
use crate::history::NewLeader;
use crate::member::Member;
use crate::operator::{self, Asked};

/// Steps in which a change that is asked for again and again takes effect.
const GOAL_STEPS_MAX: usize = 60_000;

/// A change of members that an operator insists on.
#[derive(Debug, Clone, Copy)]
enum Goal {
    Voter(u64),
    Learner(u64),
    Gone(u64),
}

impl Goal {
    fn member(self) -> u64 {
        let (Self::Voter(id) | Self::Learner(id) | Self::Gone(id)) = self;
        id
    }
}

impl Cluster {
    /// An operator asks a member for some change.
    pub(crate) fn ask_for_anything(&mut self, at: usize) {
        let Some(known) = self.members[at].membership() else { return };
        let new = self.members.len() as u64 + 1;
        let past = 1 + self.random.below(new - 1);
        let asked = operator::any(&mut self.random, &known, new, past);
        // The only voter takes the first other one on trust.
        let is_forgotten = known.members().count() > 2 && self.random.one_in(4);
        self.ask(at, &asked, is_forgotten);
    }

    /// An operator asks a member for this change; a member that is to be added is made.
    fn ask(&mut self, at: usize, asked: &Asked, is_forgotten: bool) {
        let Some(known) = self.members[at].membership() else { return };
        if !operator::is_admitted(asked, &known) {
            self.history.seen.changes.refused += 1;
            return;
        }
        let (kind, payload) = asked.clone();
        if let Ok(MemberChange::Add { member, .. }) = MemberChange::decode_add(payload.clone().into())
            && kind == command::Kind::MemberAdd
            && member.id > self.members.len() as u64
        {
            self.members.push(Member::joining(member.id, is_forgotten));
        }
        self.members[at].change(kind, payload.into(), &self.history);
    }

    /// Looks at leaders and entries that nobody has seen before.
    pub(crate) fn check_news(&mut self) {
        for NewLeader { term, member: id, voters } in std::mem::take(&mut self.history.new_leaders) {
            assert!(voters.contains(&id), "member {id} leads term {term} without a vote");
            let has_voted = |voter: &u64| {
                *voter == id || self.members[self.place(*voter)].files().may_have_voted(term, id)
            };
            let votes = voters.iter().filter(|voter| has_voted(voter)).count();
            assert!(votes * 2 > voters.len(), "term {term}: {votes} votes of {voters:?} for {id}");
        }
        for index in std::mem::take(&mut self.history.new_entries) {
            let has_it = |voter: &&u64| self.members[self.place(**voter)].files().last() >= index;
            let about = self.history.voters_about(index);
            let is_quorum = |voters: &Vec<u64>| voters.iter().filter(has_it).count() * 2 > voters.len();
            assert!(about.iter().any(is_quorum), "entry {index} is not with a quorum of {about:?}");
            self.changed(index);
        }
    }

    /// Asks for a change until it is in effect, while things fail.
    fn see_to(&mut self, goal: Goal) {
        for step in 0..GOAL_STEPS_MAX {
            self.step();
            if !self.is_wild && step.is_multiple_of(300) {
                let at = self.pick();
                self.members[at].call(&mut self.random, &self.history);
            }
            let cluster = self.history.cluster().expect("it begins with one");
            let member = cluster.membership.member(goal.member());
            let is_there = match goal {
                Goal::Voter(_) => member.is_some_and(|member| !member.is_learner && !member.name.is_empty()),
                Goal::Learner(_) => member.is_some_and(|member| !member.name.is_empty()),
                Goal::Gone(_) => member.is_none(),
            };
            if is_there {
                return;
            }
            let asked = match (goal, member) {
                (Goal::Gone(id), _) => operator::remove(id),
                (Goal::Voter(id), Some(member)) if member.is_learner => operator::promote(id),
                (Goal::Voter(id), None) => operator::add(id, false),
                (Goal::Learner(id), None) => operator::add(id, true),
                (Goal::Voter(_) | Goal::Learner(_), Some(_)) => continue, // it is being started
            };
            if step.is_multiple_of(40) {
                let at = self.pick();
                self.ask(at, &asked, false);
            }
        }
        let open: Vec<_> = self.members.iter().map(Member::standing).collect();
        panic!("{goal:?} is not reached: {open:#?}");
    }

    /// One member becomes three, then five, then three others, none of which was there before:
    /// each is removed when another one has taken its place, while things fail and clients call.
    pub(crate) fn replace_all(&mut self) {
        use Goal::{Gone, Learner, Voter};
        let grow = [Voter(2), Learner(3), Voter(3), Voter(4), Learner(5), Voter(5)];
        let replace = [Gone(1), Learner(6), Voter(6), Gone(2), Gone(3), Learner(7), Voter(7), Gone(4)];
        let rest = [Voter(8), Gone(5)];
        grow.into_iter().chain(replace).chain(rest).for_each(|goal| self.see_to(goal));
    }

    /// One of three members is away while a fourth comes and another one goes; returns the one that
    /// is away, the one that is gone, and the one that stays.
    fn replace_one_while_another_is_away(&mut self) -> (u64, u64, u64) {
        self.is_wild = false;
        self.rest();
        let leader = self.members.iter().find(|member| member.leads()).expect("it rests").id;
        let (away, gone) = (1 + leader % 3, 1 + (leader + 1) % 3);
        // It hears nothing more, and the others do not know: changes are let through.
        for link in self.network.links() {
            if link.0 == away || link.1 == away {
                self.network.cut(link, u64::MAX);
            }
        }
        // Connections have to be there for a while.
        (0..2_000).for_each(|_| self.step());
        self.ask(self.place(leader), &operator::add(4, true), false);
        while self.history.cluster().expect("it begins with one").membership.member(4).is_none() {
            self.step();
        }
        self.leave_down(away);
        self.network.heal();
        [Goal::Learner(4), Goal::Voter(4), Goal::Gone(gone)].into_iter().for_each(|goal| self.see_to(goal));
        (away, gone, leader)
    }

    /// The fourth member needs the vote of the one that was away and has never heard of it.
    pub(crate) fn need_the_vote_of_one_that_was_away(&mut self) {
        let (away, gone, stays) = self.replace_one_while_another_is_away();
        self.leave_down(stays);
        self.come_back_to_an_unknown_leader(away, gone);
        self.member(stays).never_starts = false;
    }

    /// The fourth member leads when the one comes back that has never heard of it.
    pub(crate) fn follow_a_leader_that_is_not_known(&mut self) {
        let (away, gone, stays) = self.replace_one_while_another_is_away();
        for step in 0..GOAL_STEPS_MAX {
            if self.member(4).leads() {
                break;
            }
            if step.is_multiple_of(3_000) {
                self.crash(self.place(stays));
            }
            self.step();
        }
        let term = self.member(4).term();
        self.come_back_to_an_unknown_leader(away, gone);
        assert_eq!(self.member(4).term(), term, "it leads on");
    }

    /// In the end member 4 leads, and the member that was away knows all that the log says.
    fn come_back_to_an_unknown_leader(&mut self, away: u64, gone: u64) {
        self.member(away).never_starts = false;
        for _ in 0..GOAL_STEPS_MAX {
            self.step();
            let knows = self.member(away).membership().is_some_and(|members| members.is_removed(gone));
            if self.member(4).leads() && knows {
                return;
            }
        }
        let open: Vec<_> = self.members.iter().map(Member::standing).collect();
        panic!("member 4 does not lead member {away}: {open:#?}");
    }

    /// The leader of two voters removes itself, and the other one does not hear of it for long.
    pub(crate) fn remove_the_leader_of_two(&mut self) {
        self.is_wild = false;
        self.rest();
        let leader = self.members.iter().find(|member| member.leads()).expect("it rests").id;
        let at = self.place(leader);
        self.ask(at, &operator::remove(leader), false);
        while self.members[at].is_a_voter() {
            self.step();
        }
        for link in self.network.links() {
            self.network.disconnect(link, &mut self.random);
            self.network.cut(link, 4_000);
        }
        (0..4_000).for_each(|_| self.step());
        let other = &self.members[1 - at];
        let knows = other.membership().is_some_and(|members| members.is_removed(leader));
        assert!(knows || self.members[at].is_running(), "the other one needs its vote");
    }

    /// The operator hears of a committed change.
    fn changed(&mut self, index: u64) {
        let entry = self.history.entry(index).expect("it is new").clone();
        let Some(judged) = &entry.change else { return };
        if judged.verdict.is_err() {
            self.history.seen.changes.judged_bad += 1;
            return;
        }
        let (_, command) = command::decode_member_change(&entry.data).expect("it was judged well");
        let before = self.history.cluster_at(index - 1).map_or(0, |cluster| cluster.votes.voters.len());
        match command.member_change().unwrap().unwrap() {
            MemberChange::Add { member, .. } => {
                if before == 1 {
                    self.member(member.id).never_starts = false;
                }
                let changes = &mut self.history.seen.changes;
                *if member.is_learner { &mut changes.learners } else { &mut changes.voters } += 1;
            }
            MemberChange::Remove { id } => {
                let leads = u64::from(self.history.leader_of(entry.term) == Some(id));
                self.history.seen.changes.leaders_removed += leads;
                self.history.seen.changes.removed += 1;
            }
            MemberChange::Update { .. } => self.history.seen.changes.updated += 1,
            MemberChange::Promote { id } => {
                assert!(self.member(id).has_begun(), "member {id} has never run and votes");
                self.history.seen.changes.promoted += 1;
            }
        }
    }
}
