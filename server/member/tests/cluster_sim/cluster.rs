//! Members and the network between them, one step at a time.

use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{HashKv, View};
use revd_engine::random::Random;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::PeerMessage;

use crate::history::{History, Seen};
use crate::member::{Member, PreVotes};
use crate::network::{Link, Network};

/// Steps in which a cluster without faults comes to rest, many times over.
const REST_STEPS_MAX: usize = 60_000;

/// A state on its way: its ends, the term of the leader that sends it, and its file.
struct StateOnItsWay {
    link: Link,
    term: u64,
    file: SimDisk,
    /// The sender has another process by now.
    is_forgotten: bool,
}

pub(crate) struct Cluster {
    members: Vec<Member>,
    network: Network,
    states: Vec<StateOnItsWay>,
    /// One of them gets there in so many steps.
    state_steps: u64,
    random: Random,
    history: History,
    /// Things fail, and clients call.
    is_wild: bool,
}

impl Cluster {
    pub(crate) fn new(seed: u64, members: u64, pre_votes: PreVotes) -> Self {
        Self {
            members: (1..=members).map(|id| Member::new(id, members, pre_votes)).collect(),
            network: Network::new(members),
            states: Vec::new(),
            state_steps: if seed.is_multiple_of(2) { 50 } else { 2_500 },
            random: Random::new(seed ^ 0xC105_7E12),
            history: History::default(),
            is_wild: true,
        }
    }

    fn pick(&mut self) -> usize {
        usize::try_from(self.random.below(self.members.len() as u64)).unwrap()
    }

    fn pick_link(&mut self) -> Link {
        let links = self.network.links();
        self.random.pick(&links)
    }

    fn member(&mut self, id: u64) -> &mut Member {
        &mut self.members[usize::try_from(id).unwrap() - 1]
    }

    /// Something happens somewhere.
    pub(crate) fn step(&mut self) {
        self.network.pass_time();
        let at = self.pick();
        match self.random.below(100) {
            0..54 => self.deliver(),
            54..56 => self.members[at].event(LogEvent::Tick),
            56..66 => self.members[at].written(),
            66..79 => self.members[at].work(&mut self.random, &mut self.history),
            79 => self.members[at].fetched(&mut self.random, self.is_wild, &mut self.history),
            80..84 => self.members[at].save(),
            84..89 => self.connect(),
            89..97 if self.is_wild => self.members[at].call(&mut self.random, &self.history),
            97 if self.is_wild && self.random.one_in(5) => self.fail(at),
            _ => {}
        }
        self.turn(at);
        self.send_states(at);
        self.deliver_state();
        self.restart(at);
    }

    /// A member that is down comes back, one that has stopped is gone.
    fn restart(&mut self, at: usize) {
        if self.members[at].is_over() {
            self.history.seen.handed_over += 1;
            self.crash(at);
        }
        if !self.members[at].is_running() && (!self.is_wild || self.random.one_in(15)) {
            let seed = self.random.below(u64::MAX);
            self.members[at].start(seed);
        }
    }

    fn turn(&mut self, at: usize) {
        let from = self.members[at].id;
        for (to, message) in self.members[at].turn(&mut self.history) {
            let is_raft = matches!(message, PeerMessage::Raft(_));
            if self.is_wild && is_raft && self.random.one_in(40) {
                continue; // no room in the queue of the connection
            }
            self.network.send((from, to), message);
        }
    }

    fn send_states(&mut self, at: usize) {
        let from = self.members[at].id;
        for (to, term, file) in self.members[at].sending() {
            self.states.push(StateOnItsWay { link: (from, to), term, file, is_forgotten: false });
        }
    }

    /// A state gets there, or not; meanwhile another member may have become the leader.
    fn deliver_state(&mut self) {
        if self.states.is_empty() || !self.random.one_in(if self.is_wild { self.state_steps } else { 50 }) {
            return;
        }
        let at = self.random.below(self.states.len() as u64);
        let StateOnItsWay { link, term, file, is_forgotten } =
            self.states.swap_remove(usize::try_from(at).unwrap());
        let (from, to) = link;
        let is_broken = self.network.is_cut(link) || self.is_wild && self.random.one_in(4);
        let is_there = !is_broken && self.member(to).receive(from, term, file);
        self.history.seen.late_states += u64::from(is_there && term < self.member(to).term());
        let is_known = is_there && !(self.is_wild && self.random.one_in(8));
        if !is_forgotten {
            self.member(from).event(LogEvent::StateSent { to, is_there: is_known });
        }
    }

    fn deliver(&mut self) {
        let link = self.pick_link();
        for _ in 0..=self.random.below(3) {
            let Some(message) = self.network.deliver(link) else { return };
            self.arrive(link, message);
        }
        if self.random.one_in(2) {
            self.turn(usize::try_from(link.1).unwrap() - 1);
        }
    }

    fn arrive(&mut self, (from, to): Link, message: PeerMessage) {
        self.member(to).event(LogEvent::Peer { from, message });
    }

