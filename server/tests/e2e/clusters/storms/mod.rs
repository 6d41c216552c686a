//! Storms: many faults at once over members that are separate processes, drawn from a seed, while
//! clients write, read, watch and hold leases and a lock through all of them. Then everything is
//! mended, every member has to answer again, and what the clients were told is held against all
//! that etcd promises.
//!
//! `REVD_STORMS_SECONDS` makes a storm longer, `REVD_STORMS_SEED` another, `REVD_STORMS` makes more
//! of them, one seed after the other. `REVD_STORMS_ONLY=kill,pause` draws faults with these words
//! in their names alone, `REVD_STORMS_READS=present` transactions that read no other revisions (of
//! etcd these end with members that differ, #18667, which hides all else). `REVD_STORMS_KEEP` names
//! a file for the history. `REVD_CLUSTERS=etcd` sends storms over members of etcd,
//! `REVD_ETCD_BINARY` over those of another version; `REVD_OTHER_BINARY` is what members restart
//! as, and go back from.

mod clients;
mod disks;
mod driver;
mod plan;
pub mod record;
mod watchers;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use revd_checker::{History, Outcome, Request, Response, Rules, StateAt};
use revd_proto::etcdserverpb::HashKvRequest;
use tokio::task::LocalSet;

use crate::harness::{
    Cluster, Product, SmallDisk, TempDir, Wiring, failure, from_env, products_of_clusters, run,
};
use clients::{Clients, REGISTERS, prefix};
use driver::{Storm, knowns};
use plan::Blow;
use record::Known;

/// Members and seeds of the standard storms.
const SEEDS: [(usize, u64); 3] = [(1, 89), (3, 15), (5, 68)];
/// Longer than a mended cluster needs to serve, and its leases to end.
const MOMENTS: Duration = Duration::from_secs(60);
/// Faults that last and overlap another one, in a minute of storm, at least.
const OVERLAPPING_PER_MINUTE: u64 = 10;
/// Answers of each member behind the storm.
const PROGRESS: u64 = 10;
/// Two segments of the log, the reserve, and room for the store.
const SMALL_DISK_BYTES: u64 = 192 << 20;
/// A lease ends so many microseconds late at most in a calm cluster: a lost leader, and a look of
/// the next one.
const LEASE_SLACK: u64 = 15_000_000;

/// Errors that a fault may give to a client of revd.
const ERRORS: [&str; 14] = [
    "(transport)",
    "Timeout expired",
    "the stream has ended",
    "etcdserver: leader changed",
    "etcdserver: mvcc: database space exceeded",
    "etcdserver: mvcc: required revision has been compacted",
    "etcdserver: mvcc: required revision is a future revision",
    "etcdserver: no leader",
    "etcdserver: request timed out",
    "etcdserver: request timed out, possibly due to connection lost",
    "etcdserver: request timed out, possibly due to previous leader failure",
    "etcdserver: requested lease not found",
    "etcdserver: server stopped",
    // A member that comes back may have 5,000 entries to apply, and says that as etcd does.
    "etcdserver: too many requests",
];

/// Leaves the history of a storm that has failed.
struct Leaving<'h>(&'h History, &'h Rules);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(mut file) = failure::file("storm.history") {
            let _ = file.write_all(revd_checker::write(self.0, self.1).as_bytes());
        }
    }
}

fn storms((seats, seed): (usize, u64)) {
    let length = Duration::from_secs(from_env("REVD_STORMS_SECONDS", 60));
    let first = from_env("REVD_STORMS_SEED", seed);
    for product in products_of_clusters() {
        for seed in first..first + from_env("REVD_STORMS", 1) {
            run(storm(product, seats, seed, length));
        }
    }
}

/// Together the three storms below have every kind of fault.
#[test]
fn the_standard_storms_have_every_kind_of_fault() {
    let names = SEEDS.into_iter().flat_map(|(seats, seed)| {
        let drawn = plan::draw(seed, Duration::from_secs(60), seats, Product::Revd, None);
        drawn.into_iter().map(|incident| incident.blow.name())
    });
    let names: BTreeSet<String> = names.collect();
    // Eight faults of lines between peers, seven of those to clients, and twelve others.
    assert_eq!(names.len(), 8 + 7 + 12, "{names:?}");
}

#[test]
fn a_storm_over_three_members_breaks_no_promise() {
    storms(SEEDS[1]);
}

#[test]
fn a_storm_over_five_members_breaks_no_promise() {
    storms(SEEDS[2]);
}

#[test]
fn a_storm_over_one_member_breaks_no_promise() {
    storms(SEEDS[0]);
}

