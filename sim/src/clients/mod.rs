//! Clients of the cluster: they put, delete, read, watch, keep leases and locks, and record what
//! they were told. No client repeats a request by itself.
//!
//! - `roles`: each client's next request, from what it was told; one file for each kind of client.
//! - `watchers`: streams of watchers that stall, cancel and go on elsewhere; one of them, the
//!   auditor, is told of everything, so that the history has every revision.
//! - `words`: requests and replies as an edge has them and as the history has them.
//! - `shared`: knowledge of all clients, and the draws for the whole run.

mod gatherer;
mod holder;
mod lister;
mod locker;
mod next;
mod reader;
mod roles;
mod shared;
mod watchers;
pub(crate) mod words;
mod writer;

use std::collections::BTreeMap;

use revd_checker::{Call, History, Jump, LeasesJudged, Outcome, Request, Response, Rules, check};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::{CompactionRequest, HashKvRequest, HashKvResponse};

use crate::calls::{CallId, Door, Reply, StreamId, WatchMessage};
use crate::time::{MILLISECOND, Micros, SECOND};
use next::Next;
use roles::{Role, hasty};
use shared::Shared;
pub(crate) use shared::{life, place};
use watchers::Watcher;

/// Wake numbers: the client in the lower part, above it one more than a call that it may give up.
const CLIENTS_MAX: u64 = 1 << 12;
/// A lease ends so much later than its time to live at most, when nothing is wrong, and the time of
/// an election: expiry is looked for now and then, and a new leader gives each the time of an
/// election more.
const LEASE_SLACK: Micros = 11 * SECOND;

/// The refusal of a read that meets damage, before its member is replaced.
const ROTTEN: &str = "etcdserver: corrupt cluster";

/// The errors that clients may meet in a storm, and the words for calls without an answer.
const ERRORS: [&str; 17] = [
    "a checkpoint comes first",
    "asked for by the storm",
    "context deadline exceeded",
    "etcdserver: leader changed",
    "etcdserver: mvcc: required revision has been compacted",
    "etcdserver: mvcc: required revision is a future revision",
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: request timed out",
    "etcdserver: request timed out, possibly due to connection lost",
    "etcdserver: request timed out, possibly due to previous leader failure",
    "etcdserver: requested lease not found",
    "etcdserver: rpc not supported for learner",
    "etcdserver: server stopped",
    "given up",
    "not answered",
    "the connection broke",
];

/// A call on its way.
#[derive(Debug)]
struct Open {
    client: usize,
    member: usize,
    life: u32,
    began: Micros,
    request: Request,
}

/// A client with calls of its own.
#[derive(Debug)]
struct Client {
    role: Role,
    member: usize,
    pause: Micros,
    /// It acts then, and not when it is woken before.
    acts_at: Option<Micros>,
    /// It has been answered since the storm was over.
    is_served: bool,
    rests: bool,
}

/// How wrong the clocks of a run's members were, and other faults by which calls are judged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Clocks {
    /// In parts of a million.
    pub drift: u64,
    /// In their order.
    pub jumps: Vec<Jump>,
    /// Times without a fault.
    pub calm: Vec<(Micros, Micros)>,
    /// Bits of files have flipped: a read that meets one is refused.
    pub has_rotted: bool,
}

/// How long the clients of a run wait.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// So many times as long as is drawn.
    pub patience: u64,
    /// The shortest mean pause that is drawn.
    pub pause_min: Micros,
    /// An election takes so long.
    pub election: Micros,
    /// Elections may fail for so long when the storm is over: votes are split, or a member that was
    /// cut off has a later term.
    pub recovery: Micros,
}

/// All clients of a run.
#[derive(Debug)]
pub struct Clients {
    random: Random,
    shared: Shared,
    clients: Vec<Client>,
    watchers: Vec<Watcher>,
    open: BTreeMap<CallId, Open>,
    history: History,
    /// The storm is over; leases are judged from then on.
    calm_since: Option<Micros>,
    waits: Waits,
    lease_slack: Micros,
}

