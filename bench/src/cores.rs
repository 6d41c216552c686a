//! How many puts one log core and one state core carry:
//! `cargo run --release -p revd-bench --bin cores -- KEYS [PUTS]`.
//!
//! The loops that ship, one core after the other on one thread, without sockets and without a disk:
//! commands of one edge become entries, raft calls them committed (one voter) and frames are
//! encoded; then entries are applied to a store of so many keys, in no order. A View is published
//! behind each turn, and the newest one is held, as edges do: what it shares is copied before it is
//! changed. A turn has one entry; in the last row as many as a millisecond has room for, as when
//! the state core is the limit. Printed for each length of entries: CPU a put, and the puts a
//! second that a core for itself would have time for. Checkpoints are prepared and ended on the
//! state core, which is counted; they are written, and much that old Views leave behind is freed,
//! on threads of their own, which have rows of their own.

use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use revd_bench::{cpu_time, key, value};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::Store;
use revd_engine::random::Random;
use revd_member::apply::command::{self, Command, CommandId, Kind, Origin};
use revd_member::apply::local::Submitted;
use revd_member::apply::received::ReceivedState;
use revd_member::apply::{CommittedEntry, Machine, MachineConfig, Work};
use revd_member::cluster::Identity;
use revd_member::cluster::conf_state::ConfState;
use revd_member::cores::log::{LogConfig, LogCore};
use revd_member::cores::log_events::{LogEffects, LogEvent};
use revd_member::peer::{Peer, PeerMessage};
use revd_member::raft::feed::LogFetch;
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::wal::FrameContent;
use revd_member::wal::birth::empty_log;
use revd_member::wal::frame::{self, FrameId};
use revd_proto::etcdserverpb::PutRequest;

mod state_core;

use state_core::{Spent, StateBench};

const OWNER: Identity = Identity { cluster: 1, member: 2 };
const OWN: Origin = Origin { member: 2, boot: 1 };
const VALUE_BYTES: usize = 256;
/// Commands of an entry: those that gather while the one before is written.
const ENTRY_COMMANDS: [u64; 4] = [1, 10, 100, 1_000];
/// Of full turns: more than a turn has time for, so that others wait for the next one.
const TURN_ENTRY_COMMANDS: u64 = 10;
const TURN_ENTRIES: usize = 1_000;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<()> {
    rustix::thread::disable_transparent_huge_pages(true)?; // as the server does
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let keys = args.next().transpose()?.unwrap_or(1_000_000);
    let puts = args.next().transpose()?.unwrap_or(1_000_000);
    println!("Puts of {VALUE_BYTES} B to {keys} keys of 64 B in no order, {puts} for each row.");
    println!("| core | commands of an entry | CPU of a put | puts a second of a core |");
    println!("|---|---|---|---|");
    for commands in ENTRY_COMMANDS {
        log_core(puts, commands)?;
    }
    let directory = tempfile::tempdir_in(std::env::var("REVD_BENCH_DIR").unwrap_or_else(|_| ".".to_owned()))?;
    let disk = MmapDisk::open(&directory.path().join("tree"))?;
    let store = Store::open(Arc::new(disk), DbOptions::default())?;
    let config = MachineConfig { own: OWN, quota_bytes: 0, lease_extension: 0 };
    let mut state = StateBench::new(Machine::new(store, config)?);
    let mut random = Random::new(1);
    for first in (0..keys).step_by(1_000) {
        // Each comes once where the number of keys is a power of ten.
        let some = (first..keys.min(first + 1_000)).map(|at| at * 0x9E37_79B1 % keys).collect::<Vec<_>>();
        let puts = some.len() as u64;
        state.apply(entries(state.applied(), &[some]), 1, puts)?;
    }
    for commands in ENTRY_COMMANDS {
        state_core(&mut state, commands, 1, (puts, keys), &mut random)?;
    }
    state_core(&mut state, TURN_ENTRY_COMMANDS, TURN_ENTRIES, (puts, keys), &mut random)
}

fn state_core(
    state: &mut StateBench,
    of_entry: u64,
    at_once: usize,
    (puts, keys): (u64, u64),
    random: &mut Random,
) -> anyhow::Result<()> {
    state.spent = Spent::default();
    let mut done = 0;
    while done < puts {
        // Many entries in one measurement: the clock of threads is read through a file.
        let some: Vec<Vec<u64>> = (0..(1_000 / of_entry).max(1).max(at_once as u64))
            .map(|_| (0..of_entry).map(|_| random.below(keys)).collect())
            .collect();
        let together = some.iter().map(Vec::len).sum::<usize>() as u64;
        state.apply(entries(state.applied(), &some), at_once, together)?;
        done += together;
    }
    let name = if at_once > 1 { "state, full turns" } else { "state" };
    report(name, of_entry, state.spent.state, done);
    report("checkpoints, elsewhere", of_entry, state.spent.writing, done);
    report("freeing, elsewhere", of_entry, state.spent.freeing, done);
    Ok(())
}

