//! What others notice while somebody attacks the server: p50 and p99 of 2,000 gets a second (open loop), in peace and under
//! each attack, in turn.
//!
//! cargo run --release -p revd-bench --bin attacks [-- --rounds 3 [--only "rapid reset"]]
//!
//! Attackers have the lowest priority: their own CPU time is somebody else's machine. They come back some milliseconds after
//! they are sent away, as over a network; without that pause two cores are full, and what is measured is the system's
//! scheduler.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use revd_loadgen::measure::Session;
use revd_loadgen::plan::Plan;
use revd_loadgen::presets::preset;
use revd_loadgen::report::{bytes, table, time};
use revd_loadgen::result::{Run, median};
use revd_loadgen::servers::{Servers, Spec};
use revd_proto::http2::PREFACE;
use revd_proto::raw::{call_block, frame};
use rustix::process::{Resource, Rlimit};

const RATE: f64 = 2_000.0;
const SECONDS: f64 = 4.0;
/// Until an attacker comes back.
const PAUSE: Duration = Duration::from_millis(5);
/// Connections of attacks that only wait.
const SILENT: usize = 2_000;

/// An attack: what it says on a fresh connection, and what it does then. Again and again.
type Attack = (&'static str, fn() -> Vec<u8>, fn(&TcpStream));

const ATTACKS: [Attack; 8] = [
    ("rapid reset", rapid_reset, |_| {}),
    (
        "continuations",
        || [frame(1, 0, 1, &call_block("/x")), frame(9, 0, 1, &[]).repeat(20_000)].concat(),
        |_| {},
    ),
    ("settings", || frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(20_000), |_| {}),
    ("pings", || frame(6, 0, 0, &[7; 8]).repeat(20_000), |_| {}),
    ("empty data", empty_data, |_| {}),
    ("broken header blocks", || frame(1, 5, 1, &[0xff; 40]), |_| {}),
    ("ranges nobody takes", ranges, |_| std::thread::park_timeout(Duration::from_millis(200))),
    ("half-open connections", || frame(1, 0, 1, &call_block("/etcdserverpb.KV/Put")), half_open),
];

fn rapid_reset() -> Vec<u8> {
    let head = call_block("/etcdserverpb.KV/Range");
    let pair = |at: u32| [frame(1, 4, 1 + 2 * at, &head), frame(3, 0, 1 + 2 * at, &[0, 0, 0, 8])].concat();
    (0..20_000).flat_map(pair).collect()
}

fn empty_data() -> Vec<u8> {
    let begun = frame(1, 4, 1, &call_block("/etcdserverpb.Watch/Watch"));
    [begun, frame(0, 0, 1, &[]).repeat(20_000)].concat()
}

/// Everything, a thousand times, and nothing of it is read.
fn ranges() -> Vec<u8> {
    let message = [&[0, 0, 0, 0, 6][..], &[0x0a, 1, 0, 0x12, 1, 0]].concat();
    let ask = |at: u32| {
        [frame(1, 4, 1 + 2 * at, &call_block("/etcdserverpb.KV/Range")), frame(0, 1, 1 + 2 * at, &message)]
            .concat()
    };
    (0..1_000).flat_map(ask).collect()
}

fn half_open(stream: &TcpStream) {
    let Ok(address) = stream.peer_addr() else { return };
    let held: Vec<_> = (0..SILENT).map_while(|_| TcpStream::connect(address).ok()).collect();
    std::thread::park_timeout(Duration::from_secs(1));
    drop(held);
}

/// Attacks until told to end; how often it came back.
fn attack(address: &str, attack: Attack, is_over: &AtomicBool, times: &AtomicU64) {
    let _ = rustix::process::setpriority_process(None, 19);
    let (_, bytes, then) = attack;
    let bytes = [PREFACE, &frame(4, 0, 0, &[]), &bytes()].concat();
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let _ = stream.set_write_timeout(Some(Duration::from_millis(500)));
        // Being sent away in the middle is what should happen.
        let _ = stream.write_all(&bytes);
        then(&stream);
        times.fetch_add(1, Ordering::Relaxed);
        std::thread::park_timeout(PAUSE);
    }
}

