//! Carries out the faults of a storm, each at its time, and mends them; in the end all of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::alarm_request::AlarmAction;
use revd_proto::etcdserverpb::{
    AlarmRequest, DefragmentRequest, Member, MemberAddRequest, MemberListRequest, MemberRemoveRequest,
    MoveLeaderRequest, RangeRequest, StatusRequest,
};
use tokio::task::{JoinHandle, spawn_local};

use super::clients::Clients;
use super::disks::{Ballast, BusyDisk};
use super::plan::{Blow, Incident};
use super::record::{Known, PATIENCE};
use crate::harness::{Client, Cluster, Fault, Party, Product, Server, SmallDisk, Way};

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(20);
/// Members that stop, join or begin have done so, so long after the last fault.
const CALM_MAX: Duration = Duration::from_secs(120);
/// A member that was asked to stop has ended by then, or is killed.
const STOP_TICKS: u32 = 400;

/// How a fault ends.
enum Remedy {
    Nothing,
    Start(Vec<usize>),
    Continue(usize),
    Relieve(Vec<u64>),
    FreeDisk(Ballast),
    CalmDisk(BusyDisk),
    Silence(JoinHandle<()>),
}

/// The place of a new member, and the members with it as soon as it is added.
struct Joining {
    seat: usize,
    place: (std::net::SocketAddr, std::net::SocketAddr),
    adding: JoinHandle<Option<Vec<Member>>>,
}

/// A cluster in a storm.
pub struct Storm<'c> {
    pub cluster: &'c mut Cluster,
    dir: PathBuf,
    flags: Vec<String>,
    clients: Rc<Clients>,
    /// Members by seat, without proxies.
    pub direct: Rc<RefCell<Vec<Known>>>,
    /// Numbers of the members in the seats.
    seats: Vec<usize>,
    /// Since when a seat's process does not run as usual.
    busy: Vec<Option<Duration>>,
    /// Stopping seats, and for how many ticks.
    stopping: BTreeMap<usize, u32>,
    joining: Vec<Joining>,
    /// The seat of a member that has not served yet: until then it ends, as etcd does, if the
    /// others cannot be asked for the members, or have others than it was told.
    young: Option<usize>,
    small_disk: Option<(usize, SmallDisk, PathBuf)>,
    /// How often each kind of fault happened, and was left out.
    pub ledger: BTreeMap<String, [u64; 2]>,
    /// Faults of ways that met something.
    pub met: u64,
    /// When each fault that lasts began and ended, without those of ways that met nothing.
    pub felt: Vec<(Duration, Duration)>,
}