    fn connect(&mut self) {
        let link = self.pick_link();
        let ends = [link.0, link.1];
        let are_up = ends.iter().all(|end| self.member(*end).is_running());
        if are_up && !self.network.is_cut(link) && !self.network.is_connected(link) {
            self.network.connect(link);
            self.member(link.0).event(LogEvent::PeerConnected(link.1));
        }
    }

    fn disconnect(&mut self, link: Link) {
        if self.network.is_connected(link) {
            for message in self.network.disconnect(link, &mut self.random) {
                self.arrive(link, message);
            }
            self.member(link.0).event(LogEvent::PeerLost(link.1));
        }
    }

    fn crash(&mut self, at: usize) {
        let id = self.members[at].id;
        self.members[at].crash(&mut self.random);
        for state in self.states.extract_if(.., |state| state.link.1 == id) {
            let (from, to) = state.link;
            let event = LogEvent::StateSent { to, is_there: false };
            self.members[usize::try_from(from).unwrap() - 1].event(event);
        }
        // A state that it was sending may be whole at its receiver.
        self.states.iter_mut().filter(|state| state.link.0 == id).for_each(|state| state.is_forgotten = true);
        for link in self.network.links() {
            if link.0 == id || link.1 == id {
                self.disconnect(link);
            }
        }
    }

    fn fail(&mut self, at: usize) {
        match self.random.below(6) {
            0 => {
                self.history.seen.crashes += 1;
                self.crash(at);
            }
            1 => self.members[at].stop(),
            2 => {
                let link = self.pick_link();
                self.disconnect(link);
            }
            3 => {
                // One way is cut; its end learns of it late, or never.
                let link = self.pick_link();
                let steps = 1 + self.random.below(600);
                self.network.cut(link, steps);
            }
            4 => {
                self.history.seen.cuts += 1;
                let (id, steps) = (self.members[at].id, 1 + self.random.below(900));
                for link in self.network.links() {
                    if link.0 == id || link.1 == id {
                        self.network.cut(link, steps);
                    }
                }
            }
            // The leader stands still: its connections stay.
            _ => {
                if let Some(leader) = self.members.iter().find(|member| member.leads()) {
                    let (id, steps) = (leader.id, 1 + self.random.below(600));
                    let links = self.network.links();
                    links.into_iter().filter(|link| link.1 == id).for_each(|link| {
                        self.network.cut(link, steps);
                    });
                }
            }
        }
    }

    /// Nothing fails but these links, which are cut for ever; returns the leader and its term at
    /// the end of so many steps.
    pub(crate) fn leader_behind_cuts(&mut self, cuts: &[Link], steps: usize) -> Option<(u64, u64)> {
        self.is_wild = false;
        cuts.iter().for_each(|link| self.network.cut(*link, u64::MAX));
        (0..steps).for_each(|_| self.step());
        let leaders = self.members.iter().filter(|member| member.leads());
        leaders.map(|member| (member.id, member.term())).max_by_key(|(_, term)| *term)
    }

    /// Nothing fails any more, and nobody calls: everything comes to an end.
    pub(crate) fn heal(&mut self) {
        self.is_wild = false;
        self.network.heal();
        for _ in 0..REST_STEPS_MAX {
            self.step();
            if self.is_at_rest() {
                return;
            }
        }
        let open: Vec<_> = self
            .members
            .iter()
            .map(|member| (member.open_calls(), member.applied(), member.leads()))
            .collect();
        panic!("the cluster does not come to rest: calls, applied index and leadership {open:?}");
    }

    fn is_at_rest(&self) -> bool {
        let applied = self.members[0].applied();
        self.members
            .iter()
            .all(|member| member.is_running() && member.open_calls() == 0 && member.applied() == applied)
            && self.members.iter().any(Member::leads)
    }

    /// Something is written into the state of a member that is not in its log, while nothing fails
    /// and clients call. Returns the members that are named in the end, as each member has it.
    pub(crate) fn forge(mut self, at: usize, steps: usize) -> Vec<Vec<u64>> {
        self.heal();
        self.members[at].forge();
        for _ in 0..steps {
            let caller = self.pick();
            if self.members[caller].is_running() && self.random.one_in(10) {
                self.members[caller].call(&mut self.random, &self.history);
            }
            self.step();
        }
        let corrupt = |member: &mut Member| member.machine().unwrap().corrupt_members().to_vec();
        self.members.iter_mut().map(corrupt).collect()
    }

    /// All members are the same, and none was taken for one that is not.
    pub(crate) fn end(mut self) -> Seen {
        let named = |member: &mut Member| !member.machine().unwrap().corrupt_members().is_empty();
        assert!(!self.members.iter_mut().any(named), "a member is named as corrupt");
        let hashes: Vec<u32> = self
            .members
            .iter_mut()
            .map(|member| hash_of(member.machine().unwrap().store_mut().view()))
            .collect();
        assert!(hashes.iter().all(|hash| *hash == hashes[0]), "members differ: {hashes:?}");
        self.history.seen
    }
}

fn hash_of(view: View) -> u32 {
    let mut run = HashKv::new(view, 0).unwrap();
    loop {
        if let Some(hashed) = run.step(usize::MAX).unwrap() {
            return hashed.hash;
        }
    }
}
