//! From a data directory to a member that can go on: which file is opened, made, synced or refused,
//! in which order.
//!
//! A new member is made in this order: the tree file with the rows of all initial members and
//! applied index 1, in one commit; then the log, which begins behind entry 1. Each member of a new
//! cluster makes these by itself: they are the same everywhere. A crash in between leaves a tree
//! file without a log at applied index 1, which is finished at the next start. In a directory that
//! is refused, neither log nor tree file change; directories are closed to others, the lock file
//! and perhaps an empty tree file and a spare for the log are made, leftovers are removed.
//!
//! A state that another member has sent becomes the tree file in this order: it is made whole and
//! durable in a file of its own; the log says, in one frame with raft's promises, that it begins
//! again behind it; that file takes the tree file's name. A crash before the frame leaves the state
//! before, and the file is removed; after the frame the next start gives it its name.

use revd_engine::mvcc::{Applied, CheckpointKind, Store};

use crate::apply::command::Origin;
use crate::apply::{Machine, MachineConfig};
use crate::boot::forced;
use crate::cluster::conf_state::ConfState;
use crate::cluster::initial::{InitialCluster, InitialError};
use crate::cluster::joining::{JoinError, RemoteCluster, join, may_begin};
use crate::cluster::membership::{Member, Membership};
use crate::cluster::version::ClusterVersion;
use crate::cluster::{self, Identity};
use crate::mutants::{self, Mutant};
use crate::raft::node::{LogRetention, RaftConfig, RaftError, RaftNode};
use crate::schema;
use crate::wal::birth::{BIRTH, empty_log, joining_log};
use crate::wal::reader::{LogEnd, RecoveredLog};

/// Settings of a start.
#[derive(Debug, Clone)]
pub struct RecoveryConfig {
    /// Without data, begin a new cluster; else join one.
    pub begins_cluster: bool,
    /// The members of the cluster, and which of them this one is.
    pub initial: InitialCluster,
    /// This member alone is the cluster from now on.
    pub forces_new: bool,
    /// The version that clusters of such members have.
    pub version: ClusterVersion,
    /// Ask before an election whether it can be won.
    pub pre_vote: bool,
    /// Do not wait a whole election timeout for a leader at the start.
    pub advances_election: bool,
    /// Distinguishes this run of the process in the log.
    pub boot: u64,
    /// Ticks of raft's clock without a leader before an election.
    pub election_ticks: usize,
    /// Of the election timeouts.
    pub election_seed: u64,
    /// How much of the log stays for members that lag behind.
    pub log_retention: LogRetention,
    /// Bytes the store may have; 0 or less is no limit.
    pub quota_bytes: i64,
    /// Milliseconds that a new leader adds to every lease.
    pub lease_extension: u64,
}

