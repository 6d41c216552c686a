//! A member's files as recovery finds and makes them; what is done to them, in which order, and
//! what is refused is decided by `revd_member::boot::recovery`.
//!
//! ```text
//! <data-dir>            0700
//!   lock                held while a process uses the directory
//!   member/tree.revd    the store's tree file
//!   member/received.revd    a state that another member has sent, whole, until it is the tree file
//!   member/reserve      room for what must not fail, given up when the disk is full
//!   member/wal/         the log (or --wal-dir)
//! ```

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow, bail};
use revd_engine::db::DbOptions;
use revd_engine::mvcc::{Opening, Store};
use revd_member::apply::Machine;
use revd_member::apply::command::Origin;
use revd_member::boot::recovery::{self, Recovery, RecoveryConfig, RecoveryEffects, Refusal};
use revd_member::cluster::initial::InitialCluster;
use revd_member::cluster::joining::RemoteCluster;
use revd_member::cluster::membership::Membership;
use revd_member::cluster::registry::{self, Registration};
use revd_member::cluster::srv::{self, SrvDiscovery, SrvEffects, SrvMembers, SrvTarget};
use revd_member::cluster::version::ClusterVersion;
use revd_member::cluster::{self, Identity};
use revd_member::raft::node::{LogRetention, RaftNode};
use revd_member::wal::WalError;
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::reader::{LogEnd, RecoveredLog};
use revd_member::wal::segment_files::ReadSegment;
use revd_member::wal::writer::WalSeed;

use crate::boot::dns::Dns;
use crate::boot::registry::Registry;
use crate::boot::remote_cluster;
use crate::config::{Config, Discovery, DiscoveryService};
use crate::disk::received::ReceivedFiles;
use crate::disk::reserve::Reserve;
use crate::disk::segments::{self, DirDisk, DirectoryChange};
use crate::limits;
use crate::net::tls::TlsDomain;
use crate::observe::log;
use crate::resolve;
use crate::version;

/// A former member does not start; its process ends well, so that it is not started again.
#[derive(Debug, thiserror::Error)]
#[error("{}", cluster::REMOVED)]
pub struct Removed;

/// A member as it was found or made.
pub struct Member {
    /// Its ids.
    pub identity: Identity,
    /// Distinguishes this run of the process in the log.
    pub origin: Origin,
    /// Its state.
    pub machine: Machine,
    /// The members, as far as they are known.
    pub membership: Membership,
    /// The last entry of the cluster that this member goes on with alone.
    pub forced_until: Option<u64>,
    /// Raft, about to start.
    pub node: RaftNode,
    /// Its log.
    pub wal: WalSeed<DirDisk>,
    /// Where a state that another member sends becomes the tree file.
    pub files: ReceivedFiles,
    /// Room for what must not fail.
    pub reserve: Arc<Reserve>,
    /// Held until the process ends.
    pub lock: File,
}

/// Opens the member in the data directory, or makes a new one.
///
/// # Errors
/// The reason why it cannot start, worded for the operator.
pub fn open(config: &Config, tls: &TlsDomain) -> anyhow::Result<Member> {
    let started = crate::clock::now();
    let recovery_config = RecoveryConfig {
        begins_cluster: config.cluster.is_new,
        forces_new: config.cluster.force_new,
        initial: InitialCluster {
            name: config.name.clone(),
            members: config.cluster.initial.clone(),
            advertised: config.cluster.advertise_peer_urls.clone(),
            token: config.cluster.token.clone(),
            names_are_made_up: false,
        },
        version: ClusterVersion::of_release(version::ETCD),
        pre_vote: config.cluster.pre_vote,
        advances_election: config.cluster.advance_election_ticks,
        boot: random()?,
        election_ticks: config.election_ticks,
        election_seed: random()?,
        log_retention: LogRetention {
            snapshot_count: config.cluster.snapshot_count,
            catchup_entries: config.cluster.snapshot_catchup_entries,
            ..LogRetention::default()
        },
        quota_bytes: config.quota_bytes,
        lease_extension: u64::try_from(config.election_timeout().as_millis())?,
    };
    let mut files = MemberFiles::new(config, tls);
    let recovery = recovery::recover(&recovery_config, &log::for_raft(), &mut files)?;
    let Recovery { identity, origin, machine, node, log, membership, forced_until, is_new } = recovery;
    let (store, applied) = (machine.store(), machine.store().applied().index);
    log::info(
        if is_new { "made a new member" } else { "recovered a member" },
        serde_json::json!({
            "member-id": format!("{:x}", identity.member), "cluster-id": format!("{:x}", identity.cluster),
            "revision": store.revision(), "applied-index": applied,
            "log-entries-to-apply": log.entries.back().map_or(0, |last| last.index.saturating_sub(applied)),
            "took": format!("{:?}", crate::clock::since(started)),
        }),
    );
    let layout = LayoutConfig {
        segment_bytes: limits::SEGMENT_BYTES,
        first_segment_bytes: segments::first_segment_bytes(&config.wal_dir),
        secret: random()?,
    };
    let MemberFiles { files, reserve, lock, room, .. } = files;
    let disk = DirDisk::new(config.wal_dir.clone(), config.sync, Arc::clone(&reserve), room);
    Ok(Member {
        identity,
        origin,
        machine,
        membership,
        forced_until,
        node,
        wal: WalSeed { disk, layout, log },
        files,
        reserve,
        lock: lock.context("the data directory is not locked")?,
    })
}