impl Clients {
    /// The seed draws how many there are and what they do.
    #[must_use]
    pub fn new(mut random: Random, waits: Waits) -> Self {
        let shared = Shared::draw(&mut random);
        let mut clients = Vec::new();
        let mut add = |role: Role, random: &mut Random| {
            let drawn = random.pick(&[2, 10, 40, 100]) * MILLISECOND;
            let pause = drawn.max(waits.pause_min) * role.patience(waits.patience);
            clients.push(Client { role, member: 0, pause, acts_at: None, is_served: false, rests: false });
        };
        for kind in 0..Role::KINDS {
            let count = Role::count(kind, &mut random);
            (0..count).for_each(|_| add(Role::new(kind), &mut random));
        }
        let others = random.below(4);
        let watchers = (0..=others).map(|number| Watcher::new(number == 0)).collect();
        Self {
            random,
            shared,
            clients,
            watchers,
            open: BTreeMap::new(),
            history: History::default(),
            calm_since: None,
            waits,
            lease_slack: LEASE_SLACK + waits.election,
        }
    }

    /// Called once at the start.
    pub fn start(&mut self, door: &mut impl Door) {
        for client in 0..self.clients.len() + self.watchers.len() {
            self.wake_later(client, SECOND / 2 + self.random.clone().below(SECOND), door);
        }
    }

    fn wake_later(&mut self, client: usize, after: Micros, door: &mut impl Door) {
        let after = after + self.random.below(MILLISECOND);
        if let Some(client) = self.clients.get_mut(client) {
            client.acts_at = Some(door.now() + after);
        }
        door.wake_after(after, client as u64);
    }

    /// The time of [`Door::wake_after`] is over.
    pub fn wake(&mut self, number: u64, door: &mut impl Door) {
        let client = usize::try_from(number % CLIENTS_MAX).expect("a small number");
        if let Some(call) = (number / CLIENTS_MAX).checked_sub(1) {
            self.give_up(CallId(call), door);
        } else if let Some(own) = self.clients.get_mut(client) {
            if own.acts_at.take_if(|time| *time <= door.now()).is_some() {
                self.act(client, door);
            }
        } else {
            let watcher = client - self.clients.len();
            let newest = self.calm_since.map(|_| self.shared.answered);
            let patience = newest.map_or(hasty(self.waits.patience), |_| 1);
            let (history, random) = (&mut self.history, &mut self.random);
            let after = self.watchers[watcher].act(watcher, newest, &self.shared, history, random, door);
            self.wake_later(client, after * patience, door);
        }
    }

    /// A client asks its next question, or rests.
    fn act(&mut self, number: usize, door: &mut impl Door) {
        let members = door.members();
        let client = &mut self.clients[number];
        let is_calm = self.calm_since.is_some();
        if members.is_empty() || client.rests {
            return self.wake_later(number, SECOND, door);
        }
        if !members.contains(&client.member) {
            client.member = self.random.pick(&members);
        }
        let next =
            client.role.next(is_calm && client.is_served, door.now(), &mut self.shared, &mut self.random);
        match next {
            Next::Rest(time) => self.wake_later(number, time, door),
            Next::Done => client.rests = true,
            Next::Calls(requests) => {
                let sent = requests.into_iter().filter(|request| self.send(number, request, door)).count();
                if sent == 0 {
                    self.fails(number, door);
                }
            }
        }
    }

    fn send(&mut self, client: usize, request: &Request, door: &mut impl Door) -> bool {
        let member = self.clients[client].member;
        let Some(call) = door.call(member, words::request(request)) else { return false };
        let (life, began) = (shared::life(door, member), door.now());
        self.open.insert(call, Open { client, member, life, began, request: request.clone() });
        if self.random.one_in(40) {
            let patience = self.random.below(SECOND);
            door.wake_after(patience, (call.0 + 1) * CLIENTS_MAX + client as u64);
        }
        true
    }

    /// The client's next call goes to another member, after a while.
    fn fails(&mut self, client: usize, door: &mut impl Door) {
        let members = door.members();
        if !members.is_empty() {
            self.clients[client].member = self.random.pick(&members);
        }
        self.clients[client].role.fails();
        let pause = self.clients[client].pause + 20 * MILLISECOND;
        self.wake_later(client, pause, door);
    }

