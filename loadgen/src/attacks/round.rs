//! Honest callers before and during an attack, on a fresh server.
//!
//! Attackers have the lowest priority: their own CPU time stands for another machine's. They come
//! back some milliseconds after they are sent away, as over a network; without that pause two cores
//! are full, and the system's scheduler is measured.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use super::attack::{Attack, AttackTarget};
use super::honest::{self, Noticed};
use crate::clock;
use crate::cost::ProcessUsage;
use crate::probe;
use crate::servers::{ServerSpec, Servers};
use crate::started::{self, OwnFolder};
use crate::units::{bytes, time};

/// Peace before each attack.
const PEACE: Duration = Duration::from_secs(3);
/// An attack lasts this long, and until it has struck once ...
const ATTACK_MIN: Duration = Duration::from_secs(6);
/// ... but no longer than this.
const ATTACK_MAX: Duration = Duration::from_secs(40);
/// The slowest get of others, in nanoseconds, and the slowest put beyond the slowest in peace,
/// which waits for the disk.
const SLOWEST_MAX: f64 = 100e6;
/// The most for [`AttackRound::p99_ratio`].
const RATIO_MAX: f64 = 2.0;
/// Memory beyond that in peace.
const MEMORY_MAX: u64 = 1 << 30;
/// The value of `--memory-bytes` for revd: the memory of a small machine, so that its budgets are
/// reached.
const MACHINE_BYTES: u64 = 4 << 30;

/// A server with fewer descriptors than others: a program of the same name that lowers the limit
/// first.
fn limited(program: &Path, descriptors: u32) -> anyhow::Result<(OwnFolder, PathBuf)> {
    let folder = started::folder_in(&std::env::temp_dir(), "loadgen-")?;
    let script = folder.path().join(program.file_name().context("a program")?);
    let text = format!("#!/bin/sh\nulimit -n {descriptors}\nexec '{}' \"$@\"\n", program.display());
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok((folder, script))
}

/// Looks at the server's memory until it is over: the most there was.
fn memory_peak(pid: u32, is_over: &AtomicBool) -> u64 {
    let mut peak = 0;
    while !is_over.load(Ordering::Relaxed) {
        peak = peak.max(ProcessUsage::of(&[pid]).memory);
        clock::rest(Duration::from_millis(50));
    }
    peak
}

/// Figures of honest callers, and the most memory of the server.
fn watched(
    endpoint: &str,
    pid: u32,
    during: impl FnOnce() + Send + 'static,
) -> anyhow::Result<(Noticed, u64)> {
    let [has_begun, is_over, is_done] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let (beginning, ending, looking) = (Arc::clone(&has_begun), Arc::clone(&is_over), Arc::clone(&is_done));
    let memory = std::thread::spawn(move || memory_peak(pid, &looking));
    let driver = std::thread::spawn(move || {
        while !beginning.load(Ordering::Relaxed) {
            clock::rest(Duration::from_millis(1));
        }
        during();
        ending.store(true, Ordering::Relaxed);
    });
    let noticed = honest::call(endpoint, &has_begun, &is_over);
    has_begun.store(true, Ordering::Relaxed); // or it could not
    let driven = driver.join();
    is_done.store(true, Ordering::Relaxed);
    let peak = memory.join().map_err(|_| anyhow::anyhow!("the memory was not watched"))?;
    driven.map_err(|_| anyhow::anyhow!("the attack has panicked"))?;
    Ok((noticed?, peak))
}

/// One round of one attack.
#[derive(Debug)]
pub struct AttackRound {
    /// Figures of honest callers before the attack, and during it.
    pub peace: Noticed,
    pub attacked: Noticed,
    /// Memory at most, in bytes: before and during.
    pub memory: (u64, u64),
    /// Replies and errors of the attacker, most frequent first.
    pub told: Vec<(String, u64)>,
    /// How often it struck.
    pub times: u64,
    /// The server answers afterwards.
    pub lives: bool,
    pub memory_after: u64,
}

impl AttackRound {
    /// p99 of honest gets during the attack, by that in peace; but for the time in which the
    /// machine stood still.
    #[must_use]
    pub fn p99_ratio(&self) -> f64 {
        let p99 = |noticed: &Noticed| Noticed::quantile(&noticed.calm_gets, 0.99);
        p99(&self.attacked) / p99(&self.peace)
    }
}

/// A server that can be attacked so.
#[must_use]
pub fn prepared(attack: Attack, spec: &ServerSpec) -> ServerSpec {
    let mut spec = spec.clone();
    if spec.program.is_revd {
        // etcd has no such flag.
        spec.flags.extend(["--memory-bytes".to_owned(), MACHINE_BYTES.to_string()]);
    }
    spec.security.auth |= attack.has_users;
    spec.security.tls |= attack.has_tls;
    spec.asks_callers |= attack.asks_callers;
    spec
}

