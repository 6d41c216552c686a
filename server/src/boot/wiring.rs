//! The roles of each core, and the mailboxes between them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Context as _;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement, PoolPlacement};
use revd_member::apply::Machine;
use revd_member::cluster::Identity;
use revd_member::cluster::membership::Membership;
use revd_member::cores::member_changes::ChangeRules;
use revd_member::peer::Peer;
use revd_member::raft::node::LogRetention;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use revd_proto::etcdserverpb::Member as MemberRow;
use serde_json::json;

use crate::api::auth::parts::AuthParts;
use crate::api::validate::RequestLimits;
use crate::api::{ApiSeed, MemberRules};
use crate::boot::recover::{Member, Removed};
use crate::config::Config;
use crate::cores::Roles;
use crate::cores::edge::{self, EdgeSeed, MemberDuties};
use crate::cores::log::{self as log_core, LogFailure, LogSeed};
use crate::cores::state::{self, StateSeed};
use crate::disk::reserve::Reserve;
use crate::disk::segments::DirDisk;
use crate::duties;
use crate::limits::{self, MemoryLimits};
use crate::memory;
use crate::net::permits::ConnectionPermits;
use crate::net::sharing::{self, SharingSeed};
use crate::net::tls::TlsDomain;
use crate::net::{ListenConfig, ListenGroup};
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::peer::PeersSeed;
use crate::queues::latch::Latch;
use crate::queues::mailbox::pair;

/// The roles that run on one core.
#[derive(Default)]
pub(super) struct CoreSeeds {
    edge: Option<EdgeSeed>,
    log: Option<LogSeed<DirDisk>>,
    state: Option<StateSeed>,
}

/// Parts that every core sees.
pub(super) struct Common {
    /// Where consensus stands.
    pub(super) status: Arc<MemberStatus>,
    /// Room for connections of clients, and at addresses of metrics.
    pub(super) permits: [Arc<ConnectionPermits>; 2],
    /// Connections that others may have open to the peer port.
    pub(super) peer_connections_max: usize,
    /// Numbers for operators.
    pub(super) counters: Arc<Counters>,
    /// Certificates for clients, and for members.
    pub(super) tls: [Arc<TlsDomain>; 2],
    /// Keys of tokens, threads for passwords.
    pub(super) auth: AuthParts,
    /// Set once clients may come.
    pub(super) ready: Latch,
    /// Set when the member is to stop.
    pub(super) stop: Latch,
    /// Told by each edge that accepts clients.
    pub(super) listening: Sender<()>,
}

/// Connects the cores with mailboxes; a core's seeds stand at its place in `roles`.
pub(super) fn wire(config: &Config, member: Member, roles: &[Roles], common: Common) -> Vec<CoreSeeds> {
    let Common { status, permits, peer_connections_max, counters, ready, stop, listening, .. } = common;
    let [clients_tls, peers_tls] = common.tls;
    let mut seeds: Vec<CoreSeeds> = roles.iter().map(|_| CoreSeeds::default()).collect();
    let Member { identity, origin, mut machine, node, wal, files, reserve, membership, forced_until, .. } =
        member;
    let edges = roles.iter().filter(|roles| roles.edge.is_some()).count();
    show(&machine, &status);
    let views = Arc::new(ViewSlot::new(machine.store_mut().view(), edges));
    let shared = (Arc::clone(&views), Arc::clone(&status), Arc::clone(&counters), Arc::clone(&reserve));
    let api = api_seed(config, (identity, origin.boot), edges, shared, common.auth);
    let tokens = Arc::clone(&api.auth.tokens);
    let listen = listen_config(config, permits, clients_tls);
    let member_duties = member_duties(config, identity.member, &peers_tls);
    let (mut from_edges, mut to_edges, mut sharing) = (Vec::new(), Vec::new(), sharing(roles));
    for (roles, seeds) in roles.iter().zip(&mut seeds) {
        let Some(edge) = roles.edge else { continue };
        let (to_log, from_edge) = pair(limits::MAILBOX_MESSAGES_MAX);
        let (to_edge, from_state) = pair(limits::MAILBOX_MESSAGES_MAX);
        from_edges.push(from_edge);
        to_edges.push(to_edge);
        seeds.edge = Some(EdgeSeed {
            edge,
            to_log,
            from_state,
            api: api.clone(),
            listen: listen.clone(),
            sharing: sharing.next().expect("there is a part for each edge"),
            listening: listening.clone(),
            ready: ready.clone(),
            stop: stop.clone(),
            progress_interval: config.progress_interval,
            election_timeout: config.election_timeout(),
            member_duties: (edge == 0).then(|| member_duties.clone()),
        });
    }
    let (to_state, from_log) = pair(limits::MAILBOX_MESSAGES_MAX);
    let (to_log, from_state) = pair(limits::MAILBOX_MESSAGES_MAX);
    let own = (identity, origin.boot);
    let peers = peers_seed(config, own, (peer_connections_max, peers_tls), &membership, (&views, &counters));
    let log = LogSeed {
        node,
        wal,
        from_edges,
        to_state,
        from_state,
        status: Arc::clone(&status),
        origin,
        tick: config.heartbeat,
        files: files.clone(),
        peers,
        members: (membership, change_rules(config, forced_until)),
    };
    let state = StateSeed {
        machine,
        put_offs_max: put_offs_max(config),
        from_log,
        to_log,
        to_edges,
        views,
        status,
        counters,
        tokens,
        files,
        reserve,
        ready,
    };
    let place = |role: fn(&Roles) -> bool| roles.iter().position(role).expect("every role is assigned");
    seeds[place(|roles| roles.log)].log = Some(log);
    seeds[place(|roles| roles.state)].state = Some(state);
    seeds
}

