//! Hostile and honest load together: all attacks in turn, kill -9 between them, while honest
//! clients write, watch, keep leases alive and take a lock. Nothing acknowledged is lost, no event,
//! no lease, no lock; nobody honest is refused.
//!
//! `REVD_SOAK_SECONDS` makes it longer, `REVD_SOAK_SEED` takes the attacks in another order,
//! `REVD_SOAK_ONLY` only those with this in their name. The attack that compacts is not among them:
//! the auditor of watches must not be compacted away.

mod holders;
mod honest;
mod watching;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use revd_loadgen::attacks::{self, Attack, AttackTarget};
use revd_proto::etcdserverpb::DeleteRangeRequest;
use tokio::task::{LocalSet, spawn_local};

use crate::harness::{Random, Server, TempDir, connect, from_env, run};
use honest::{Shared, Written};
use watching::Watched;

/// How long an attack lasts, when it has struck once.
const ATTACK: Duration = Duration::from_secs(4);
/// Peace after each start, in which clients find back.
const PEACE: Duration = Duration::from_secs(2);
const WATCHERS: u64 = 8;
const LEASES: u64 = 10;
const LOCKERS: u64 = 4;
const FLAGS: [&str; 2] = ["--quota-backend-bytes", "17179869184"];

/// The attacks, in the order of a seed.
fn order() -> Vec<Attack> {
    let only = std::env::var("REVD_SOAK_ONLY").unwrap_or_default();
    let seed = from_env("REVD_SOAK_SEED", 0);
    let mut all = attacks::all();
    // The server here has no users.
    all.retain(|attack| attack.name.contains(&only) && !attack.name.contains("compact") && !attack.has_users);
    assert!(!all.is_empty(), "no attack is called {only:?}");
    if seed > 0 {
        let mut random = Random::new(seed);
        for at in (1..all.len()).rev() {
            all.swap(at, usize::try_from(random.below(at as u64 + 1)).unwrap());
        }
    }
    all
}

/// Attacks for some seconds on a thread of its own, while this one serves honest clients.
async fn strike(shared: &Shared, attack: Attack) {
    let target = Arc::new(AttackTarget::new(&shared.endpoint));
    let times = Arc::new(AtomicU64::new(0));
    let (striking, counting) = (Arc::clone(&target), Arc::clone(&times));
    let attacker = std::thread::spawn(move || {
        if let Err(error) = (attack.before)(&striking) {
            striking.tally.told(&format!("filling the store: {error:#}"));
        }
        attack.go_on(&striking, &counting);
    });
    let start = honest::now();
    // Some go on until they are told that it is over.
    while start.elapsed() < ATTACK || (times.load(Ordering::Relaxed) == 0 && start.elapsed() < ATTACK * 3) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    target.is_over.store(true, Ordering::Relaxed);
    while !attacker.is_finished() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    attacker.join().unwrap();
    let told = target.tally.all();
    println!("{:5} x {}: told {:.200}", times.load(Ordering::Relaxed), attack.name, format!("{told:?}"));
}

/// Removes what the attack has left.
async fn clean(shared: &Shared, watched: &Watched) {
    let client = connect(&shared.endpoint).await;
    let all = DeleteRangeRequest { key: "attack".into(), range_end: "attacl".into(), ..Default::default() };
    shared.call("clean", client.kv.clone().delete_range(all)).await;
    watching::compact(shared, watched).await;
}

/// Kills the server, and starts it again where it was.
fn restart(shared: &Shared, server: &mut Server) {
    shared.is_down.set(true);
    shared.kills.set(shared.kills.get() + 1);
    server.kill();
    server.start_again();
    shared.ready_at.set(honest::now());
    shared.is_down.set(false);
}

/// Shows the server's log since its start, if something was found after it.
fn show_log(shared: &Shared, known: usize, server: &Server) {
    if shared.findings.borrow().len() > known {
        eprintln!("log since the last start:\n{}", server.log());
    }
}

async fn soak(seconds: u64) {
    let dir = TempDir::new();
    let mut server = Server::revd(&dir.path().join("data"), &FLAGS);
    let shared = Shared::new(server.endpoint());
    let (written, watched) = (Rc::new(RefCell::new(Written::default())), Rc::new(Watched::default()));
    let (holder, taken, kept) = (Rc::new(Cell::new(None)), Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let auditor = spawn_local(watching::audit(Rc::clone(&shared), Rc::clone(&watched)));
    let mut tasks = Vec::new();
    tasks.extend(
        (0..honest::WRITERS)
            .map(|writer| spawn_local(honest::write(Rc::clone(&shared), Rc::clone(&written), writer))),
    );
    tasks.extend(
        (0..WATCHERS).map(|seed| spawn_local(watching::watch(Rc::clone(&shared), Rc::clone(&watched), seed))),
    );
    tasks.extend((0..LEASES).map(|_| spawn_local(holders::hold(Rc::clone(&shared), Rc::clone(&kept)))));
    tasks.extend(
        (0..LOCKERS)
            .map(|_| spawn_local(holders::lock(Rc::clone(&shared), Rc::clone(&holder), Rc::clone(&taken)))),
    );
    let start = honest::now();
    let mut random = Random::new(seconds);
    for attack in order().into_iter().cycle() {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        shared.attack.replace(attack.name.to_owned());
        shared.slowest.take();
        strike(&shared, attack).await;
        if !server.is_running() {
            shared.find(&format!("the server is dead: {:.3000}", server.log()));
        }
        println!("      slowest call of others: {:?}", shared.slowest.get());
        // Before, in the middle of, or after cleaning up.
        let when = random.below(3);
        if when > 0 && server.is_running() {
            clean(&shared, &watched).await;
        }
        if when == 2 && server.is_running() {
            watching::check(&shared, &watched).await;
        }
        let known = shared.findings.borrow().len();
        restart(&shared, &mut server);
        shared.attack.replace(format!("peace after {}", attack.name));
        let client = connect(&shared.endpoint).await;
        honest::check(&shared, &client, &written).await;
        tokio::time::sleep(PEACE).await;
        watching::check(&shared, &watched).await;
        show_log(&shared, known, &server);
    }
    shared.over.set(true);
    for task in tasks {
        task.await.unwrap();
    }
    shared.is_quiet.set(true);
    auditor.await.unwrap();
    watching::check(&shared, &watched).await;
    watching::check_acknowledged(&shared, &watched, &written.borrow());
    let findings = shared.findings.take();
    println!(
        "{} kills, {} calls, {} writes acknowledged, watchers were told of {} events, the lock was taken {} times",
        shared.kills.get(),
        shared.calls.get(),
        written.borrow().all.len(),
        watched.told.get(),
        taken.get()
    );
    assert!(watched.told.get() > 100 && taken.get() > 10 && kept.get() > 10, "too little happened");
    assert!(findings.is_empty(), "{} findings:\n{:.20000}", findings.len(), findings.join("\n"));
}

#[test]
fn nothing_honest_is_lost_among_attacks() {
    run(LocalSet::new().run_until(soak(from_env("REVD_SOAK_SECONDS", 15))));
}
