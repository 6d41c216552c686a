//! The log core on a disk that fails: whichever write, creation or removal fails first, it is the
//! last thing the log does, the process is told to end, and what was committed before is in the
//! log. On a disk that is full it waits.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use glommio::{LocalExecutorBuilder, Placement};
use revd::config::TlsConfig;
use revd::cores::log::{LogFailure, LogSeed};
use revd::cores::{StateReport, StateReports};
use revd::disk::received::ReceivedFiles;
use revd::disk::reserve::Reserve;
use revd::disk::segments::{self, DirDisk};
use revd::net::tls::TlsDomain;
use revd::observe::counters::Counters;
use revd::observe::log::for_raft;
use revd::peer::PeersSeed;
use revd::queues::mailbox::{ReceiverSeed, SenderSeed, pair};
use revd::queues::sleep::sleep;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{Applied, Durable, Store};
use revd_member::apply::command::{Command, CommandId, Kind, Origin};
use revd_member::apply::local::Submitted;
use revd_member::apply::{DurableIndex, Work};
use revd_member::cluster::Identity;
use revd_member::cluster::membership::Membership;
use revd_member::cores::member_changes::ChangeRules;
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::read::view_slot::ViewSlot;
use revd_member::wal::birth::empty_log;
use revd_member::wal::disk::LogDisk;
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::writer::WalSeed;
use revd_member::wal::{BLOCK, WalError};

const OWNER: Identity = Identity { cluster: 11, member: 22 };
const SEGMENT_BYTES: u64 = 8 * BLOCK as u64;
const BATCHES: u64 = 60;

/// The call that fails.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// This call, counted from 0, fails.
    Call(u64),
    /// There is room for so many segments.
    RoomFor(u64),
}

/// The calls that were seen.
#[derive(Debug, Default)]
struct Seen {
    calls: Cell<u64>,
    failed: Cell<bool>,
    calls_after_failure: Cell<u64>,
    refused: Cell<u64>,
    created: Cell<u64>,
    removed: Cell<u64>,
    /// Segments that were made while there was no other.
    had_no_log: Cell<u64>,
    /// Something failed in the background, and nobody has heard of it.
    fails_next: Cell<bool>,
}

struct FaultyDisk {
    disk: Rc<DirDisk>,
    dir: PathBuf,
    fault: Fault,
    seen: Rc<Seen>,
}

impl FaultyDisk {
    /// Counts a call; whether it is the one that fails.
    fn is_the_one(&self) -> bool {
        let seen = &self.seen;
        if seen.failed.get() {
            seen.calls_after_failure.set(seen.calls_after_failure.get() + 1);
        }
        let number = seen.calls.replace(seen.calls.get() + 1);
        matches!(self.fault, Fault::Call(at) if at == number)
    }

    fn failure(&self) -> WalError {
        self.seen.failed.set(true);
        let source = std::io::Error::other("planned");
        WalError::Io { what: "testing", path: PathBuf::new(), source }
    }

    fn call(&self) -> Result<(), WalError> {
        if self.is_the_one() { Err(self.failure()) } else { Ok(()) }
    }
}

impl LogDisk for FaultyDisk {
    type File = <DirDisk as LogDisk>::File;

    async fn create(&self, segment: u64, bytes: u64) -> Result<Self::File, WalError> {
        self.call()?;
        if self.seen.fails_next.get() {
            return Err(self.failure());
        }
        let segments = self.seen.created.get() - self.seen.removed.get();
        if matches!(self.fault, Fault::RoomFor(room) if segments >= room) {
            self.seen.refused.set(self.seen.refused.get() + 1);
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(WalError::NoSpace { path: PathBuf::new(), source });
        }
        // Killed here the member must find a log: with the last promises, and where it ends.
        self.disk.settle().await?;
        let has_log = segments::read(&self.dir, 0)?.is_some();
        self.seen.had_no_log.set(self.seen.had_no_log.get() + u64::from(!has_log));
        self.seen.created.set(self.seen.created.get() + 1);
        self.disk.create(segment, bytes).await
    }

    async fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<(), WalError> {
        self.call()?;
        self.disk.write(file, offset, bytes).await
    }

    async fn read(&self, segment: u64, offset: u64, bytes: u64) -> Result<Bytes, WalError> {
        self.disk.read(segment, offset, bytes).await
    }

    fn room(&self) -> u64 {
        self.disk.room()
    }

    fn prepare(&self, _bytes: u64) {}

    /// In the background: that it failed shows later.
    fn remove(&self, segment: u64, spare_bytes: Option<u64>) {
        if self.is_the_one() {
            self.seen.fails_next.set(true);
            return;
        }
        self.seen.removed.set(self.seen.removed.get() + 1);
        self.disk.remove(segment, spare_bytes);
    }

    async fn settle(&self) -> Result<(), WalError> {
        if self.seen.fails_next.get() {
            return Err(self.failure());
        }
        self.disk.settle().await
    }
}

/// How it ended.
struct Ended {
    result: Result<(), LogFailure>,
    seen: Rc<Seen>,
    /// The last entry that was given to the state core.
    committed: u64,
}

/// As of a checkpoint that holds everything up to here.
fn index(index: u64) -> DurableIndex {
    let applied = Applied { index, term: 1 };
    DurableIndex::of(&Durable {
        applied,
        compacted: -1,
        compaction_pending: false,
        defragmenting: false,
        no_space: None,
    })
}

