//! A member starts by the shipped recovery (`revd_member::boot::recovery`), from files in memory.

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::Store;
use revd_engine::mvcc::verify::verify;
use revd_member::apply::Machine;
use revd_member::boot::recovery::{
    Recovery, RecoveryConfig, RecoveryEffects, Refusal, recover as recover_files,
};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::raft::node::{LogRetention, RaftNode};
use revd_member::wal::layout::{Layout, LayoutConfig};
use revd_member::wal::reader::{LogEnd, RecoveredLog};

use crate::{Files, LAYOUT, ORIGIN, OWNER, PAGES};

/// A member that starts.
pub(crate) struct Sim {
    pub(crate) node: RaftNode,
    pub(crate) machine: Machine,
    pub(crate) files: Files,
    /// The last entry of its log.
    pub(crate) last: u64,
}

/// Files as a crash has left them. The changes that recovery makes to the tree file are recorded in
/// `disk`; the log's directory has no leftovers and no limit, so that nothing is removed or given
/// back.
struct FoundFiles {
    disk: SimDisk,
    log: Option<RecoveredLog>,
    is_locked: bool,
}

impl Sim {
    /// Starts, or makes a new member on an empty disk.
    pub(crate) fn start(disk: SimDisk, log: Option<RecoveredLog>) -> Self {
        let config = RecoveryConfig {
            begins_cluster: true,
            forces_new: false,
            initial: InitialCluster::alone("default", "http://localhost:2380", "etcd-cluster"),
            version: ClusterVersion { major: 3, minor: 7 },
            pre_vote: true,
            advances_election: true,
            boot: ORIGIN.boot,
            election_ticks: 10,
            election_seed: 0,
            log_retention: LogRetention::default(),
            quota_bytes: 0,
            lease_extension: 0,
        };
        let mut found = FoundFiles { disk: disk.clone(), log, is_locked: false };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let Recovery { identity, machine, node, log, .. } =
            recover_files(&config, &logger, &mut found).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!(identity, OWNER);
        let last = log.entries.back().map_or(log.base.0, |entry| entry.index);
        let calls_over = disk.recorded().len();
        // Where it is as long as the others, a spare of the process before may become it.
        let first_segment_bytes =
            if calls_over.is_multiple_of(2) { LAYOUT.segment_bytes } else { LAYOUT.first_segment_bytes };
        let layout = Layout::new(LayoutConfig { first_segment_bytes, ..LAYOUT }, &log);
        let files = Files { layout, disk, wal: Vec::new(), tree_calls: Vec::new(), calls_over };
        Self { node, machine, files, last }
    }
}

impl RecoveryEffects for FoundFiles {
    type Error = Refusal;

    fn lock(&mut self) -> Result<(), Refusal> {
        self.is_locked = true;
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        false
    }

    fn make_directories(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn open_store(&mut self) -> Result<Store, Refusal> {
        assert!(self.is_locked, "a file is opened before the directory is locked");
        let store = Store::open(Arc::new(self.disk.clone()), PAGES).map_err(Refusal::Store)?;
        check(store.db().expect("no checkpoint is being written")).map_err(Refusal::Store)?;
        verify(&store).map_err(Refusal::Store)?;
        Ok(store)
    }

    fn remove_leftovers(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn read_log(&mut self, applied: u64) -> Result<Option<RecoveredLog>, Refusal> {
        let mut log = self.log.take();
        log.iter_mut().for_each(|log| log.forget_applied(applied));
        Ok(log)
    }

    fn open_received(&mut self) -> Result<Option<Store>, Refusal> {
        Ok(None)
    }

    fn install_received(&mut self) -> Result<(), Refusal> {
        unreachable!("nothing was received")
    }

    fn forget_received(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn ask_others(&mut self, _initial: &InitialCluster) -> Option<RemoteCluster> {
        None
    }

    fn wait_for_others(&mut self) {
        unreachable!("a member alone has none");
    }

    fn resolve(&mut self, _host: &str) -> Option<String> {
        None
    }

    fn sync_tree(&mut self, store: &mut Store) -> Result<(), Refusal> {
        store.make_durable().map_err(Refusal::Store)
    }

    fn give_back_unused(&mut self, _end: &LogEnd) -> Result<(), Refusal> {
        Ok(())
    }

    fn fill_reserve(&mut self) {}

    fn refused(&self, refusal: Refusal) -> Refusal {
        refusal
    }
}