/// The files of one member.
struct MemberFiles<'c> {
    config: &'c Config,
    /// Certificates for members.
    tls: &'c TlsDomain,
    member_dir: PathBuf,
    files: ReceivedFiles,
    tree: PathBuf,
    reserve: Arc<Reserve>,
    /// The thread that begins with the log.
    log: Option<JoinHandle<Option<ReadSegment>>>,
    /// The segment that it has read.
    read: Option<ReadSegment>,
    /// The log's end: behind it is room that a dead process has not used.
    unused: Option<LogEnd>,
    /// The thread that gives it back.
    room: Option<DirectoryChange>,
    lock: Option<File>,
}

impl<'c> MemberFiles<'c> {
    fn new(config: &'c Config, tls: &'c TlsDomain) -> Self {
        let member_dir = config.data_dir.join("member");
        let reserve = Arc::new(Reserve::new(member_dir.join("reserve"), limits::RESERVE_BYTES));
        let files = ReceivedFiles::new(&member_dir, config.memory_bytes);
        let tree = files.tree();
        let (log, read, unused, room, lock) = (None, None, None, None, None);
        Self { config, tls, member_dir, files, tree, reserve, log, read, unused, room, lock }
    }
}

impl MemberFiles<'_> {
    /// The members that have registered with a service, with this one.
    fn by_service(
        &self,
        service: &DiscoveryService,
        named: &InitialCluster,
    ) -> anyhow::Result<InitialCluster> {
        log::info("Bootstrapping cluster using v3 discovery.", serde_json::json!({}));
        let own = Registration {
            token: &named.token,
            id: named.own_id(),
            name: &named.name,
            advertised: &named.advertised,
            begins_cluster: self.config.cluster.is_new,
        };
        let members = registry::join(own, &mut Registry::new(service)?)?;
        Ok(InitialCluster { members, ..named.clone() })
    }
}