async fn storm(product: Product, seats: usize, seed: u64, length: Duration) {
    let dir = TempDir::new();
    let only = std::env::var("REVD_STORMS_ONLY").ok();
    let is_wanted = |blow: &Blow| {
        let name = blow.name();
        only.as_ref().is_some_and(|only| only.split(',').any(|part| name.contains(part)))
    };
    let is_wanted = only.is_some().then_some(&is_wanted as &dyn Fn(&Blow) -> bool);
    let incidents = plan::draw(seed, length, seats, product, is_wanted);
    println!("storm {seed} over {seats} members: {} faults", incidents.len());
    let small_disk = small_disk(&dir, usize::try_from(seed).unwrap() % seats);
    let flags: &[&str] = match product {
        Product::Revd => &["--snapshot-count=200", "--snapshot-catchup-entries=50"],
        Product::Etcd => &["--snapshot-count=200"],
    };
    let on = small_disk.as_ref().map(|(seat, disk, at)| (*seat, disk, at.as_path()));
    let mut cluster = Cluster::start_on(product, Wiring::AllProxied, dir.path(), seats, flags, on).await;
    let (direct, known) = cluster.present().map(|member| knowns(&cluster, member)).unzip();
    let clients = Clients::new(known);
    let mut storm = Storm::new(&mut cluster, dir.path(), flags, Rc::clone(&clients), direct, small_disk);
    let tasks = LocalSet::new();
    let (calm_since, ended) = tasks
        .run_until(async {
            clients.begin(seed);
            watchers::begin(&clients, &storm.direct);
            let now = |what: &str| println!("{what} {:.1} s", clients.recorder.now() as f64 / 1e6);
            storm.rages(&incidents).await;
            now("the storm is over at");
            storm.heals().await;
            now("all members serve again at");
            let calm_since = clients.recorder.now();
            let progress = progresses(&clients).await;
            now("each has answered and written at");
            let ended = ends(&clients, &storm).await;
            now("all has ended at");
            (calm_since, progress.and(ended))
        })
        .await;
    assert!(!clients.is_broken.get(), "a client has panicked");
    say(&storm, &clients);
    let history = clients.recorder.history.take();
    let rules = rules(product, calm_since);
    let _leaving = Leaving(&history, &rules);
    judge(&history, &rules, ended);
    if only.is_none() {
        assert_felt(&storm, &history, length);
    }
    for member in &storm.cluster.members {
        let log = member.log();
        assert!(!log.contains("a bug in revd") && !log.contains("panicked"), "{log}");
    }
}

/// One member has a disk of its own, where a file system can be mounted.
fn small_disk(dir: &TempDir, seat: usize) -> Option<(usize, SmallDisk, PathBuf)> {
    let at = dir.path().join("small");
    std::fs::create_dir_all(&at).unwrap();
    let disk = SmallDisk::mount(&at, SMALL_DISK_BYTES);
    if disk.is_none() {
        println!("no file system can be mounted here: no disk will be full");
    }
    Some((seat, disk?, at))
}

/// After the storm each member answers, and to writes too.
async fn progresses(clients: &Rc<Clients>) -> Result<(), &'static str> {
    clients.since_healed.borrow_mut().fill(0);
    let written = clients.audited.get();
    in_time("the cluster does not go on after the storm", async || {
        let answered = clients.since_healed.borrow().iter().all(|answers| *answers >= PROGRESS);
        (answered && clients.audited.get() >= written + 10).then_some(())
    })
    .await
}

/// Clients and leases end, watchers are told of the rest, and every member says its hash. If one
/// of these is late, that is a fault beside those that the checks find.
async fn ends(clients: &Rc<Clients>, storm: &Storm<'_>) -> Result<(), &'static str> {
    clients.is_over.set(true);
    let direct = storm.direct.borrow().clone();
    let watchers = 1 + 2 * direct.len();
    let is_at = |count| move |clients: &Clients| clients.is_broken.get() || clients.at_work.get() <= count;
    let (quiet, over) = (is_at(watchers), is_at(0));
    in_time("clients do not end", async || quiet(clients).then_some(())).await?;
    let kv = &direct[0].client.kv;
    let last = in_time("leases do not end", async || {
        let mut last = 0;
        for leased in ["lock/", "lease/", "lock/"] {
            let leased = kv.clone().range(prefix(leased)).await.ok()?.into_inner();
            last = leased.kvs.is_empty().then(|| leased.header.unwrap().revision)?;
        }
        Some(last)
    })
    .await?;
    clients.last.set(Some(last));
    in_time("watchers are not told of everything", async || over(clients).then_some(())).await?;
    storm.cluster.wait_until_all_answer().await;
    hashes(clients, &direct, last).await
}

/// Every member says the hash of its last revision. Those of other versions of etcd are computed
/// otherwise, and are only compared with each other.
async fn hashes(clients: &Clients, direct: &[Known], revision: i64) -> Result<(), &'static str> {
    let is_other = std::env::var_os("REVD_ETCD_BINARY").is_some();
    for known in direct {
        let request = Request::HashKv(HashKvRequest { revision });
        let answer = clients.recorder.call(clients.name(), known, request).await;
        let Ok(Response::HashKv(hash)) = answer else {
            return Err("a member has no hash of its last revision");
        };
        let mut history = clients.recorder.history.borrow_mut();
        let (member, index) = (known.member, u64::try_from(revision).unwrap());
        history.states.push(StateAt { member, index, digest: format!("{:08x}", hash.hash).into() });
        if is_other {
            history.calls.pop();
        }
    }
    Ok(())
}