/// The parts that cores share.
type Shared = (Arc<ViewSlot>, Arc<MemberStatus>, Arc<Counters>, Arc<Reserve>);

fn api_seed(
    config: &Config,
    (identity, lease_seed): (Identity, u64),
    edges: usize,
    (views, status, counters, reserve): Shared,
    auth: AuthParts,
) -> ApiSeed {
    ApiSeed {
        identity,
        limits: request_limits(config),
        quota_bytes: config.quota_bytes,
        member_rules: member_rules(config),
        lease_ttl_min: config.lease_ttl_min(),
        lease_seed,
        views,
        status,
        counters,
        reserve,
        memory: memory_limits(config, edges),
        auth,
    }
}

fn peers_seed(
    config: &Config,
    (identity, boot): (Identity, u64),
    (connections_max, tls): (usize, Arc<TlsDomain>),
    membership: &Membership,
    (views, counters): (&Arc<ViewSlot>, &Arc<Counters>),
) -> PeersSeed {
    let members = membership.members();
    let mut urls = config.cluster.advertise_peer_urls.clone();
    let own_row = membership.member(identity.member).into_iter().flat_map(|own| &own.peer_ur_ls);
    let others: Vec<String> = own_row.filter(|url| !urls.contains(url)).cloned().collect();
    urls.extend(others);
    PeersSeed {
        identity,
        boot,
        urls,
        listen: config.cluster.peer_addresses.clone(),
        tls,
        connections_max,
        peers: members.map(|member| Peer { id: member.id, urls: member.peer_ur_ls.clone() }).collect(),
        views: Arc::clone(views),
        counters: Arc::clone(counters),
    }
}

fn member_duties(config: &Config, id: u64, tls: &Arc<TlsDomain>) -> MemberDuties {
    MemberDuties {
        attributes: attributes(config, id),
        retention: config.retention,
        checks: config.checks,
        tls: Arc::clone(tls),
        downgrade_interval: config.cluster.downgrade_interval,
    }
}

/// The status says what the recovered machine has.
fn show(machine: &Machine, status: &MemberStatus) {
    status.is_corrupt.store(machine.is_corrupt());
    status.needs_rights.store(machine.needs_rights());
}

/// Checkpoints of little are put off so often; not where the log is to be released sooner than by
/// default.
fn put_offs_max(config: &Config) -> u32 {
    let is_short = config.cluster.snapshot_count < LogRetention::default().snapshot_count;
    if is_short { 0 } else { limits::CHECKPOINT_PUT_OFFS_MAX }
}

