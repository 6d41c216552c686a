//! A member starts by the shipped recovery (`revd_member::boot::recovery`), from a directory in
//! memory.

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::db::DbOptions;
use revd_engine::disk::Disk;
use revd_engine::mvcc::Store;
use revd_engine::mvcc::verify::verify;
use revd_member::boot::recovery::{Recovery, RecoveryConfig, RecoveryEffects, Refusal, recover};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::raft::node::LogRetention;
use revd_member::wal::reader::{LogEnd, RecoveredLog};

use crate::directory::{Directory, Name, Op};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
/// So little that a member which is away for a moment needs a state.
pub(crate) const RETENTION: LogRetention =
    LogRetention { snapshot_count: 6, catchup_entries: 3, disk_bytes_max: 1 << 40, memory_bytes_max: 300 };
const PAGES: DbOptions = DbOptions { page_bytes_if_new: 512 };

/// Starts a member of three, or makes a new one in an empty directory.
pub(crate) fn start(name: &str, directory: &Directory) -> Recovery {
    let url = |name: &str| vec![format!("http://{name}:2380")];
    let config = RecoveryConfig {
        begins_cluster: true,
        forces_new: false,
        initial: InitialCluster {
            name: name.to_owned(),
            members: NAMES.iter().map(|name| ((*name).to_owned(), url(name))).collect(),
            advertised: url(name),
            token: "etcd-cluster".to_owned(),
            names_are_made_up: false,
        },
        version: ClusterVersion { major: 3, minor: 7 },
        pre_vote: true,
        advances_election: true,
        boot: 1,
        election_ticks: 10,
        election_seed: u64::from(name.as_bytes()[0]),
        log_retention: RETENTION,
        quota_bytes: 0,
        lease_extension: 0,
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    recover(&config, &logger, &mut Found(directory.clone())).unwrap_or_else(|refusal| panic!("{refusal:?}"))
}

/// Opens a store and looks at all of it.
pub(crate) fn open(disk: Arc<dyn Disk>) -> Store {
    let store = Store::open(disk, PAGES).unwrap();
    check(store.db().unwrap()).unwrap();
    verify(&store).unwrap();
    store
}

struct Found(Directory);

impl RecoveryEffects for Found {
    type Error = Refusal;

    fn lock(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        false
    }

    fn make_directories(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn open_store(&mut self) -> Result<Store, Refusal> {
        Ok(open(self.0.open(Name::Tree)))
    }

    fn remove_leftovers(&mut self) -> Result<(), Refusal> {
        Ok(())
    }

    fn read_log(&mut self, applied: u64) -> Result<Option<RecoveredLog>, Refusal> {
        let mut log = self.0.read_log();
        log.iter_mut().for_each(|log| log.forget_applied(applied));
        Ok(log)
    }

    fn open_received(&mut self) -> Result<Option<Store>, Refusal> {
        Ok(self.0.has(Name::Received).then(|| open(self.0.open(Name::Received))))
    }

    fn install_received(&mut self) -> Result<(), Refusal> {
        self.0.change(Op::Rename(Name::Received, Name::Tree));
        self.0.change(Op::SyncNames);
        Ok(())
    }

    fn forget_received(&mut self) -> Result<(), Refusal> {
        forget(&self.0);
        Ok(())
    }

    fn ask_others(&mut self, _initial: &InitialCluster) -> Option<RemoteCluster> {
        None
    }

    fn wait_for_others(&mut self) {
        unreachable!("the member has a state");
    }

    fn resolve(&mut self, _host: &str) -> Option<String> {
        None
    }

    fn sync_tree(&mut self, store: &mut Store) -> Result<(), Refusal> {
        store.make_durable().map_err(Refusal::Store)?;
        self.0.change(Op::SyncNames);
        Ok(())
    }

    fn give_back_unused(&mut self, _end: &LogEnd) -> Result<(), Refusal> {
        Ok(())
    }

    fn fill_reserve(&mut self) {}

    fn refused(&self, refusal: Refusal) -> Refusal {
        refusal
    }
}

/// As `ReceivedFiles::forget` of the server.
pub(crate) fn forget(directory: &Directory) {
    for name in [Name::Receiving, Name::Received] {
        if directory.has(name) {
            directory.change(Op::Name(name, None));
        }
    }
}