/// Effects of recovery on the system, in this order. A call is over when it returns; some changes
/// of the log's directory are made beside the start, and are over before the log changes more
/// there.
pub trait RecoveryEffects {
    /// Why a member cannot start, with the names of files.
    type Error;
    /// Lock the data directory until the process ends.
    ///
    /// # Errors
    /// When another process holds it.
    fn lock(&mut self) -> Result<(), Self::Error>;
    /// Whether an etcd has written to the data directory.
    fn holds_data_of_etcd(&mut self) -> bool;
    /// Make the directories of the member and of the log, for their owner only.
    ///
    /// # Errors
    /// When the system refuses.
    fn make_directories(&mut self) -> Result<(), Self::Error>;
    /// Open the tree file, or make an empty one.
    ///
    /// # Errors
    /// When it is damaged, or the system refuses.
    fn open_store(&mut self) -> Result<Store, Self::Error>;
    /// Remove files that a process which is dead by now was preparing for the log.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove_leftovers(&mut self) -> Result<(), Self::Error>;
    /// Read the log; none if there is none. The tree file holds what was applied up to this index;
    /// no such entries are needed.
    ///
    /// # Errors
    /// When it is damaged, or the system refuses.
    fn read_log(&mut self, applied: u64) -> Result<Option<RecoveredLog>, Self::Error>;
    /// Open the state that was received whole from another member; none if there is none.
    ///
    /// # Errors
    /// When it is damaged, or the system refuses.
    fn open_received(&mut self) -> Result<Option<Store>, Self::Error>;
    /// Make the file of that state the tree file, durably.
    ///
    /// # Errors
    /// When the system refuses.
    fn install_received(&mut self) -> Result<(), Self::Error>;
    /// Remove the file of such a state, if there is one.
    ///
    /// # Errors
    /// When the system refuses.
    fn forget_received(&mut self) -> Result<(), Self::Error>;
    /// The members of the cluster, if they are to be discovered: the settings name this one alone
    /// then. It is asked for only before there is a member.
    ///
    /// # Errors
    /// When they cannot be found.
    fn discover(&mut self, _named: &InitialCluster) -> Result<Option<InitialCluster>, Self::Error> {
        Ok(None)
    }
    /// Ask the other members about the cluster, each once, until one answers.
    fn ask_others(&mut self, initial: &InitialCluster) -> Option<RemoteCluster>;
    /// No other member has answered: wait before they are asked again.
    fn wait_for_others(&mut self);
    /// The first address of a host and port.
    fn resolve(&mut self, host: &str) -> Option<String>;
    /// Make durable what the tree file holds, and that it is there.
    ///
    /// # Errors
    /// When the system refuses.
    fn sync_tree(&mut self, store: &mut Store) -> Result<(), Self::Error>;
    /// Give back the room that a dead process has prepared behind the log's end and not used.
    ///
    /// # Errors
    /// When the system refuses.
    fn give_back_unused(&mut self, end: &LogEnd) -> Result<(), Self::Error>;
    /// Make the reserve; a member goes on without it.
    fn fill_reserve(&mut self);
    /// Words for what recovery itself refuses.
    fn refused(&self, refusal: Refusal) -> Self::Error;
}

/// Why a member cannot start from the files that were found.
#[derive(Debug)]
pub enum Refusal {
    /// The directory is that of an etcd.
    DataOfEtcd,
    /// The others do not let it in.
    Join(JoinError),
    /// It was a member of its cluster.
    Removed,
    /// The cluster has a version that this program does not know.
    Older {
        /// Of the cluster.
        cluster: ClusterVersion,
    },
    /// There is a log, but nothing in the tree file.
    TreeIsMissing,
    /// The tree file holds entries up to this one, but there is no log.
    LogIsMissing {
        /// The applied index.
        applied: u64,
    },
    /// The log belongs to a member that the tree file does not know.
    ForeignLog {
        /// That member.
        member: u64,
    },
    /// No new member can be made with these settings.
    Initial(InitialError),
    /// A tree file without a log was made for members of which none is the one that the settings
    /// name.
    NoSuchMember {
        /// The member that the settings name.
        member: u64,
    },
    /// The tree file of a new member cannot be written.
    NewTree(revd_engine::Error),
    /// The tree file cannot be read.
    Store(revd_engine::Error),
    /// Log and tree file do not meet.
    Raft(RaftError),
}

/// A member that can go on.
pub struct Recovery {
    /// The member that the log and the tree file belong to.
    pub identity: Identity,
    /// Stamped on its entries.
    pub origin: Origin,
    /// Its state.
    pub machine: Machine,
    /// Raft, about to start.
    pub node: RaftNode,
    /// Its log.
    pub log: RecoveredLog,
    /// The members, as far as they are known: those of the state, or of a cluster that is to be
    /// joined.
    pub membership: Membership,
    /// The last entry of the cluster that this member goes on with alone.
    pub forced_until: Option<u64>,
    /// It was made just now.
    pub is_new: bool,
}

