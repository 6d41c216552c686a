//! From a data directory to a member that can go on: its store, its log, its identity.
//!
//! ```text
//! <data-dir>            0700
//!   lock                held while a process uses the directory
//!   member/tree.revd    the store's tree file
//!   member/reserve      room for what must not fail, given up when the disk is full
//!   member/wal/         the log (or --wal-dir)
//! ```
//!
//! A new member is made in this order: the tree file with the member's own row, applied index 1, in one commit; then
//! the log, which begins behind entry 1. A crash in between leaves a tree file without a log at applied index 1,
//! which is finished at the next start.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use revd_engine::db::DbOptions;
use revd_engine::disk::MmapDisk;
use revd_engine::mvcc::{CheckpointKind, Opening, Store};
use revd_member::apply::command::Origin;
use revd_member::apply::{Machine, MachineConfig};
use revd_member::cluster;
use revd_member::raft::node::{RaftConfig, RaftNode};
use revd_member::schema;
use revd_member::wal::Owner;
use revd_member::wal::birth::{BIRTH, empty_log};
use revd_member::wal::layout::LayoutConfig;
use revd_member::wal::reader::Recovered;
use revd_member::wal::writer::WalSeed;
use revd_proto::etcdserverpb::Member as MemberRow;

use crate::api::header::Identity;
use crate::config::Config;
use crate::disk::reserve::Reserve;
use crate::disk::segments::{self, DirDisk};
use crate::limits;
use crate::observe::log;

/// A member as it was found or made.
pub struct Member {
    /// Who it is.
    pub identity: Identity,
    /// Distinguishes this run of the process in the log.
    pub origin: Origin,
    /// Its state.
    pub machine: Machine,
    /// Raft, about to start.
    pub node: RaftNode,
    /// Its log.
    pub wal: WalSeed<DirDisk>,
    /// Room for what must not fail.
    pub reserve: Arc<Reserve>,
    /// Held until the process ends.
    pub lock: File,
}

/// Opens the member in the data directory, or makes a new one.
///
/// # Errors
/// Whatever keeps it from starting, worded for the operator.
pub fn open(config: &Config) -> anyhow::Result<Member> {
    let lock = lock(&config.data_dir)?;
    let member_dir = config.data_dir.join("member");
    if member_dir.join("snap").exists() {
        bail!(
            "{} holds the data of an etcd: revd has a format of its own, choose another --data-dir",
            config.data_dir.display()
        );
    }
    private_dir(&member_dir)?;
    private_dir(&config.wal_dir)?;
    let started = crate::clock::now();
    let tree = member_dir.join("tree.revd");
    let mut store = open_store(&tree)?;
    segments::remove_leftovers(&config.wal_dir)
        .with_context(|| format!("removing leftovers in {}", config.wal_dir.display()))?;
    let found = segments::read(&config.wal_dir)?;
    let is_new = store.applied().index == 0;
    if is_new {
        check_may_be_made(config, &tree, found.is_some())?;
        make(&mut store, config)?;
    }
    if found.is_none() {
        // The log begins on what is in the tree file: a process that died while it made it may have synced nothing.
        store.make_durable().with_context(|| format!("syncing {}", tree.display()))?;
        sync_dir(&member_dir)?;
    }
    let log = open_log(config, &tree, &store, found)?;
    let identity = Identity { cluster: log.owner.cluster, member: log.owner.member };
    let applied = store.applied().index;
    let node_config = RaftConfig {
        id: identity.member,
        voters: schema::members(store.tables()).map(|member| member.id).collect(),
        heartbeat_ticks: 1,
        election_ticks: config.election_ticks,
        applied,
        seed: random()?,
    };
    let node = RaftNode::start(&node_config, &log, &log::for_raft())?;
    log::info(
        if is_new { "made a new member" } else { "recovered a member" },
        serde_json::json!({
            "member-id": format!("{:x}", identity.member), "cluster-id": format!("{:x}", identity.cluster),
            "revision": store.revision(), "applied-index": applied,
            "log-entries-to-apply": log.entries.back().map_or(0, |last| last.index.saturating_sub(applied)),
            "took": format!("{:?}", crate::clock::since(started)),
        }),
    );
    // Not before log and tree are known to belong together: nothing is changed in a directory that is refused.
    segments::give_back_unused(&config.wal_dir, &log.end)
        .with_context(|| format!("giving back room in {}", config.wal_dir.display()))?;
    let origin = Origin { member: identity.member, boot: random()? };
    let layout = LayoutConfig { segment_bytes: limits::SEGMENT_BYTES, secret: random()? };
    let reserve = Arc::new(Reserve::new(member_dir.join("reserve"), limits::RESERVE_BYTES));
    if let Err(error) = reserve.fill() {
        log::warn("no room for the reserve", serde_json::json!({"error": error.to_string()}));
    }
    let files = DirDisk::new(config.wal_dir.clone(), config.sync, Arc::clone(&reserve));
    let wal = WalSeed { disk: files, layout, log };
    let machine_config = MachineConfig {
        own: origin,
        quota_bytes: config.quota_bytes,
        lease_extension: u64::try_from(config.election_timeout().as_millis())?,
    };
    let machine =
        Machine::new(store, machine_config).with_context(|| format!("reading {}", tree.display()))?;
    Ok(Member { identity, origin, machine, node, wal, reserve, lock })
}