    fn give_up(&mut self, call: CallId, door: &mut impl Door) {
        if self.open.contains_key(&call) {
            door.give_up(call);
            self.ends(call, Outcome::Unknown("given up".to_owned()), door);
        }
    }

    /// A call is answered.
    pub fn answered(&mut self, call: CallId, reply: Reply, door: &mut impl Door) {
        if let Some(open) = self.open.get(&call) {
            let outcome = words::outcome(&open.request, reply);
            self.ends(call, outcome, door);
        }
    }

    fn ends(&mut self, call: CallId, outcome: Outcome, door: &mut impl Door) {
        let Some(Open { client, member, life, began, request }) = self.open.remove(&call) else { return };
        let returned = door.now();
        let place = shared::place(door.member_id(member));
        let id = u32::try_from(client).expect("few clients");
        let call = Call { client: id, member: place, life, began, returned, request, outcome };
        self.shared.learns(&call);
        let own = &mut self.clients[client];
        own.is_served |= self.calm_since.is_some() && call.answer().is_some();
        let is_answered = !matches!(call.outcome, Outcome::Unknown(_));
        if call.answer().is_none() {
            let members = door.members(); // one that refuses may refuse for ever
            own.member = if members.is_empty() { member } else { self.random.pick(&members) };
        }
        own.role.learns(&call, &mut self.shared, &mut self.history);
        let pause = own.pause;
        self.history.calls.push(call);
        let is_last = !self.open.values().any(|open| open.client == client);
        match (is_last, is_answered) {
            (false, _) => {}
            (true, true) => {
                let pause = self.random.below(2 * pause);
                self.wake_later(client, pause, door);
            }
            (true, false) => self.fails(client, door),
        }
    }

    /// A stream has a message.
    pub fn watched(&mut self, stream: StreamId, message: WatchMessage, door: &mut impl Door) {
        let (history, shared) = (&mut self.history, &mut self.shared);
        for watcher in &mut self.watchers {
            if watcher.is_on(stream) {
                let response = words::watch_response(&message.reply);
                let newest = watcher.hears(&response, door.now(), history);
                shared.newest = shared.newest.max(newest);
                if watcher.is_auditor() {
                    shared.audited = shared.audited.max(watcher.told_to());
                    shared.sees(&response);
                }
            }
        }
    }

    /// A stream has ended, for the member's process has.
    pub fn stream_ended(&mut self, stream: StreamId, _door: &mut impl Door) {
        self.watchers.iter_mut().filter(|watcher| watcher.is_on(stream)).for_each(Watcher::ends);
    }

    /// The storm is over: all go on calmly, stalled ones read again, and each goes on until it has
    /// been answered at least once more.
    pub fn calm(&mut self, door: &mut impl Door) {
        let calm_since = door.now() + self.waits.recovery;
        self.calm_since = Some(calm_since);
        let patience = self.waits.patience;
        self.clients.iter_mut().for_each(|client| client.pause /= client.role.patience(patience));
        self.shared.calms(calm_since + self.lease_slack);
        if patience == 1 {
            return;
        }
        // All would act minutes later after a sparse storm, and watchers do so as well.
        for number in 0..self.clients.len() + self.watchers.len() {
            let acts_at = self.clients.get(number).map(|client| client.acts_at);
            if acts_at.is_none_or(|time| time.is_some_and(|time| time > door.now() + SECOND)) {
                self.wake_later(number, SECOND, door);
            }
        }
    }