/// Sends batches of commands, each after the one before was committed; now and then
/// entries are durable elsewhere.
async fn feed(
    (fault, seen): (Fault, Rc<Seen>),
    to_log: SenderSeed<Submitted>,
    from_log: ReceiverSeed<Vec<Work>>,
    durable: SenderSeed<StateReports>,
    committed: Rc<Cell<u64>>,
) {
    let to_log = to_log.open().await;
    let from_log = from_log.open().await;
    let durable = Rc::new(durable.open().await);
    // The log may let go of more even while it does not get on: not before the disk was full, which
    // a slow one would never be.
    let _releasing = matches!(fault, Fault::RoomFor(_)).then(|| {
        let (durable, committed) = (Rc::clone(&durable), Rc::clone(&committed));
        glommio::spawn_local(async move {
            loop {
                sleep(Duration::from_millis(50)).await;
                if seen.refused.get() > 0 {
                    let _ = durable.try_send(vec![StateReport::Durable(index(committed.get()))]);
                }
            }
        })
    });
    for batch in 0..BATCHES {
        let payload = Bytes::from(vec![7; 3_000]);
        let command = Command { id: CommandId(batch), kind: Kind::Put, payload };
        if !to_log.send(Submitted { commands: vec![command], ..Submitted::default() }).await {
            return;
        }
        let mut is_committed = false;
        while !is_committed {
            let Some(work) = from_log.receive().await else { return };
            for work in work {
                let Work::Entry(entry) = work else { continue };
                is_committed |= !entry.data.is_empty();
                committed.set(entry.index);
            }
        }
        if batch % 5 == 4 && matches!(fault, Fault::Call(_)) {
            let _ = durable.try_send(vec![StateReport::Durable(index(committed.get() - 1))]);
        }
    }
}

/// Runs the log core until it fails or is out of work.
async fn serve(dir: &Path, fault: Fault) -> Ended {
    let log = empty_log(OWNER);
    let config = RaftConfig::alone(OWNER.member, 1);
    let node = RaftNode::start(&config, &log, &for_raft()).unwrap();
    let seen = Rc::new(Seen::default());
    let reserve = Arc::new(Reserve::new(dir.join("reserve"), 0));
    let files = Rc::new(DirDisk::new(dir.to_owned(), true, reserve, None));
    let disk = FaultyDisk { disk: Rc::clone(&files), dir: dir.to_owned(), fault, seen: Rc::clone(&seen) };
    let layout =
        LayoutConfig { segment_bytes: SEGMENT_BYTES, first_segment_bytes: SEGMENT_BYTES, secret: 0x5EED };
    let (to_log, from_edge) = pair(8);
    let (to_state, from_log) = pair(8);
    let (durable, from_state) = pair(8);
    let origin = Origin { member: OWNER.member, boot: 1 };
    let seed = LogSeed {
        members: (Membership::default(), ChangeRules::new(Duration::from_millis(100), true)),
        node,
        wal: WalSeed { disk, layout, log },
        from_edges: vec![from_edge],
        to_state,
        from_state,
        status: Arc::default(),
        origin,
        tick: Duration::from_millis(20),
        peers: no_peers(),
        files: ReceivedFiles::new(&std::env::temp_dir(), None),
    };
    let (committed, fault) = (Rc::new(Cell::new(0)), (fault, Rc::clone(&seen)));
    let feeding = glommio::spawn_local(feed(fault, to_log, from_log, durable, Rc::clone(&committed)));
    let result = revd::cores::log::run(seed).await;
    feeding.cancel().await;
    files.settle().await.unwrap(); // a dead process removes nothing more: the test must not look in between
    Ended { result, seen, committed: committed.get() }
}

fn run(fault: Fault, check: impl FnOnce(Ended, &Path) + Send + 'static) {
    let core = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ended = serve(dir.path(), fault).await;
        check(ended, dir.path());
    });
    core.unwrap().join().unwrap();
}

fn last_in_log(dir: &Path) -> u64 {
    match segments::read(dir, 0).unwrap() {
        Some(log) => log.entries.back().map_or(log.base.0, |entry| entry.index),
        None => 0,
    }
}

/// Nowhere to listen, and no other member.
fn no_peers() -> PeersSeed {
    let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
    let views = Arc::new(ViewSlot::new(store.view(), 1));
    let counters = Arc::new(Counters::new(1));
    PeersSeed {
        identity: OWNER,
        boot: 1,
        urls: vec![],
        listen: vec![],
        tls: TlsDomain::open("peer", TlsConfig::default()).unwrap(),
        connections_max: 0,
        peers: vec![],
        views,
        counters,
    }
}

#[test]
fn the_first_failure_is_the_last_call() {
    let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    run(Fault::Call(u64::MAX), move |ended, dir| {
        ended.result.unwrap();
        assert!(last_in_log(dir) >= ended.committed && ended.committed > BATCHES);
        assert!(ended.seen.removed.get() > 3, "segments are removed too");
        counted.store(ended.seen.calls.get(), std::sync::atomic::Ordering::SeqCst);
    });
    let calls = calls.load(std::sync::atomic::Ordering::SeqCst);
    println!("{calls} calls, each of which fails once");
    assert!(calls > 80, "only {calls} calls");
    for at in 0..calls - 3 {
        run(Fault::Call(at), move |ended, dir| {
            assert!(
                matches!(ended.result, Err(LogFailure::Wal(WalError::Io { .. }))),
                "call {at} failed unseen"
            );
            assert_eq!(ended.seen.calls_after_failure.get(), 0, "call {at}: the log went on");
            let last = last_in_log(dir);
            assert!(last >= ended.committed, "call {at}: {} was committed, {last} is there", ended.committed);
        });
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    run(Fault::RoomFor(2), |ended, dir| {
        ended.result.unwrap();
        assert!(ended.seen.refused.get() > 0, "the disk was never full");
        assert_eq!(ended.seen.had_no_log.get(), 1, "the log's end was let go of before there was another");
        assert!(last_in_log(dir) >= ended.committed && ended.committed > BATCHES);
    });
}
