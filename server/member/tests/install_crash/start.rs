//! A member starts by the shipped recovery (`revd_member::boot::recovery`), from a directory in
//! memory.

use std::sync::Arc;

use revd_engine::check::check;
use revd_engine::disk::Disk;
use revd_engine::mvcc::Store;
use revd_engine::mvcc::verify::verify;
use revd_member::boot::recovery::{Recovery, RecoveryConfig, recover};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::version::ClusterVersion;
use revd_member::raft::node::LogRetention;
use revd_sim::disk::{Directory, PAGES};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];
/// So little that a member which is away for a moment needs a state.
pub(crate) const RETENTION: LogRetention =
    LogRetention { snapshot_count: 6, catchup_entries: 3, disk_bytes_max: 1 << 40, memory_bytes_max: 300 };

/// So little room that files grow by no more than they need.
const DISK_BYTES: u64 = 1_000 * 1024;

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
    directory.set_size(DISK_BYTES);
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let recovered = recover(&config, &logger, &mut directory.recovery(&mut |_| None));
    let recovery = recovered.unwrap_or_else(|error| panic!("{error}"));
    look_at(recovery.machine.store());
    recovery
}

/// Opens a store and looks at all of it.
pub(crate) fn open(disk: Arc<dyn Disk>) -> Store {
    let store = Store::open(disk, PAGES).unwrap();
    look_at(&store);
    store
}

fn look_at(store: &Store) {
    if let Some(db) = store.db() {
        check(db).unwrap();
    }
    verify(store).unwrap();
}