/// Opens the member in the data directory, or makes a new one.
///
/// # Errors
/// [`RecoveryEffects::Error`], for the operator.
pub fn recover<F: RecoveryEffects>(
    config: &RecoveryConfig,
    logger: &slog::Logger,
    effects: &mut F,
) -> Result<Recovery, F::Error> {
    effects.lock()?;
    if effects.holds_data_of_etcd() {
        return Err(effects.refused(Refusal::DataOfEtcd));
    }
    effects.make_directories()?;
    let mut store = effects.open_store()?;
    effects.remove_leftovers()?;
    let found = effects.read_log(store.applied().index)?;
    if let Some(received) = received(&store, found.as_ref(), effects)? {
        store = received;
    }
    if let Some(cluster) = schema::versions(store.tables()).cluster.filter(|it| *it > config.version) {
        return Err(effects.refused(Refusal::Older { cluster }));
    }
    let is_new = store.applied().index == 0;
    let config = &discovered(config, &store, found.as_ref(), effects)?;
    let joined = if is_new {
        begin(config, &mut store, found.as_ref(), effects).map_err(|refusal| effects.refused(refusal))?
    } else {
        None
    };
    if found.is_none() {
        // The log begins on what is in the tree file: a process that died while it made it may have
        // synced nothing.
        effects.sync_tree(&mut store)?;
    }
    let log = match (&joined, found) {
        (Some((identity, _)), None) => Ok(joining_log(*identity)),
        (Some(_), Some(log)) => Ok(log),
        (None, found) => open_log(config, &mut store, found),
    };
    let mut log = log.map_err(|refusal| effects.refused(refusal))?;
    let identity = log.owner;
    let forces_new = config.forces_new && !is_new;
    forced::keep_member(&mut log, forces_new);
    let membership = match joined {
        Some((_, members)) => Membership::new(members.into_iter(), std::iter::empty()),
        None => schema::membership(store.tables()),
    };
    let last = log.last();
    let raft_config = RaftConfig {
        id: identity.member,
        conf_state: if forces_new {
            ConfState::of_voters(vec![identity.member])
        } else {
            schema::conf_state(store.tables())
        },
        heartbeat_ticks: 1,
        election_ticks: config.election_ticks,
        applied: store.applied().index,
        seed: config.election_seed,
        retention: config.log_retention,
        pre_vote: config.pre_vote,
        advances_election: config.advances_election,
    };
    let started = RaftNode::start(&raft_config, &log, logger);
    let node = started.map_err(|error| effects.refused(Refusal::Raft(error)))?;
    // Not before log and tree file are known to belong together.
    effects.give_back_unused(&log.end)?;
    effects.fill_reserve();
    let boot = if mutants::is(Mutant::AnswersOfFormerProcess) { 1 } else { config.boot };
    let origin = Origin { member: identity.member, boot };
    let RecoveryConfig { quota_bytes, lease_extension, .. } = *config;
    let read = Machine::new(store, MachineConfig { own: origin, quota_bytes, lease_extension });
    let machine = read.map_err(|error| effects.refused(Refusal::Store(error)))?;
    let forced_until = forces_new.then_some(last);
    Ok(Recovery { identity, origin, machine, node, log, membership, forced_until, is_new })
}

/// The settings with the members that are discovered, before there is a member. A tree file that
/// was made with them has them; its member need only know which of them it is.
fn discovered<F: RecoveryEffects>(
    config: &RecoveryConfig,
    store: &Store,
    found: Option<&RecoveredLog>,
    effects: &mut F,
) -> Result<RecoveryConfig, F::Error> {
    let is_known = || schema::member(store.tables(), config.initial.own_id()).is_some();
    let is_new = store.applied().index == 0;
    let discovered =
        if is_new || (found.is_none() && !is_known()) { effects.discover(&config.initial)? } else { None };
    Ok(RecoveryConfig { initial: discovered.unwrap_or_else(|| config.initial.clone()), ..config.clone() })
}

/// The state that another member has sent, if the log begins again behind it and it is not the tree
/// file yet: it is made so. If the log does not, it counts for nothing: raft was not told of it.
fn received<F: RecoveryEffects>(
    store: &Store,
    found: Option<&RecoveredLog>,
    effects: &mut F,
) -> Result<Option<Store>, F::Error> {
    let Some((index, term)) = found.map(|log| log.base).filter(|(index, _)| *index > store.applied().index)
    else {
        effects.forget_received()?;
        return Ok(None);
    };
    let is_whole = |store: &Store| {
        store.applied() == Applied { index, term } || mutants::is(Mutant::ReceivedStateOfOtherEntry)
    };
    let received = effects.open_received()?.filter(is_whole);
    if received.is_some() {
        effects.install_received()?;
    }
    Ok(received)
}

