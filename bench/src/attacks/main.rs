//! What others notice while somebody attacks the server, in peace and under each attack in turn; the same attacks on etcd.
//!
//! ```text
//! cargo build --release -p revd -p revd-bench
//! target/release/attacks [--rounds 3] [--only "txn"] [--against revd,etcd] [--full] [--below DIR] [--json FILE]
//! ```
//!
//! Each attack has a fresh server. Attackers have the lowest priority: their own CPU time is somebody else's machine. They
//! come back some milliseconds after they are sent away, as over a network; without that pause two cores are full, and what
//! is measured is the system's scheduler.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use revd_bench::attacks::honest::{self, Noticed};
use revd_bench::attacks::{self, Attack, Target};
use revd_loadgen::clock;
use revd_loadgen::cost::Usage;
use revd_loadgen::probe;
use revd_loadgen::report::{bytes, table, time};
use revd_loadgen::result::median;
use revd_loadgen::servers::{Servers, Spec, find};
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};

/// Peace before each attack.
const PEACE: Duration = Duration::from_secs(3);
/// An attack lasts this long, and until it has struck once ...
const ATTACK_MIN: Duration = Duration::from_secs(6);
/// ... but no longer than this.
const ATTACK_MAX: Duration = Duration::from_secs(40);
/// The slowest get of others, in nanoseconds, and the slowest put beyond the slowest in peace, which waits for the disk.
const SLOWEST_MAX: f64 = 100e6;
/// Their p99 during the attack, by that in peace.
const RATIO_MAX: f64 = 2.0;
/// Memory beyond that in peace.
const MEMORY_MAX: u64 = 1 << 30;
/// Memory that revd is told it may use: that of a small machine, so that its budgets are reached.
const MACHINE_BYTES: u64 = 4 << 30;

struct Options {
    rounds: usize,
    only: String,
    against: Vec<String>,
    is_full: bool,
    below: Option<PathBuf>,
    json: Option<PathBuf>,
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options {
        rounds: 1,
        only: String::new(),
        against: Vec::new(),
        is_full: false,
        below: None,
        json: None,
    };
    let mut against = "revd".to_owned();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--rounds" => options.rounds = value()?.parse().context("--rounds needs a number")?,
            "--only" => options.only = value()?,
            "--against" => against = value()?,
            "--json" => options.json = Some(value()?.into()),
            "--below" => options.below = Some(value()?.into()),
            "--full" => options.is_full = true,
            _ => anyhow::bail!(
                "unknown option {arg}: [--rounds N] [--only NAME] [--against revd,etcd] [--full] [--below DIR] [--json FILE]"
            ),
        }
    }
    options.against = against.split(',').map(str::to_owned).collect();
    Ok(options)
}

/// A server with fewer descriptors than others: a program of the same name that lowers the limit first.
fn limited(program: &Path, descriptors: u32) -> anyhow::Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir()?;
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
        peak = peak.max(Usage::of(&[pid]).memory);
        clock::rest(Duration::from_millis(50));
    }
    peak
}

/// What others noticed, and how much memory the server had at most.
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
struct Round {
    peace: Noticed,
    attacked: Noticed,
    memory: (u64, u64),
    told: Vec<(String, u64)>,
    times: u64,
    lives: bool,
    memory_after: u64,
}

fn round(attack: Attack, name: &str, options: &Options) -> anyhow::Result<Round> {
    let (name, program) = find(name)?;
    let mut spec = Spec { name, program, members: 1, below: options.below.clone(), ..Spec::default() };
    if spec.program.file_name().is_some_and(|program| program == "revd") {
        spec.flags = vec!["--memory-bytes".to_owned(), MACHINE_BYTES.to_string()]; // etcd has no such flag
    }
    let held = attack.descriptors.map(|most| limited(&spec.program, most)).transpose()?;
    if let Some((_, script)) = &held {
        spec.program.clone_from(script);
    }
    let server = Servers::start(&spec)?;
    let (endpoint, pid) = (server.endpoints[0].clone(), server.pids()[0]);
    let target = Arc::new(Target { is_full: options.is_full, ..Target::new(&endpoint) });
    (attack.before)(&target).context("filling the store")?;
    clock::rest(Duration::from_secs(1));
    let (peace, calm) = watched(&endpoint, pid, || clock::rest(PEACE))?;
    let times = Arc::new(AtomicU64::new(0));
    let (striking, counting) = (Arc::clone(&target), Arc::clone(&times));
    let (attacked, peak) = watched(&endpoint, pid, move || strike(attack, striking, &counting))?;
    clock::rest(Duration::from_millis(200));
    let lives = probe::status(&endpoint).is_ok();
    let (times, memory_after) = (times.load(Ordering::Relaxed), Usage::of(&[pid]).memory);
    Ok(Round { peace, attacked, memory: (calm, peak), told: target.tally.all(), times, lives, memory_after })
}

/// Attacks for its time on a thread of its own.
fn strike(attack: Attack, target: Arc<Target>, times: &Arc<AtomicU64>) {
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
        // Some go on until they are told that it is over.
        if passed > ATTACK_MIN * 3 {
            target.is_over.store(true, Ordering::Relaxed);
        }
    }
    target.is_over.store(true, Ordering::Relaxed);
    let _ = attacker.join();
}