fn report(core: &str, commands: u64, spent: Duration, puts: u64) {
    let each = spent.as_secs_f64() / puts as f64;
    println!("| {core} | {commands} | {:.2} us | {:.0} |", each * 1e6, 1.0 / each);
}

/// Puts to these keys, as the edge hands them over: the bytes of the requests.
fn commands(keys: &[u64]) -> Vec<Command> {
    let command = |(slot, number): (usize, &u64)| {
        let put =
            PutRequest { key: key(*number), value: value(VALUE_BYTES, *number), ..PutRequest::default() };
        let payload = put.encode_to_vec().into();
        Command { id: CommandId::new(0, slot, 1), kind: Kind::Put, payload }
    };
    keys.iter().enumerate().map(command).collect()
}

/// Entries behind those that are applied, of puts to these keys.
fn entries(applied: u64, keys: &[Vec<u64>]) -> Vec<CommittedEntry> {
    let entry = |(index, keys): (u64, &Vec<u64>)| {
        let data = command::encode(OWN, &commands(keys)).into();
        CommittedEntry { index, term: 1, data, change: None }
    };
    (applied + 1..).zip(keys).map(entry).collect()
}

/// Frames and entries of a turn of the log core.
#[derive(Default)]
struct Turn {
    frames: Vec<FrameContent>,
    applied: u64,
}

impl LogEffects for Turn {
    fn append(&mut self, frame: FrameContent) {
        self.frames.push(frame);
    }

    fn work(&mut self, work: Work) {
        if let Work::Entry(entry) = work {
            self.applied = entry.index;
        }
    }

    fn release(&mut self, _: u64) {}
    fn send(&mut self, _: u64, _: PeerMessage) {}
    fn fetch(&mut self, _: LogFetch) {}
    fn set_peers(&mut self, _: Vec<Peer>) {}
    fn discard(&mut self, _: Box<ReceivedState>) {}
    fn installed(&mut self) {}
}

fn log_core(puts: u64, of_entry: u64) -> anyhow::Result<()> {
    let conf_state = ConfState::of_voters(vec![OWNER.member]);
    let config = RaftConfig { conf_state, ..RaftConfig::alone(OWNER.member, 1) };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let node = RaftNode::start(&config, &empty_log(OWNER), &logger)?;
    let mut core = LogCore::new(node, LogConfig { origin: OWN, edges: 1, tick: Duration::from_millis(100) });
    let (mut turn, mut number) = (Turn::default(), 0);
    core.start(&mut turn)?;
    let mut id = FrameId { life: 1, segment: 1, frame: 0 };
    let mut advance = |core: &mut LogCore, turn: &mut Turn| -> anyhow::Result<()> {
        while !turn.frames.is_empty() {
            for content in std::mem::take(&mut turn.frames) {
                id.frame += 1;
                std::hint::black_box(frame::encode(id, &content));
                core.receive(LogEvent::Written, turn);
            }
            core.advance(turn)?;
        }
        core.receive(LogEvent::Applied(turn.applied), turn);
        Ok(())
    };
    advance(&mut core, &mut turn)?;
    let some: Vec<u64> = (0..of_entry).collect();
    let (mut spent, mut done) = (Duration::ZERO, 0);
    while done < puts {
        // Many turns in one measurement: the clock of threads is read through a file.
        let batches: Vec<_> = (0..(1_000 / of_entry).max(1)).map(|_| commands(&some)).collect();
        let begun = cpu_time()?;
        for commands in batches {
            number += of_entry;
            done += of_entry;
            let submitted = Submitted { commands, number, ..Submitted::default() };
            core.receive(LogEvent::Submitted { edge: 0, submitted }, &mut turn);
            core.advance(&mut turn)?;
            advance(&mut core, &mut turn)?;
        }
        spent += cpu_time()? - begun;
        anyhow::ensure!(core.status().committed >= turn.applied && turn.applied > 0, "nothing was committed");
    }
    report("log", of_entry, spent, done);
    Ok(())
}