/// Asks until there is an answer, or says that there is none in time.
async fn in_time<T>(why: &'static str, mut ask: impl AsyncFnMut() -> Option<T>) -> Result<T, &'static str> {
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MOMENTS, asking).await.map_err(|_| why)
}

/// A storm that nothing has felt shows nothing.
fn assert_felt(storm: &Storm<'_>, history: &History, length: Duration) {
    let (overlapping, _) = plan::overlaps(&storm.felt);
    let least = usize::try_from(OVERLAPPING_PER_MINUTE * length.as_secs() / 60).unwrap();
    assert!(overlapping >= least, "only {overlapping} faults have overlapped");
    let is_of_ways = |name: &str| name.starts_with("peers: ") || name.starts_with("clients: ");
    let ways: u64 =
        storm.ledger.iter().filter(|(name, _)| is_of_ways(name)).map(|(_, [count, _])| count).sum();
    assert!(ways == 0 || storm.met > 0, "none of {ways} faults of lines has met a byte");
    let [written, read] = registers_of_several(history);
    assert!(
        written == REGISTERS && read == REGISTERS,
        "of {REGISTERS} registers {written} were written, and {read} read, by several clients"
    );
}

/// How many registers several clients have written, and how many they have read.
fn registers_of_several(history: &History) -> [u64; 2] {
    let mut clients: BTreeMap<&[u8], [BTreeSet<u32>; 2]> = BTreeMap::new();
    for call in history.calls.iter().filter(|call| matches!(call.outcome, Outcome::Answered(_))) {
        let (key, is_read) = match &call.request {
            Request::Put(put) => (&put.key, false),
            Request::Range(range) if range.range_end.is_empty() => (&range.key, true),
            _ => continue,
        };
        if key.starts_with(b"reg/") {
            clients.entry(key).or_default()[usize::from(is_read)].insert(call.client);
        }
    }
    [0, 1].map(|kind| clients.values().filter(|clients| clients[kind].len() > 1).count() as u64)
}

/// The ledger of a storm.
fn say(storm: &Storm<'_>, clients: &Clients) {
    println!("faults (happened, left out): {:?}; {} of lines met something", storm.ledger, storm.met);
    let (overlapping, at_once) = plan::overlaps(&storm.felt);
    println!(
        "{} faults that last were felt, {overlapping} overlapped, up to {at_once} at once",
        storm.felt.len()
    );
    let tally = clients.recorder.tally.borrow();
    println!("calls (answered, refused, unknown): {tally:?}");
    println!("errors: {:#?}", clients.recorder.errors.borrow());
    let answered = clients.recorder.answered();
    assert!(answered > 500, "the load was too small to show anything: {answered} calls answered");
}

/// The promises that a storm is judged by.
fn rules(product: Product, calm_since: u64) -> Rules {
    let is_revd = product == Product::Revd;
    Rules {
        goes_on: is_revd,
        watches_show: is_revd,
        errors: is_revd.then(|| ERRORS.map(str::to_owned).to_vec()),
        calm_since: Some(calm_since),
        lease_slack: LEASE_SLACK,
        ..Rules::default()
    }
}

/// All checks.
fn judge(history: &History, rules: &Rules, ended: Result<(), &str>) {
    if let Some(path) = std::env::var_os("REVD_STORMS_KEEP") {
        std::fs::write(path, revd_checker::write(history, rules)).unwrap();
    }
    let report = revd_checker::check(history, rules);
    let unknown = history.calls.iter().filter(|call| matches!(call.outcome, Outcome::Unknown(_))).count();
    println!(
        "{} calls ({unknown} without an answer), {} revisions, {} watches told of {} events, {} holds of the \
         lock, {} registers searched, {} faults",
        history.calls.len(),
        report.truth.model.revision(),
        history.watches.len(),
        report.events,
        history.holds.len(),
        report.registers,
        report.faults.len()
    );
    let late = ended.err().map(str::to_owned);
    let faults = report.faults.iter().take(20).map(ToString::to_string).chain(late);
    let faults: Vec<_> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
