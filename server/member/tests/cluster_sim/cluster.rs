//! Members and the network between them, one step at a time.

use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{HashKv, View};
use revd_engine::random::Random;
use revd_member::cores::log_events::LogEvent;
use revd_member::peer::PeerMessage;
use revd_member::wal::birth::BIRTH;

use crate::history::{History, Seen};
use crate::member::{End, Member, PreVotes};
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
    pub(crate) members: Vec<Member>,
    pub(crate) network: Network,
    states: Vec<StateOnItsWay>,
    /// One of them gets there in so many steps.
    state_steps: u64,
    pub(crate) random: Random,
    pub(crate) history: History,
    /// Things fail, and clients call.
    pub(crate) is_wild: bool,
    /// An operator changes the members.
    pub(crate) changes_members: bool,
}

impl Cluster {
    pub(crate) fn new(seed: u64, members: u64, pre_votes: PreVotes) -> Self {
        let all: Vec<Member> =
            (1..=members).map(|id| Member::of_new_cluster(id, members, pre_votes)).collect();
        let mut history = History::default();
        history.begin(BIRTH.index, all[0].cluster().expect("it was just started"));
        Self {
            members: all,
            network: Network::new(members),
            states: Vec::new(),
            state_steps: if seed.is_multiple_of(2) { 50 } else { 2_500 },
            random: Random::new(seed ^ 0xC105_7E12),
            history,
            is_wild: true,
            changes_members: false,
        }
    }

    /// A member that has begun.
    pub(crate) fn pick(&mut self) -> usize {
        let id = self.random.pick(&self.network.members());
        self.place(id)
    }

    fn pick_link(&mut self) -> Option<Link> {
        let links = self.network.links();
        (!links.is_empty()).then(|| self.random.pick(&links))
    }

    pub(crate) fn place(&self, id: u64) -> usize {
        self.members.iter().position(|member| member.id == id).expect("there is such a member")
    }