/// What is wrong with it; empty if nothing is.
fn faults(attack: Attack, round: &Round) -> Vec<String> {
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
    let p99 = |noticed: &Noticed| Noticed::quantile(&noticed.gets, 0.99);
    let ratio = p99(attacked) / p99(peace);
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
    let told = |what: &str| round.told.iter().any(|(told, _)| told.contains(what));
    if !attack.right.is_empty() && !told(attack.right) {
        faults.push(format!("the attacker was not told {:?}", attack.right));
    }
    if !attack.wrong.is_empty() && told(attack.wrong) {
        faults.push(format!("the attacker was told {:?}", attack.wrong));
    }
    faults
}

fn row(attack: Attack, name: &str, rounds: &[Round]) -> Vec<String> {
    let middle = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
    let p = |of: fn(&Round) -> &Noticed, share: f64| {
        time(middle(&|round| Noticed::quantile(&of(round).gets, share)) / 1e3)
    };
    let worst = |of: &dyn Fn(&Round) -> f64| time(rounds.iter().map(of).fold(0.0, f64::max) / 1e3);
    let ratio = middle(&|round| {
        Noticed::quantile(&round.attacked.gets, 0.99) / Noticed::quantile(&round.peace.gets, 0.99)
    });
    let memory = rounds.iter().map(|round| round.memory.1).max().unwrap_or(0);
    let fewest = rounds.iter().map(|round| faults(attack, round)).min_by_key(Vec::len).unwrap_or_default();
    vec![
        attack.name.to_owned(),
        if attack.finding == 0 { String::new() } else { attack.finding.to_string() },
        name.to_owned(),
        rounds.iter().map(|round| round.times).sum::<u64>().to_string(),
        p(|round| &round.peace, 0.5),
        p(|round| &round.attacked, 0.5),
        p(|round| &round.peace, 0.99),
        p(|round| &round.attacked, 0.99),
        format!("{ratio:.1}"),
        worst(&|round| Noticed::slowest(&round.attacked.gets)),
        worst(&|round| Noticed::slowest(&round.peace.puts)),
        worst(&|round| Noticed::slowest(&round.attacked.puts)),
        bytes(memory as f64),
        if fewest.is_empty() { "holds".to_owned() } else { fewest.join("; ") },
    ]
}

fn in_json(attack: Attack, name: &str, round: &Round) -> Value {
    let times = |noticed: &Noticed| {
        let at = |share| Noticed::quantile(&noticed.gets, share) / 1e3;
        json!({
            "p50-us": at(0.5), "p99-us": at(0.99), "slowest-get-us": Noticed::slowest(&noticed.gets) / 1e3,
            "slowest-put-us": Noticed::slowest(&noticed.puts) / 1e3, "gets": noticed.gets.len(),
            "puts": noticed.puts.len(), "errors": noticed.errors, "lost": noticed.lost,
        })
    };
    json!({
        "attack": attack.name, "finding": attack.finding, "server": name, "struck": round.times,
        "peace": times(&round.peace), "attacked": times(&round.attacked), "memory-in-peace": round.memory.0,
        "memory-peak": round.memory.1, "lives": round.lives, "memory-after": round.memory_after, "faults": faults(attack, round),
        "told": round.told.iter().take(5).collect::<Vec<_>>(),
    })
}

const HEAD: [&str; 14] = [
    "attack",
    "finding",
    "server",
    "struck",
    "p50 in peace",
    "p50",
    "p99 in peace",
    "p99",
    "ratio",
    "slowest get",
    "slowest put in peace",
    "slowest put",
    "memory",
    "verdict",
];

fn main() -> anyhow::Result<()> {
    let options = options()?;
    // Attackers hold many connections.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let chosen = attacks::all().into_iter().filter(|attack| attack.name.contains(&options.only));
    for attack in chosen {
        for name in &options.against {
            let mut rounds = Vec::new();
            for _ in 0..options.rounds {
                match round(attack, name, &options) {
                    Ok(round) => rounds.push(round),
                    Err(error) => eprintln!("{} on {name}: {error:#}", attack.name),
                }
            }
            lines.extend(rounds.iter().map(|round| in_json(attack, name, round)));
            if rounds.is_empty() {
                let mut row = vec![String::new(); HEAD.len()];
                (row[0], row[2]) = (attack.name.to_owned(), name.clone());
                row[HEAD.len() - 1] = "could not be measured".to_owned();
                rows.push(row);
                continue;
            }
            let row = row(attack, name, &rounds);
            eprintln!("{}", row.join(" | "));
            rounds
                .iter()
                .for_each(|round| eprintln!("    told: {:?}", round.told.iter().take(3).collect::<Vec<_>>()));
            rows.push(row);
        }
    }
    if let Some(path) = options.json {
        std::fs::write(path, serde_json::to_string_pretty(&lines)?)?;
    }
    print!("{}", table::plain(&HEAD, rows));
    Ok(())
}