    /// Since [`Clients::calm`] every client has had a success, nothing is open, and watchers were
    /// told of everything that calls have shown: the run may end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let newest = self.shared.answered;
        self.open.is_empty()
            && self.clients.iter().all(|client| client.rests)
            && self.watchers.iter().all(|watcher| watcher.has_heard(newest))
    }

    /// The probe, which asks no more, was shown this revision: watchers are to know it too.
    pub fn probed(&mut self, revision: i64) {
        self.shared.shows(revision);
    }

    /// Those that are not done, for a run that comes to no end.
    #[must_use]
    pub fn standing(&self) -> String {
        let clients: Vec<&Client> = self.clients.iter().filter(|client| !client.rests).collect();
        let newest = self.shared.answered;
        let watchers: Vec<&Watcher> =
            self.watchers.iter().filter(|watcher| !watcher.has_heard(newest)).collect();
        format!("{} open calls, to revision {newest}, {clients:?}, {watchers:?}", self.open.len())
    }

    /// Everything up to this revision has been seen by the auditor: compactions may go so far.
    #[must_use]
    pub fn audited(&self) -> i64 {
        self.shared.audited
    }

    /// A compaction that is of no client: nobody knows what comes of it.
    pub fn others_compact(&mut self, request: &CompactionRequest, now: Micros) {
        let outcome = Outcome::Unknown("asked for by the storm".to_owned());
        let (client, member) = (u32::MAX, u32::MAX);
        let request = Request::Compact(*request);
        let call = Call { client, member, life: 0, began: now, returned: now, request, outcome };
        self.shared.learns(&call);
        self.history.calls.push(call);
    }

    /// A member's own view at the end: the hash of all keys up to a revision that the auditor
    /// knows.
    pub fn hashed(&mut self, member: u64, hash: u32, revision: i64, compacted: i64, now: Micros) {
        let response = HashKvResponse {
            hash,
            hash_revision: revision,
            compact_revision: compacted,
            ..HashKvResponse::default()
        };
        self.history.calls.push(Call {
            client: u32::MAX,
            member: shared::place(member),
            life: 0,
            began: now,
            returned: now,
            request: Request::HashKv(HashKvRequest { revision }),
            outcome: Outcome::Answered(Response::HashKv(response)),
        });
    }

    /// How many calls were answered.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.history.calls.iter().filter(|call| call.answer().is_some()).count()
    }

    /// The promises by which the history is judged.
    #[must_use]
    pub fn rules(&self, clocks: Clocks) -> Rules {
        let of_rot = clocks.has_rotted.then_some(ROTTEN);
        Rules {
            // A member that finds no quorum serves what it has after a while, as etcd's do.
            goes_on: false,
            watches_show: true,
            others: None,
            others_compact: false,
            others_unseen: false,
            errors: Some(ERRORS.into_iter().chain(of_rot).map(str::to_owned).collect()),
            drift: clocks.drift,
            jumps: clocks.jumps,
            calm_since: self.calm_since,
            calm: clocks.calm,
            lease_slack: self.lease_slack,
        }
    }

    /// The whole history, with those calls that were not answered.
    #[must_use]
    pub fn into_history(mut self, now: Micros) -> History {
        for Open { client, member, life, began, request } in std::mem::take(&mut self.open).into_values() {
            let id = u32::try_from(client).expect("few clients");
            let member = u32::try_from(member).expect("few members");
            let outcome = Outcome::Unknown("not answered".to_owned());
            self.history.calls.push(Call {
                client: id,
                member,
                life,
                began,
                returned: now,
                request,
                outcome,
            });
        }
        let newest = self.shared.answered;
        self.watchers.iter_mut().for_each(|watcher| watcher.completes(newest, &mut self.history));
        self.history
    }

    /// Judges the whole history, with the calls of the probe. Says how much of leases was judged.
    ///
    /// # Panics
    /// When a promise was not kept: the message has the first ones. `REVD_SIM_KEEP` names a file
    /// for the history, to be looked at and checked again.
    pub fn judge(self, probed: Vec<Call>, now: Micros, clocks: Clocks) -> LeasesJudged {
        let rules = self.rules(clocks);
        let mut history = self.into_history(now);
        history.calls.extend(probed);
        let report = check(&history, &rules);
        if report.faults.is_empty() {
            return report.leases;
        }
        if let Some(path) = std::env::var_os("REVD_SIM_KEEP") {
            std::fs::write(path, revd_checker::write(&history, &rules)).expect("the file can be written");
        }
        let faults: Vec<String> = report.faults.iter().take(3).map(ToString::to_string).collect();
        panic!("{} promises were not kept: {:.3000}", report.faults.len(), faults.join("\n"));
    }
}