/// Makes a new member: the tree file of one that begins a cluster; the ids of one that joins, and
/// all members.
fn begin<F: RecoveryEffects>(
    config: &RecoveryConfig,
    store: &mut Store,
    found: Option<&RecoveredLog>,
    effects: &mut F,
) -> Result<Option<(Identity, Vec<Member>)>, Refusal> {
    let initial = &config.initial;
    if let Some(log) = found {
        // One that joins has an empty state until the others have sent it theirs.
        if log.base.0 != 0 {
            return Err(Refusal::TreeIsMissing);
        }
        return join_again(log.owner, initial, effects).map(Some);
    }
    if !config.begins_cluster {
        initial.may_join().map_err(Refusal::Initial)?;
        let remote = effects.ask_others(initial);
        let joined = join(initial, config.version, remote, &mut |host| effects.resolve(host));
        return joined.map(Some).map_err(Refusal::Join);
    }
    let rows = initial.begin(&mut |host| effects.resolve(host)).map_err(Refusal::Initial)?;
    let remote = if rows.len() > 1 { effects.ask_others(initial) } else { None };
    may_begin(initial, remote.as_ref()).map_err(Refusal::Join)?;
    make_tree(store, &rows).map(|()| None)
}

/// Goes on with joining: the member's log knows its place, and what it has promised there. The
/// others may know it as started, and have changed since. Without an answer their ids are not
/// known, for those of added members are not made of their URLs alone, and there is no state to
/// serve: the member waits for one.
fn join_again<F: RecoveryEffects>(
    own: Identity,
    initial: &InitialCluster,
    effects: &mut F,
) -> Result<(Identity, Vec<Member>), Refusal> {
    loop {
        match effects.ask_others(initial) {
            Some(RemoteCluster { id, members, .. }) if id == own.cluster => return Ok((own, members)),
            Some(_) => return Err(Refusal::ForeignLog { member: own.member }),
            None => effects.wait_for_others(),
        }
    }
}

/// Makes the tree file of a member of a new cluster.
fn make_tree(store: &mut Store, rows: &[Member]) -> Result<(), Refusal> {
    rows.iter().for_each(|row| schema::put_member(store, row));
    let voters = schema::members(store.tables()).map(|row| row.id).collect();
    schema::put_conf_state(store, &ConfState::of_voters(voters));
    store.set_applied(BIRTH);
    let checkpoint = store.checkpoint(CheckpointKind::WithIndex).expect("something was applied");
    let written = checkpoint.write().map_err(Refusal::NewTree)?;
    // A log that begins while the tree file is not on disk would be without one at the next start.
    store.finish_checkpoint(written).no_space.map_or(Ok(()), |error| Err(Refusal::NewTree(error)))
}

/// The log as it was found, or the empty one of a member that was just made.
fn open_log(
    config: &RecoveryConfig,
    store: &mut Store,
    found: Option<RecoveredLog>,
) -> Result<RecoveredLog, Refusal> {
    let log = match found {
        Some(log) => log,
        None if store.applied() == BIRTH => empty_log(identity_of(config, store)?),
        None => return Err(Refusal::LogIsMissing { applied: store.applied().index }),
    };
    if config.forces_new {
        forced::restore_member(store, log.owner.member, &config.initial);
    }
    match schema::member(store.tables(), log.owner.member) {
        Some(_) => Ok(log),
        None => after_removal(&schema::membership(store.tables()), log),
    }
}

/// A former member ends, but for one of two voters: the other one may not know of the removal, and
/// cannot learn of it without this one's vote. It says so if it does.
fn after_removal(membership: &Membership, log: RecoveredLog) -> Result<RecoveredLog, Refusal> {
    let member = log.owner.member;
    if !membership.is_removed(member) {
        return Err(Refusal::ForeignLog { member });
    }
    if membership.only_other_voter(member).is_some() { Ok(log) } else { Err(Refusal::Removed) }
}

/// A new member's ids: of those it was made with, the settings name its own.
fn identity_of(config: &RecoveryConfig, store: &Store) -> Result<Identity, Refusal> {
    let ids: Vec<u64> = schema::members(store.tables()).map(|member| member.id).collect();
    let member = match ids[..] {
        [alone] => alone,
        _ => config.initial.own_id(),
    };
    if !ids.contains(&member) {
        return Err(Refusal::NoSuchMember { member });
    }
    Ok(Identity { cluster: cluster::cluster_id(&ids), member })
}