/// Measures an attack on a fresh server: peace first, then the attack.
///
/// # Errors
/// When the server does not start, or honest callers cannot begin.
pub fn round(attack: Attack, spec: &ServerSpec, is_full: bool) -> anyhow::Result<AttackRound> {
    let mut spec = prepared(attack, spec);
    let held = attack.descriptors.map(|most| limited(&spec.program.path, most)).transpose()?;
    if let Some((_, script)) = &held {
        spec.program.path.clone_from(script);
    }
    let server = Servers::start(&spec)?;
    let (endpoint, pid) = (server.endpoints[0].clone(), server.pids()[0]);
    let mut target = AttackTarget::new(&endpoint);
    target.is_full = is_full;
    let target = Arc::new(target);
    (attack.before)(&target).context("filling the store")?;
    clock::rest(Duration::from_secs(1));
    let (peace, calm) = watched(&endpoint, pid, || clock::rest(PEACE))?;
    let times = Arc::new(AtomicU64::new(0));
    let (striking, counting) = (Arc::clone(&target), Arc::clone(&times));
    let (attacked, peak) = watched(&endpoint, pid, move || strike(attack, striking, &counting))?;
    clock::rest(Duration::from_millis(200));
    let lives = probe::status(&endpoint).is_ok();
    let (times, memory_after) = (times.load(Ordering::Relaxed), ProcessUsage::of(&[pid]).memory);
    Ok(AttackRound {
        peace,
        attacked,
        memory: (calm, peak),
        told: target.tally.all(),
        times,
        lives,
        memory_after,
    })
}

/// Attacks for its time on a thread of its own.
fn strike(attack: Attack, target: Arc<AttackTarget>, times: &Arc<AtomicU64>) {
    let (striking, counting) = (Arc::clone(&target), Arc::clone(times));
    let is_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&is_done);
    let start = clock::nanos();
    let attacker = std::thread::spawn(move || {
        attack.go_on(&striking, &counting);
        done.store(true, Ordering::Relaxed);
    });
    loop {
        clock::rest(Duration::from_millis(20));
        let passed = Duration::from_nanos(clock::nanos() - start);
        let has_struck = times.load(Ordering::Relaxed) > 0;
        if passed > ATTACK_MAX || (passed > ATTACK_MIN && has_struck) || is_done.load(Ordering::Relaxed) {
            break;
        }
        // Some attacks go on until `is_over` is set.
        if passed > ATTACK_MIN * 3 {
            target.is_over.store(true, Ordering::Relaxed);
        }
    }
    target.is_over.store(true, Ordering::Relaxed);
    let _ = attacker.join();
}

/// Bounds that the round exceeds; empty if there are none.
#[must_use]
pub fn faults(attack: Attack, round: &AttackRound) -> Vec<String> {
    let mut faults = Vec::new();
    let (peace, attacked) = (&round.peace, &round.attacked);
    if !round.lives {
        faults.push(if round.memory_after == 0 { "dead" } else { "does not answer" }.to_owned());
    }
    let slowest = Noticed::slowest(&attacked.gets);
    if slowest > SLOWEST_MAX {
        faults.push(format!("slowest get {}", time(slowest / 1e3)));
    }
    let slowest = Noticed::slowest(&attacked.puts);
    if slowest > SLOWEST_MAX + Noticed::slowest(&peace.puts) {
        faults.push(format!("slowest put {}", time(slowest / 1e3)));
    }
    let ratio = round.p99_ratio();
    if ratio > RATIO_MAX {
        faults.push(format!("p99 x{ratio:.1}"));
    }
    let grown = round.memory.1.saturating_sub(round.memory.0);
    if grown > MEMORY_MAX {
        faults.push(format!("memory +{}", bytes(grown as f64)));
    }
    let failed: u64 = attacked.errors.values().sum();
    if let Some((what, _)) = attacked.errors.iter().max_by_key(|(_, times)| **times) {
        faults.push(format!("{failed} failed ({what:.60})"));
    }
    if let Some(what) = attacked.lost.first() {
        faults.push(format!("{} lost ({what:.60})", attacked.lost.len()));
    }
    if !attack.right.is_empty() && told(round, attack.right).next().is_none() {
        faults.push(format!("the attacker did not get {:?}", attack.right));
    }
    if !attack.wrong.is_empty() {
        faults.extend(told(round, attack.wrong).map(|what| format!("the attacker got {what:?}")));
    }
    faults
}

/// The things that the attacker was told with these words in them.
fn told<'r>(round: &'r AttackRound, words: &str) -> impl Iterator<Item = &'r str> {
    round.told.iter().map(|(told, _)| told.as_str()).filter(move |told| told.contains(words))
}