impl<'c> Storm<'c> {
    pub fn new(
        cluster: &'c mut Cluster,
        dir: &Path,
        flags: &[&str],
        clients: Rc<Clients>,
        direct: Vec<Known>,
        small_disk: Option<(usize, SmallDisk, PathBuf)>,
    ) -> Self {
        let seats: Vec<usize> = cluster.present().collect();
        Self {
            dir: dir.to_owned(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            clients,
            direct: Rc::new(RefCell::new(direct)),
            busy: vec![None; seats.len()],
            seats,
            stopping: BTreeMap::new(),
            joining: Vec::new(),
            young: None,
            small_disk,
            ledger: BTreeMap::new(),
            met: 0,
            felt: Vec::new(),
            cluster,
        }
    }

    /// All faults, and their ends.
    pub async fn rages(&mut self, incidents: &[Incident]) {
        let mut ends: Vec<(Duration, Duration, Remedy)> = Vec::new();
        let mut due = incidents.iter().peekable();
        let mut last_fault = Duration::ZERO;
        loop {
            let now = self.now();
            while let Some(incident) = due.next_if(|incident| incident.begin <= now) {
                let remedy = self.strikes(&incident.blow);
                let entry = self.ledger.entry(incident.blow.name()).or_default();
                entry[usize::from(remedy.is_none())] += 1;
                let end = now + (incident.end - incident.begin);
                ends.extend(remedy.map(|remedy| (now, end, remedy)));
            }
            let (over, rest) = ends.into_iter().partition(|(_, end, _)| *end <= now);
            ends = rest;
            for (begin, _, remedy) in over {
                self.mends(begin, remedy);
            }
            self.looks_after().await;
            if due.peek().is_some() || !ends.is_empty() {
                last_fault = now;
            } else if self.is_settled() {
                return;
            }
            assert!(now < last_fault + CALM_MAX, "{}", self.waits_for());
            assert!(!self.clients.is_broken.get(), "a client has panicked");
            tokio::time::sleep(TICK).await;
        }
    }

    /// Since the storm began.
    fn now(&self) -> Duration {
        Duration::from_micros(self.clients.recorder.now())
    }

    fn is_settled(&self) -> bool {
        self.joining.is_empty() && self.young.is_none() && self.stopping.is_empty()
    }

    fn waits_for(&self) -> String {
        let joining: Vec<usize> = self.joining.iter().map(|joining| joining.seat).collect();
        let Self { young, stopping, .. } = self;
        format!(
            "all faults are over; seats that stop {stopping:?}, are to be replaced {joining:?}, begin {young:?}"
        )
    }

    fn server(&mut self, seat: usize) -> &mut Server {
        &mut self.cluster.members[self.seats[seat]]
    }

    /// Clients of the seats, from this one on.
    fn around(&self, seat: usize) -> Vec<Client> {
        let direct = self.direct.borrow();
        (0..direct.len()).map(|step| direct[(seat + step) % direct.len()].client.clone()).collect()
    }

    /// Seats whose processes are as usual, of these.
    fn free(&self, seats: &[usize]) -> Vec<usize> {
        seats.iter().copied().filter(|seat| self.busy[*seat].is_none()).collect()
    }

    fn strike_all(&self, ways: &[Way], fault: Fault) -> Remedy {
        Remedy::Relieve(ways.iter().map(|way| self.cluster.network().strike(*way, fault)).collect())
    }

    fn between(&self, from: usize, to: usize) -> Way {
        Way::between(self.seats[from], self.seats[to])
    }

    /// The fault begins; its remedy, unless it cannot happen now.
    fn strikes(&mut self, blow: &Blow) -> Option<Remedy> {
        eprintln!("{:>9} us: {blow:?}", self.clients.recorder.now());
        Some(match blow {
            Blow::Kill(seats) => {
                let (seats, now) = (self.free(seats), self.now());
                for seat in &seats {
                    self.server(*seat).kill();
                    self.busy[*seat] = Some(now);
                }
                if seats.is_empty() {
                    return None;
                }
                Remedy::Start(seats)
            }
            Blow::Pause(seat) => {
                self.occupy(*seat)?;
                self.server(*seat).signal("STOP");
                Remedy::Continue(*seat)
            }
            Blow::Restart(seat) => {
                self.occupy(*seat)?;
                self.server(*seat).signal("TERM");
                self.stopping.insert(*seat, 0);
                Remedy::Nothing
            }
            Blow::Isolate(seat) => {
                let others = (0..self.seats.len()).filter(|other| other != seat);
                let ways: Vec<_> = others.map(|other| self.between(*seat, other)).collect();
                let back: Vec<_> = ways.iter().map(|way| way.back()).collect();
                self.strike_all(&[ways, back].concat(), Fault::Silence)
            }
            Blow::Line { from, to, fault } => self.strike_all(&[self.between(*from, *to)], *fault),
            Blow::Clients { seat, fault } => {
                let way = Way { from: Party::Clients, to: Party::Member(self.seats[*seat]) };
                self.strike_all(&[way, way.back()], *fault)
            }
            Blow::Strangers(seat) => Remedy::Silence(self.strangers(*seat)),
            Blow::MoveLeader => {
                drop(spawn_local(move_leader(self.around(0))));
                Remedy::Nothing
            }
            Blow::FullDisk => {
                let (seat, disk, at) = self.small_disk.as_ref()?;
                drop(spawn_local(Rc::clone(&self.clients).fill(*seat)));
                Remedy::FreeDisk(Ballast::fill(disk, at))
            }
            Blow::BusyDisk => Remedy::CalmDisk(BusyDisk::begin(&self.dir)),
            Blow::Replace(seat) => self.replace(*seat)?,
            Blow::Compact => {
                let seat = usize::try_from(self.clients.recorder.now() % 7).unwrap();
                let less = i64::try_from(self.clients.recorder.now() % 200).unwrap();
                drop(spawn_local(Rc::clone(&self.clients).compact(seat, less)));
                Remedy::Nothing
            }
            Blow::Defragment(seat) => {
                let mut client = self.around(*seat).swap_remove(0);
                let defragment =
                    async move { drop(client.maintenance.defragment(DefragmentRequest {}).await) };
                drop(spawn_local(defragment));
                Remedy::Nothing
            }
        })
    }

    fn occupy(&mut self, seat: usize) -> Option<()> {
        let is_free = self.busy[seat].is_none();
        let now = self.now();
        self.busy[seat].get_or_insert(now);
        is_free.then_some(())
    }

    /// Its process runs as usual again. Several that were killed at once are one fault.
    fn releases(&mut self, seat: usize) {
        let (Some(begin), now) = (self.busy[seat].take(), self.now()) else { return };
        match self.felt.iter_mut().find(|(same, _)| *same == begin) {
            Some((_, end)) => *end = now,
            None => self.felt.push((begin, now)),
        }
    }

    fn mends(&mut self, begin: Duration, remedy: Remedy) {
        let met = self.met;
        let is_of_disk = matches!(remedy, Remedy::FreeDisk(_) | Remedy::CalmDisk(_));
        match remedy {
            Remedy::Nothing => {}
            Remedy::Start(seats) => seats.into_iter().for_each(|seat| self.starts(seat)),
            Remedy::Continue(seat) => {
                self.server(seat).signal("CONT");
                self.releases(seat);
            }
            Remedy::Relieve(strikes) => {
                let network = self.cluster.network();
                let met = strikes.into_iter().filter(|strike| network.relieve(*strike) > 0).count();
                self.met += met as u64;
            }
            Remedy::FreeDisk(ballast) => {
                drop(ballast);
                drop(spawn_local(disarm(self.around(0))));
            }
            Remedy::CalmDisk(busy) => drop(busy),
            Remedy::Silence(reading) => reading.abort(),
        }
        if is_of_disk || self.met > met {
            self.felt.push((begin, self.now()));
        }
    }

    /// The process of a seat begins again.
    fn starts(&mut self, seat: usize) {
        self.server(seat).spawn_again();
        self.releases(seat);
        self.direct.borrow_mut()[seat].life += 1;
        self.clients.known.borrow_mut()[seat].life += 1;
    }

    /// Members that stop, join or have ended.
    async fn looks_after(&mut self) {
        for (seat, ticks) in std::mem::take(&mut self.stopping) {
            if self.server(seat).is_running() {
                if ticks == STOP_TICKS {
                    self.server(seat).kill();
                }
                self.stopping.insert(seat, ticks + 1);
            } else {
                self.server(seat).becomes_another();
                self.starts(seat);
            }
        }
        for joining in std::mem::take(&mut self.joining) {
            if !joining.adding.is_finished() {
                self.joining.push(joining);
                continue;
            }
            let Joining { seat, place, adding } = joining;
            self.joins(seat, place, adding.await.unwrap());
        }
        for seat in 0..self.seats.len() {
            if self.busy[seat].is_none() && !self.server(seat).is_running() {
                let log = self.server(seat).log();
                let is_wrong = self.cluster.product == Product::Revd && self.young != Some(seat);
                assert!(!is_wrong, "the member in seat {seat} has ended by itself: {log}");
                self.ledger.entry("(ended by itself)".to_owned()).or_default()[0] += 1;
                self.starts(seat);
            }
        }
        if let Some(seat) = self.young.filter(|seat| self.busy[*seat].is_none())
            && self.server(seat).has_been_ready()
        {
            self.young = None;
        }
    }

    /// Kills the member in a seat, and asks the others to put a new one in its place.
    fn replace(&mut self, seat: usize) -> Option<Remedy> {
        // The one on the small disk stays there.
        if self.small_disk.as_ref().is_some_and(|(small, ..)| *small == seat) {
            return None;
        }
        if !self.joining.is_empty() || self.young.is_some() {
            return None;
        }
        self.occupy(seat)?;
        self.server(seat).kill();
        let place = self.cluster.place();
        let clients = self.around(seat).split_off(1);
        let name = format!("m{}", self.seats[seat]);
        let adding = spawn_local(exchange(clients, name, format!("http://{}", place.1)));
        self.joining.push(Joining { seat, place, adding });
        Some(Remedy::Nothing)
    }

    /// The new member starts in its seat; without an agreement the old one goes on.
    fn joins(
        &mut self,
        seat: usize,
        place: (std::net::SocketAddr, std::net::SocketAddr),
        members: Option<Vec<Member>>,
    ) {
        let Some(members) = members else {
            self.ledger.entry("(not replaced)".to_owned()).or_default()[0] += 1;
            return self.starts(seat);
        };
        let old = self.seats[seat];
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        let number = self.cluster.join(&self.dir, place, &members, &flags);
        self.cluster.forget(old);
        let _ = std::fs::remove_dir_all(self.cluster.members[old].data_dir());
        self.seats[seat] = number;
        self.releases(seat);
        self.young = Some(seat);
        let (direct, known) = knowns(self.cluster, number);
        self.direct.borrow_mut()[seat] = direct;
        self.clients.known.borrow_mut()[seat] = known;
    }

    /// Readers whose bytes are damaged both ways.
    fn strangers(&self, seat: usize) -> JoinHandle<()> {
        let member = self.seats[seat];
        let way = Way { from: Party::Strangers, to: Party::Member(member) };
        // It stays: strangers are never undamaged.
        for way in [way, way.back()] {
            self.cluster.network().strike(way, Fault::Corrupt { every: 400 });
        }
        let [_, stranger] = self.cluster.clients_behind_proxies(member, PATIENCE);
        spawn_local(async move {
            loop {
                let read = RangeRequest { range_end: "s".into(), ..super::clients::prefix("reg/") };
                let read = tokio::time::timeout(PATIENCE, stranger.kv.clone().range(read)).await;
                drop(read);
                tokio::time::sleep(TICK).await;
            }
        })
    }

    /// Everything is mended; waits until all members serve.
    pub async fn heals(&mut self) {
        self.cluster.mend();
        disarm(self.around(0)).await;
        self.cluster.wait_until_all_answer().await;
        disarm(self.around(0)).await;
    }
}

/// A member for a seat: without proxies, and as clients know it.
pub fn knowns(cluster: &Cluster, number: usize) -> (Known, Known) {
    let member = u32::try_from(number).unwrap();
    let [client, _] = cluster.clients_behind_proxies(number, PATIENCE);
    let direct = cluster.client(number);
    (Known { member, life: 0, client: direct }, Known { member, life: 0, client })
}

/// Asks until the leader gives its place to another member, or gives up.
async fn move_leader(clients: Vec<Client>) {
    for client in clients {
        let Ok(status) = client.maintenance.clone().status(StatusRequest {}).await else { continue };
        let status = status.into_inner();
        let own = status.header.map_or(0, |header| header.member_id);
        if status.leader != own {
            continue;
        }
        let list = client.cluster.clone().member_list(MemberListRequest { linearizable: false }).await;
        let Ok(list) = list else { return };
        let members = list.into_inner().members;
        let other = members.iter().find(|member| member.id != own && !member.name.is_empty());
        if let Some(other) = other {
            let _ = client.maintenance.clone().move_leader(MoveLeaderRequest { target_id: other.id }).await;
        }
        return;
    }
}

/// Ends all alarms: those of a full disk go on when it is not full any more. In a storm a call may
/// come to nothing, and these are no client's: they are made again.
async fn disarm(clients: Vec<Client>) {
    for client in clients.iter().cycle().take(20) {
        let request = AlarmRequest { action: AlarmAction::Get as i32, ..AlarmRequest::default() };
        let alarms = client.maintenance.clone().alarm(request).await;
        let alarms = alarms.map(|alarms| alarms.into_inner().alarms);
        for alarm in alarms.as_deref().unwrap_or_default() {
            let (action, member_id) = (AlarmAction::Deactivate as i32, alarm.member_id);
            let request = AlarmRequest { action, member_id, alarm: alarm.alarm };
            let _ = client.maintenance.clone().alarm(request).await;
        }
        if alarms.is_ok_and(|alarms| alarms.is_empty()) {
            return;
        }
        tokio::time::sleep(10 * TICK).await;
    }
}

/// Removes the member of this name, and adds one at this URL: all members then. None if no
/// member answered for long; a removal that was asked for may be carried out at any time, so
/// there is no way back behind it. The calls are no client's: they may be made again.
async fn exchange(clients: Vec<Client>, name: String, url: String) -> Option<Vec<Member>> {
    let (mut may_be_removed, mut rounds) = (false, 0);
    while may_be_removed || rounds < 60 {
        rounds += 1;
        for client in &clients {
            let mut cluster = client.cluster.clone();
            let Ok(list) = cluster.member_list(MemberListRequest { linearizable: true }).await else {
                continue;
            };
            let members = list.into_inner().members;
            if let Some(old) = members.iter().find(|member| member.name == name) {
                may_be_removed = true;
                let _ = cluster.member_remove(MemberRemoveRequest { id: old.id }).await;
                continue;
            }
            may_be_removed = true;
            if members.iter().any(|member| member.peer_ur_ls.contains(&url)) {
                return Some(members);
            }
            let request = MemberAddRequest { peer_ur_ls: vec![url.clone()], is_learner: false };
            let _ = cluster.member_add(request).await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    None
}