fn change_rules(config: &Config, forced_until: Option<u64>) -> ChangeRules {
    ChangeRules { forced_until, ..ChangeRules::new(config.heartbeat, config.cluster.strict_reconfig) }
}

fn member_rules(config: &Config) -> MemberRules {
    let cluster = &config.cluster;
    MemberRules {
        is_strict: cluster.strict_reconfig,
        learners_max: cluster.learners_max,
        learner_reads: cluster.learner_reads,
    }
}

fn request_limits(config: &Config) -> RequestLimits {
    RequestLimits { request_bytes_max: config.request_bytes_max, txn_ops_max: config.txn_ops_max }
}

fn memory_limits(config: &Config, edges: usize) -> MemoryLimits {
    MemoryLimits::new(config.memory_bytes.unwrap_or_else(memory::available_bytes), edges)
}

/// The parts that the edges have in the sharing of connections, by their numbers.
fn sharing(roles: &[Roles]) -> impl Iterator<Item = SharingSeed> {
    let edges = roles.iter().filter(|roles| roles.edge.is_some()).count();
    let first_has_log = roles.iter().any(|roles| roles.log && roles.edge.is_some());
    let cpus: BTreeSet<usize> = roles.iter().map(|roles| roles.cpu).collect();
    sharing::seeds(edges, first_has_log && cpus.len() == roles.len()).into_iter()
}

fn listen_config(
    config: &Config,
    [clients, metrics]: [Arc<ConnectionPermits>; 2],
    tls: Arc<TlsDomain>,
) -> ListenConfig {
    ListenConfig {
        clients: ListenGroup { addresses: config.client_addresses.clone(), permits: clients },
        metrics: ListenGroup { addresses: config.metrics_addresses.clone(), permits: metrics },
        tls,
        message_bytes_max: config.request_bytes_max.saturating_add(limits::GRPC_OVERHEAD_BYTES),
        streams_max: config.streams_max.min(limits::STREAMS_PER_CONNECTION_MAX),
        keepalive: config.keepalive,
        sockets: Arc::default(),
    }
}

/// The row of this member, as it tells the cluster.
fn attributes(config: &Config, id: u64) -> MemberRow {
    MemberRow {
        id,
        name: config.name.clone(),
        client_ur_ls: config.advertise_client_urls.clone(),
        ..MemberRow::default()
    }
}

/// Starts a core with its roles.
pub(super) fn start_core(roles: Roles, seeds: CoreSeeds) -> anyhow::Result<ExecutorJoinHandle<()>> {
    LocalExecutorBuilder::new(Placement::Fixed(roles.cpu))
        .name(&format!("core-{}", roles.cpu))
        .io_memory(if roles.log { limits::LOG_IO_BYTES } else { limits::IO_BYTES })
        .blocking_thread_pool_placement(PoolPlacement::Unbound(limits::HELPER_THREADS_PER_CORE))
        .spawn(move || async move {
            let giving_back = glommio::spawn_local(duties::memory::run());
            let log = seeds.log.map(|seed| {
                glommio::spawn_local(async {
                    let ended = log_core::run(seed).await;
                    if matches!(ended, Err(LogFailure::Removed)) {
                        end_removed();
                    }
                    end_on_error("writing the log", ended);
                })
            });
            let state = seeds.state.map(|seed| {
                glommio::spawn_local(async { end_on_error("applying the log", state::run(seed).await) })
            });
            if let Some(seed) = seeds.edge {
                end_on_error("serving clients", edge::run(seed).await);
            }
            for role in [log, state].into_iter().flatten() {
                role.await;
            }
            giving_back.cancel().await;
        })
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("starting a core on CPU {}", roles.cpu))
}

/// A former member ends well, as an etcd does: it is not to be started again.
fn end_removed() -> ! {
    log::warn("server error", json!({"error": Removed.to_string()}));
    log::flush();
    std::process::exit(0)
}

/// A role that fails ends the process: what is on disk is whole, what is in memory cannot be
/// trusted.
fn end_on_error<E: std::fmt::Display>(doing: &str, result: Result<(), E>) {
    if let Err(error) = result {
        log::fatal("the member cannot go on", json!({"doing": doing, "error": error.to_string()}));
    }
}