fn measure(
    session: &Session,
    plan: &Plan,
    server: &Servers,
    with: Option<Attack>,
) -> anyhow::Result<(Run, u64)> {
    let (is_over, times) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let address = server.endpoints[0].trim_start_matches("http://").to_owned();
    let attacker = with.map(|with| {
        let (is_over, times) = (Arc::clone(&is_over), Arc::clone(&times));
        std::thread::spawn(move || attack(&address, with, &is_over, &times))
    });
    let run = session.run(plan, 1, &server.pids());
    is_over.store(true, Ordering::Relaxed);
    if let Some(attacker) = attacker {
        attacker.join().map_err(|_| anyhow::anyhow!("the attacker has panicked"))?;
    }
    Ok((run?, times.load(Ordering::Relaxed)))
}

/// p50 and p99 in peace, and under attack.
type Figures = ((f64, f64), (f64, f64));

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (rounds, only) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (3, ""),
        ["--rounds", rounds] => (rounds.parse().context("--rounds needs a number")?, ""),
        ["--rounds", rounds, "--only", only] => (rounds.parse().context("--rounds needs a number")?, only),
        _ => anyhow::bail!("unknown options {args:?}: --rounds N [--only NAME]"),
    };
    // Attackers hold many connections.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let own = std::env::current_exe()?;
    let program: PathBuf = own.with_file_name("revd");
    anyhow::ensure!(program.is_file(), "build the server first: cargo build --release -p revd");
    let server = Servers::start(&Spec { name: "revd".to_owned(), program, members: 1, ..Spec::default() })?;
    let session = Session::new(false)?;
    let base = preset("get")?;
    let plan = Plan { endpoints: server.endpoints.clone(), rate: Some(RATE), duration: SECONDS, ..base };
    let calm = Plan { preload: false, ..plan.clone() };
    measure(&session, &plan, &server, None)?; // fills the store
    let mut rows = Vec::new();
    for with in ATTACKS.into_iter().filter(|(name, ..)| name.starts_with(only)) {
        let name = with.0;
        let mut figures = Vec::new();
        let (mut came, mut memory, mut failed) = (0, 0, 0);
        for _ in 0..rounds {
            let (quiet, _) = measure(&session, &calm, &server, None)?;
            let (attacked, times) = measure(&session, &calm, &server, Some(with))?;
            // Nobody was served at all: as slow as can be.
            let of = |run: &Run| {
                let op = run.rounds[0].ops.first();
                op.map_or((f64::INFINITY, f64::INFINITY), |op| (op.latency.p50, op.latency.p99))
            };
            if let Some(why) = &attacked.stopped {
                eprintln!("{name}: {why}");
            }
            figures.push((of(&quiet), of(&attacked)));
            came += times;
            let seconds = attacked.rounds[0].server_seconds.iter();
            memory = seconds.map(|second| second.1).max().unwrap_or(0).max(memory);
            failed += attacked.rounds[0].ops.iter().flat_map(|op| op.errors.values()).sum::<u64>();
        }
        let middle = |of: fn(&Figures) -> f64| median(figures.iter().map(of));
        eprintln!("{name}: done");
        rows.push(vec![
            name.to_owned(),
            came.to_string(),
            time(middle(|it| it.0.0)),
            time(middle(|it| it.1.0)),
            time(middle(|it| it.0.1)),
            time(middle(|it| it.1.1)),
            format!("{:.2}", middle(|it| it.1.1 / it.0.1)),
            bytes(memory as f64),
            failed.to_string(),
        ]);
    }
    let head =
        ["attack", "times", "p50 in peace", "p50", "p99 in peace", "p99", "ratio", "memory", "failed gets"];
    print!("{}", table::plain(&head, rows));
    Ok(())
}