fn check_may_be_made(config: &Config, tree: &Path, has_log: bool) -> anyhow::Result<()> {
    if !config.new_cluster {
        bail!("--initial-cluster-state existing: joining a cluster is not supported by this version");
    }
    if has_log {
        bail!(
            "{} holds a log but {} is new: put the tree file back, or start with an empty --data-dir and --wal-dir",
            config.wal_dir.display(),
            tree.display()
        );
    }
    Ok(())
}

/// The log as it was found, or the empty one of a member that was just made.
fn open_log(
    config: &Config,
    tree: &Path,
    store: &Store,
    found: Option<Recovered>,
) -> anyhow::Result<Recovered> {
    let log = match found {
        Some(log) => log,
        None if store.applied() == BIRTH => empty_log(owner_of(store)?),
        None => bail!(
            "{} holds no log although {} was applied up to entry {}: put the log back, or restore this member from a \
             snapshot",
            config.wal_dir.display(),
            tree.display(),
            store.applied().index
        ),
    };
    if schema::member(store.tables(), log.owner.member).is_none() {
        bail!(
            "the log in {} belongs to member {:x}, the tree file {} does not know it: they are not of one member",
            config.wal_dir.display(),
            log.owner.member,
            tree.display()
        );
    }
    Ok(log)
}

fn lock(data_dir: &Path) -> anyhow::Result<File> {
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
    Ok(file)
}

/// Makes a directory only its owner can enter; one that others can enter is closed to them.
fn private_dir(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::create_dir_all(path).with_context(|| format!("making the directory {}", path.display()))?;
    let permissions = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(path, permissions)
        .with_context(|| format!("making the directory {} private", path.display()))
}

fn sync_dir(path: &Path) -> anyhow::Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).with_context(|| format!("syncing {}", path.display()))
}

fn open_store(tree: &Path) -> anyhow::Result<Store> {
    let context = || format!("opening {}", tree.display());
    let disk = MmapDisk::open(tree).with_context(context)?;
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

fn make(store: &mut Store, config: &Config) -> anyhow::Result<()> {
    let id = cluster::member_id(&config.peer_urls, &config.cluster_token);
    let row = MemberRow { id, peer_ur_ls: config.peer_urls.clone(), ..MemberRow::default() };
    schema::put_member(store, &row);
    store.set_applied(BIRTH);
    let checkpoint = store.checkpoint(CheckpointKind::WithIndex).expect("something was applied");
    let written = checkpoint.write()?;
    store.finish_checkpoint(written);
    Ok(())
}

fn owner_of(store: &Store) -> anyhow::Result<Owner> {
    let ids: Vec<u64> = schema::members(store.tables()).map(|member| member.id).collect();
    let [member] = ids[..] else { bail!("a new store must know one member, it knows {}", ids.len()) };
    Ok(Owner { cluster: cluster::cluster_id(&ids), member })
}

fn random() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("asking for random bits")?;
    Ok(u64::from_le_bytes(bytes))
}