impl RecoveryEffects for MemberFiles<'_> {
    type Error = anyhow::Error;

    fn lock(&mut self) -> anyhow::Result<()> {
        let data_dir = &self.config.data_dir;
        private_dir(data_dir)?;
        let path = data_dir.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        if !fs4::fs_std::FileExt::try_lock_exclusive(&file)
            .with_context(|| format!("locking {}", path.display()))?
        {
            bail!(
                "another process uses the data directory {}: stop it, or choose another --data-dir",
                data_dir.display()
            );
        }
        self.lock = Some(file);
        Ok(())
    }

    fn holds_data_of_etcd(&mut self) -> bool {
        self.member_dir.join("snap").exists()
    }

    fn make_directories(&mut self) -> anyhow::Result<()> {
        private_dir(&self.member_dir)?;
        private_dir(&self.config.wal_dir)?;
        // While the store is opened. Where the system has no more threads, it comes later.
        let wal_dir = self.config.wal_dir.clone();
        let thread = std::thread::Builder::new().name("log-begin".to_owned());
        self.log = thread.spawn(move || segments::begin(&wal_dir)).ok();
        Ok(())
    }

    fn open_store(&mut self) -> anyhow::Result<Store> {
        open_store(&self.files, &self.tree)
    }

    fn remove_leftovers(&mut self) -> anyhow::Result<()> {
        // Among them is nothing of this process then.
        if let Some(thread) = self.log.take() {
            self.read = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        let wal_dir = &self.config.wal_dir;
        segments::remove_leftovers(wal_dir)
            .with_context(|| format!("removing leftovers in {}", wal_dir.display()))
    }

    fn read_log(&mut self, applied: u64) -> anyhow::Result<Option<RecoveredLog>> {
        Ok(segments::read_behind(&self.config.wal_dir, applied, self.read.take())?)
    }

    fn open_received(&mut self) -> anyhow::Result<Option<Store>> {
        let received = self.files.received();
        if !received.exists() {
            return Ok(None);
        }
        log::info("a state that another member has sent is made the tree file", serde_json::json!({}));
        open_store(&self.files, &received).map(Some)
    }

    fn install_received(&mut self) -> anyhow::Result<()> {
        let context = || format!("renaming {}", self.files.received().display());
        self.files.install().with_context(context)
    }

    fn forget_received(&mut self) -> anyhow::Result<()> {
        let context = || format!("removing {}", self.files.received().display());
        self.files.forget().with_context(context)
    }

    fn discover(&mut self, named: &InitialCluster) -> anyhow::Result<Option<InitialCluster>> {
        match &self.config.cluster.discovery {
            Discovery::None => Ok(None),
            Discovery::Srv { domain, suffix } => {
                let found = by_records(domain, suffix, named)?;
                let is_secure = found.members.values().flatten().any(|url| url.starts_with("https"));
                // As etcd: members of the domain have its name where no authority of their own
                // vouches for them.
                if is_secure && self.config.security.peers.trusted_ca_file.is_empty() {
                    self.tls.dial_as(domain);
                }
                Ok(Some(found))
            }
            Discovery::Service(service) => self.by_service(service, named).map(Some),
        }
    }

    fn ask_others(&mut self, initial: &InitialCluster) -> Option<RemoteCluster> {
        let cluster = remote_cluster::ask(initial.urls_of_others(), self.tls)?;
        let versions = remote_cluster::versions(initial.urls_of_others(), self.tls);
        Some(RemoteCluster { versions, ..cluster })
    }

    fn wait_for_others(&mut self) {
        log::info("waiting for another member, to be told the cluster", serde_json::json!({}));
        std::thread::park_timeout(limits::REMOTE_CLUSTER_DEADLINE);
    }

    fn resolve(&mut self, host: &str) -> Option<String> {
        resolve::first_address(host)
    }

    fn sync_tree(&mut self, store: &mut Store) -> anyhow::Result<()> {
        store.make_durable().with_context(|| format!("syncing {}", self.tree.display()))?;
        sync_dir(&self.member_dir)
    }

    /// With the reserve, for which there may be room then.
    fn give_back_unused(&mut self, end: &LogEnd) -> anyhow::Result<()> {
        self.unused = Some(*end);
        Ok(())
    }

    /// Meanwhile the member goes on to start: the file system may wait for its journal. The log's
    /// first change waits for it.
    fn fill_reserve(&mut self) {
        let (wal_dir, reserve, unused) =
            (self.config.wal_dir.clone(), Arc::clone(&self.reserve), self.unused.take());
        let work = move || make_room(&wal_dir, &reserve, unused.as_ref());
        let thread = std::thread::Builder::new().name("room".to_owned()).spawn(work.clone());
        self.room = Some(match thread {
            Ok(thread) => Box::new(|| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
            // The system has no more threads: it has its turn before the log's first change.
            Err(_) => Box::new(work),
        });
    }

    fn refused(&self, refusal: Refusal) -> anyhow::Error {
        let (wal_dir, tree) = (self.config.wal_dir.display(), self.tree.display());
        match refusal {
            Refusal::DataOfEtcd => anyhow!(
                "{} holds the data of an etcd: revd has a format of its own, choose another --data-dir",
                self.config.data_dir.display()
            ),
            Refusal::Join(error) => error.into(),
            Refusal::Removed => Removed.into(),
            Refusal::Older { cluster } => anyhow!(
                "invalid downgrade; server version is lower than determined cluster version: the cluster of {tree} has \
                 version {cluster}, this is a program of {}; start the program that it had, or enable a downgrade first",
                version::ETCD
            ),
            Refusal::TreeIsMissing => anyhow!(
                "{wal_dir} holds a log but {tree} is new: put the tree file back, or start with an empty --data-dir \
                 and --wal-dir"
            ),
            Refusal::LogIsMissing { applied } => anyhow!(
                "{wal_dir} holds no log although {tree} was applied up to entry {applied}: put the log back, or restore \
                 this member from a snapshot"
            ),
            Refusal::ForeignLog { member } => anyhow!(
                "the log in {wal_dir} belongs to member {member:x}, the tree file {tree} does not know it: they are \
                 not of one member"
            ),
            Refusal::Initial(error) => error.into(),
            Refusal::NoSuchMember { member } => anyhow!(
                "{tree} was made for a new cluster that has no member {member:x}: start with the --initial-cluster and \
                 --name of the first start, or with an empty --data-dir"
            ),
            Refusal::Raft(error) => error.into(),
            Refusal::NewTree(error) => anyhow::Error::from(error).context(format!("making {tree}")),
            Refusal::Store(error) => anyhow::Error::from(error).context(format!("reading {tree}")),
        }
    }
}

/// Gives back what a dead process has not used behind the log's end, and fills the reserve. Blocks.
fn make_room(wal_dir: &Path, reserve: &Reserve, unused: Option<&LogEnd>) -> Result<(), WalError> {
    if let Some(end) = unused {
        let failed = |source| WalError::Io { what: "giving back room in", path: wal_dir.to_owned(), source };
        segments::give_back_unused(wal_dir, end).map_err(failed).inspect_err(|error| {
            // The log may have nothing to write for long, and does not say it before.
            log::warn("room in the log is not given back", serde_json::json!({"error": error.to_string()}));
        })?;
    }
    if let Err(error) = reserve.fill() {
        log::warn("no room for the reserve", serde_json::json!({"error": error.to_string()}));
    }
    Ok(())
}

/// The members that SRV records name.
fn by_records(domain: &str, suffix: &str, named: &InitialCluster) -> anyhow::Result<InitialCluster> {
    let (name, advertised) = (&named.name, &named.advertised);
    let flags = SrvDiscovery { domain, suffix, name, advertised };
    let SrvMembers { members, problem } = srv::members(flags, &mut Records(Dns::of_system()))?;
    if let Some(problem) = problem {
        log::warn("failed to resolve during SRV discovery", serde_json::json!({"error": problem}));
    }
    for (name, urls) in &members {
        let node = serde_json::json!({"node": format!("{name}={}", urls.join(","))});
        log::info("got bootstrap from DNS for etcd-server", node);
    }
    Ok(InitialCluster { members, names_are_made_up: true, ..named.clone() })
}

/// The DNS, asked about the members of a cluster.
struct Records(Dns);

impl SrvEffects for Records {
    fn targets(&mut self, service: &str, domain: &str) -> Result<Vec<SrvTarget>, String> {
        self.0.targets(&format!("{service}.{domain}"))
    }

    fn resolve(&mut self, host: &str) -> Option<String> {
        resolve::first_address(host)
    }
}

/// Makes a directory only its owner can enter, durably; one that others can enter is closed to
/// them.
fn private_dir(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let is_missing = |dir: &&Path| !dir.as_os_str().is_empty() && !dir.exists();
    let made: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    std::fs::create_dir_all(path).with_context(|| format!("making the directory {}", path.display()))?;
    let permissions = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(path, permissions)
        .with_context(|| format!("making the directory {} private", path.display()))?;
    // With the name of a directory all that is in it is lost. A process that died while it made
    // some of these may not have come to sync their names.
    for dir in path.ancestors() {
        let Some(parent) = dir.parent() else { break };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        // A directory above that this process may not read, or on a file system that cannot sync
        // directories, was made by others.
        sync_dir(parent).or_else(|error| if made.contains(&dir) { Err(error) } else { Ok(()) })?;
    }
    Ok(())
}

fn sync_dir(path: &Path) -> anyhow::Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).with_context(|| format!("syncing {}", path.display()))
}

fn open_store(files: &ReceivedFiles, tree: &Path) -> anyhow::Result<Store> {
    let context = || format!("opening {}", tree.display());
    let disk = files.open(tree).with_context(context)?;
    let mut told = crate::clock::now();
    let mut tell = |opening: Opening| {
        if crate::clock::since(told) < limits::PROGRESS_INTERVAL {
            return;
        }
        told = crate::clock::now();
        log::info(
            "opening the store",
            match opening {
                Opening::Keys { loaded, of } => serde_json::json!({"keys": loaded, "of": of}),
                Opening::Records(read) => serde_json::json!({"records-above-the-saved-index": read}),
            },
        );
    };
    Store::open_telling(Arc::new(disk), DbOptions::default(), &mut tell).with_context(context)
}

fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("asking for random bits")?;
    Ok(u64::from_le_bytes(bytes))
}