    pub(crate) fn member(&mut self, id: u64) -> &mut Member {
        let at = self.place(id);
        &mut self.members[at]
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
            98 if self.is_wild && self.changes_members => self.ask_for_anything(at),
            _ => {}
        }
        self.turn(at);
        self.send_states(at);
        self.deliver_state();
        self.restart(at);
        let is_new = |member: &Member| member.is_down() && !self.network.has(member.id);
        if self.members.iter().any(is_new) && self.random.one_in(30) {
            self.begin();
        }
        self.check_news();
    }

    /// A member that is down comes back, one that has stopped is gone.
    fn restart(&mut self, at: usize) {
        if self.members[at].is_over() {
            self.history.seen.handed_over += 1;
            self.crash(at);
        }
        if self.members[at].is_down() && (!self.is_wild || self.random.one_in(15)) {
            self.start(at);
        }
    }

    fn start(&mut self, at: usize) {
        let (seed, asked) = (self.random.below(u64::MAX), self.pick());
        let remote = self.members[asked].remote();
        self.members[at].start(seed, remote);
        self.bury(at);
    }

    /// A member begins whose addition was asked for.
    fn begin(&mut self) {
        let is_new = |member: &&Member| member.is_down() && !self.network.has(member.id);
        let new: Vec<u64> = self.members.iter().filter(is_new).map(|member| member.id).collect();
        let id = self.random.pick(&new);
        let at = self.place(id);
        self.start(at);
        if self.members[at].is_running() {
            let others = self.network.members();
            self.network.join(id, others.into_iter());
        }
    }

    /// A member that has ended for good leaves the network.
    fn bury(&mut self, at: usize) {
        let Member { id, end: Some(end), .. } = self.members[at] else { return };
        if !self.network.has(id) {
            return;
        }
        let cluster = self.history.cluster().expect("it begins with one");
        assert!(cluster.membership.is_removed(id), "member {id} has ended and is still one");
        let changes = &mut self.history.seen.changes;
        *match end {
            End::Left => &mut changes.left,
            End::Told => &mut changes.told,
            End::Found => &mut changes.found,
        } += 1;
        self.disconnect_all(id);
        self.network.leave(id);
    }

    fn turn(&mut self, at: usize) {
        let from = self.members[at].id;
        let (messages, gone) = self.members[at].turn(&mut self.history);
        for (to, message) in messages {
            let is_raft = matches!(message, PeerMessage::Raft(_));
            if self.is_wild && is_raft && self.random.one_in(40) {
                continue; // no room in the queue of the connection
            }
            self.network.send((from, to), message);
        }
        for member in gone {
            self.disconnect((from, member));
            self.disconnect((member, from));
        }
        self.bury(at);
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
        let sender = self.place(from);
        let is_meant = self.members[sender].dials(to) || is_forgotten;
        let is_there = !is_broken && is_meant && self.member(to).receive(from, term, file);
        self.history.seen.late_states += u64::from(is_there && term < self.member(to).term());
        let is_known = is_there && !(self.is_wild && self.random.one_in(8));
        if !is_forgotten {
            self.member(from).event(LogEvent::StateSent { to, is_there: is_known });
        }
    }

    fn deliver(&mut self) {
        let Some(link) = self.pick_link() else { return };
        for _ in 0..=self.random.below(3) {
            let Some(message) = self.network.deliver(link) else { return };
            self.arrive(link, message);
        }
        if self.random.one_in(2) {
            let at = self.place(link.1);
            self.turn(at);
        }
    }

    fn arrive(&mut self, (from, to): Link, message: PeerMessage) {
        self.member(to).event(LogEvent::Peer { from, message });
    }

    fn connect(&mut self) {
        let Some(link) = self.pick_link() else { return };
        let (dialer, other) = (self.place(link.0), self.place(link.1));
        let Some(membership) = self.members[other].membership() else { return };
        let is_known = self.members[dialer].dials(link.1);
        // One that dials and is not known is dialed back, while its connection is there.
        let is_guest = self.members[dialer].is_running() && self.network.is_connected((link.1, link.0));
        let may_dial = (is_known || is_guest) && !self.network.is_cut(link);
        if !may_dial || self.network.is_connected(link) {
            return;
        }
        if membership.is_removed(link.0) {
            if is_known {
                self.members[dialer].sent_away(link.1);
            }
        // Not for long, if it was not removed.
        } else if !self.members[other].drops(link.0) || self.random.one_in(20) {
            self.network.connect(link);
            self.history.seen.changes.guests += u64::from(!is_known);
            self.members[dialer].event(LogEvent::PeerConnected(link.1));
        }
    }

    pub(crate) fn disconnect(&mut self, link: Link) {
        if self.network.is_connected(link) {
            for message in self.network.disconnect(link, &mut self.random) {
                self.arrive(link, message);
            }
            self.member(link.0).event(LogEvent::PeerLost(link.1));
            let back = (link.1, link.0);
            if !self.members[self.place(back.0)].dials(back.1) {
                self.disconnect(back); // it was a guest
            }
        }
    }

    pub(crate) fn crash(&mut self, at: usize) {
        let id = self.members[at].id;
        self.members[at].crash(&mut self.random);
        self.disconnect_all(id);
    }

    /// A member ends, and is not started again for now.
    pub(crate) fn leave_down(&mut self, id: u64) {
        self.member(id).never_starts = true;
        self.crash(self.place(id));
    }

    fn disconnect_all(&mut self, id: u64) {
        for state in self.states.extract_if(.., |state| state.link.1 == id) {
            let (from, to) = state.link;
            let event = LogEvent::StateSent { to, is_there: false };
            let at = self.members.iter().position(|member| member.id == from).expect("it is there");
            self.members[at].event(event);
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
                if let Some(link) = self.pick_link() {
                    self.disconnect(link);
                }
            }
            3 => {
                // One way is cut; its end learns of it late, or never.
                if let Some(link) = self.pick_link() {
                    let steps = 1 + self.random.below(600);
                    self.network.cut(link, steps);
                }
            }
            4 => {
                self.history.seen.cuts += 1;
                let (id, steps) = (self.members[at].id, self.steps_of_cut());
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

    /// Some cuts are so long that the others elect a leader meanwhile, and go on beside one that
    /// does not know: a member ticks in one of so many steps, and waits ten to twenty ticks.
    fn steps_of_cut(&mut self) -> u64 {
        let election = 20 * 50 * self.members.len() as u64;
        // A member that is away while most others are replaced knows none that could let it in.
        let is_long = !self.changes_members && self.random.one_in(4);
        1 + self.random.below(if is_long { 2 * election } else { 900 })
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

    /// Nothing fails any more, and nobody calls: everything comes to an end. Then the cluster
    /// serves.
    pub(crate) fn heal(&mut self) {
        self.is_wild = false;
        self.network.heal();
        self.rest();
        let (puts, reads) = (self.history.seen.puts, self.history.seen.reads);
        let ids = self.serving();
        for id in &ids {
            let at = self.place(*id);
            self.members[at].call_once(&self.history);
        }
        self.rest();
        let seen = &self.history.seen;
        let served = (seen.puts - puts, seen.reads - reads);
        assert!(served.0 > 0 && served.1 > 0, "of {ids:?} are served {served:?}: {:?}", self.history.seen);
    }

    pub(crate) fn rest(&mut self) {
        for _ in 0..REST_STEPS_MAX {
            self.step();
            if self.is_at_rest() {
                return;
            }
        }
        let has_begun = |member: &&Member| member.end.is_some() || self.network.has(member.id);
        let open: Vec<_> = self.members.iter().filter(has_begun).map(Member::standing).collect();
        let cluster = self.history.cluster().map(|cluster| &cluster.votes);
        panic!("the cluster does not come to rest: {cluster:?}, {open:#?}");
    }

    /// Members that are in the cluster and are not forgotten.
    fn serving(&self) -> Vec<u64> {
        let cluster = self.history.cluster().expect("it begins with one");
        let members = self.members.iter().filter(|member| !member.never_starts);
        members.map(|member| member.id).filter(|id| cluster.membership.member(*id).is_some()).collect()
    }

    fn is_at_rest(&self) -> bool {
        let ids = self.serving();
        let (serving, others): (Vec<&Member>, Vec<&Member>) =
            self.members.iter().partition(|member| ids.contains(&member.id));
        let applied = serving[0].applied();
        // One that is removed ends when it meets a member that knows.
        let can_end = |member: &Member| ids.iter().any(|id| member.dials(*id));
        let is_calm = |member: &Member| member.is_running() && !member.is_stopping();
        serving
            .iter()
            .all(|member| is_calm(member) && member.open_calls() == 0 && member.applied() == applied)
            && serving.iter().any(|member| member.leads())
            && !others.iter().any(|member| member.is_running() && can_end(member))
    }

    /// Something is written into the state of a member that is not in its log, while nothing fails
    /// and clients call. Returns the members that are named in the end, as each member has it.
    pub(crate) fn forge(mut self, at: usize, steps: usize) -> Vec<Vec<u64>> {
        self.heal();
        self.members[at].forge();
        self.call_for(steps);
        let corrupt = |member: &mut Member| member.machine().unwrap().corrupt_members().to_vec();
        self.members.iter_mut().map(corrupt).collect()
    }

    fn call_for(&mut self, steps: usize) {
        for _ in 0..steps {
            let caller = self.pick();
            if self.members[caller].is_running() && self.random.one_in(10) {
                self.members[caller].call(&mut self.random, &self.history);
            }
            self.step();
        }
    }

    /// The hash of a member begins with another entry than those of the others. Returns with which
    /// entry each begins in the end, when all have applied the same.
    pub(crate) fn forget_hash(mut self, at: usize, steps: usize) -> Vec<u64> {
        self.heal();
        self.history.ignores_hashes = true; // until they begin anew, they differ
        self.members[at].forget_hash();
        self.call_for(steps);
        self.heal();
        let since = |member: &mut Member| member.machine().unwrap().store().state_hash().since;
        let begun = self.members.iter_mut().map(since).collect();
        self.end();
        begun
    }

    /// All members are the same, and none was taken for one that is not.
    pub(crate) fn end(mut self) -> Seen {
        let named = |member: &mut Member| {
            member.machine().is_some_and(|machine| !machine.corrupt_members().is_empty())
        };
        assert!(!self.members.iter_mut().any(named), "a member is named as corrupt");
        self.history.check_told();
        let ids = self.serving();
        let members = self.members.iter_mut().filter(|member| ids.contains(&member.id));
        let hashes: Vec<u32> =
            members.map(|member| hash_of(member.machine().unwrap().store_mut().view())).collect();
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
