//! Start and stop, in order.
//!
//! ```text
//! start: io_uring there? -> client addresses free? -> data directory locked -> tree file and log opened (`recover`)
//!        -> cores -> log replayed, member published -> listening -> ready
//! stop:  edges take no more work and answer what is open -> log core empties -> state core applies the rest and
//!        takes a last checkpoint -> exit
//! ```

mod notify;
pub mod recover;
pub mod runtime;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};

use anyhow::Context as _;
use glommio::{ExecutorJoinHandle, LocalExecutorBuilder, Placement, PoolPlacement};
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::raft::status::MemberStatus;
use revd_member::read::view_slot::ViewSlot;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::api::validate::RequestLimits;
use crate::api::{Api, ApiSeed};
use crate::boot::recover::Member;
use crate::config::Config;
use crate::cores::edge::{self, EdgeSeed};
use crate::cores::log::{self as log_core, LogSeed};
use crate::cores::state::{self, StateSeed};
use crate::cores::{Roles, assign};
use crate::disk::segments::DirDisk;
use crate::duties;
use crate::limits::{self, MemoryLimits};
use crate::memory;
use crate::net::ListenConfig;
use crate::net::listen::wait_until_free;
use crate::net::places::Places;
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::queues::latch::Latch;
use crate::queues::mailbox::pair;
use crate::version;

/// What runs on one core.
#[derive(Default)]
struct CoreSeeds {
    edge: Option<EdgeSeed>,
    log: Option<LogSeed<DirDisk>>,
    state: Option<StateSeed>,
}

/// Set once each, seen by all cores.
#[derive(Clone, Default)]
struct Latches {
    ready: Latch,
    stop: Latch,
}

/// What all cores see.
struct Shared<'r> {
    status: &'r Arc<MemberStatus>,
    places: Arc<Places>,
    counters: Arc<Counters>,
}

/// Runs a member until it is asked to stop; returns the signal that asked.
///
/// # Errors
/// Whatever keeps it from starting or from stopping cleanly, worded for the operator.
pub fn run(config: &Config) -> anyhow::Result<i32> {
    config.warnings.iter().for_each(|warning| log::warn(warning, json!({})));
    let cpus = runtime::allowed_cpus()?;
    let cores = config.cores.unwrap_or(cpus.len());
    runtime::check()?;
    let places = Places::new(runtime::connections_max(cores, cores * config.client_addresses.len())?);
    for address in &config.client_addresses {
        wait_until_free(*address).with_context(|| {
            format!(
                "listening for clients on {address}: end the other process or change --listen-client-urls"
            )
        })?;
    }
    let member = recover::open(config)?;
    // From here on a signal means: stop in good order. Before, it ends the process as ever: nothing was promised to anybody.
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("asking for signals")?;
    let lock = member.lock.try_clone().context("keeping the data directory's lock")?;
    let roles = assign(cores, &cpus);
    let latches = Latches::default();
    let published = Published::of(config, &member);
    let applied = member.machine.store().applied().index;
    let status = Arc::new(MemberStatus::default());
    let edges = roles.iter().filter(|roles| roles.edge.is_some()).count();
    let counters = Arc::new(Counters::new(edges));
    let collect =
        duties::cleaner::start(Arc::clone(&counters)).context("starting the thread that frees memory")?;
    member.machine.store().collect_garbage(collect);
    let shared = Shared { status: &status, places, counters };
    let seeds = wire(config, member, &roles, &latches, shared);
    let (listening, listeners) = mpsc::channel();
    let running: Vec<_> = roles
        .iter()
        .zip(seeds)
        .map(|(roles, seeds)| start_core(*roles, seeds, &latches, published.clone(), listening.clone()))
        .collect::<anyhow::Result<_>>()?;
    drop(listening);
    match wait_until_listening(&listeners, edges, (&status, applied), &mut signals) {
        Start::Listening => announce(config, &roles),
        Start::Failed => {}
        Start::GivenUp(signal) => {
            log::info("stopping before the log is applied", json!({"signal": signal}));
            std::mem::forget(lock); // the cores are not done: it is held until the process has ended
            return Ok(signal);
        }
    }
    let signal = signals.forever().next().unwrap_or(SIGTERM);
    log::info("stopping", json!({"signal": signal}));
    latches.stop.set();
    for core in running {
        core.join().map_err(|error| anyhow::anyhow!("a core ended badly: {error}"))?;
    }
    drop(lock);
    log::info("stopped", json!({}));
    Ok(signal)
}

/// How a start went.
enum Start {
    /// Clients can connect to every edge.
    Listening,
    /// A core has ended.
    Failed,
    /// This signal came first.
    GivenUp(i32),
}

/// Waits for the log, however long it takes, unless the member is asked to stop, and says how far it is.
fn wait_until_listening(
    listeners: &Receiver<()>,
    edges: usize,
    (status, applied): (&MemberStatus, u64),
    signals: &mut Signals,
) -> Start {
    let mut listening = 0;
    while listening < edges {
        match listeners.recv_timeout(limits::PROGRESS_INTERVAL) {
            Ok(()) => listening += 1,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(signal) = signals.pending().next() {
                    return Start::GivenUp(signal);
                }
                let applied = status.applied.load().max(applied);
                let of = status.last_index.load().max(applied);
                log::info(
                    "applying the log before clients are served",
                    json!({"applied": applied, "of": of}),
                );
            }
            Err(RecvTimeoutError::Disconnected) => return Start::Failed,
        }
    }
    Start::Listening
}

fn announce(config: &Config, roles: &[Roles]) {
    log::info(
        "ready to serve client requests",
        json!({
            "name": config.name, "client-urls": config.advertise_client_urls,
            "listening-on": config.client_addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "cores": roles.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    );
    notify::ready();
}

/// Connects the cores with mailboxes; a core's seeds stand at its place in `roles`.
fn wire(
    config: &Config,
    member: Member,
    roles: &[Roles],
    latches: &Latches,
    Shared { status, places, counters }: Shared<'_>,
) -> Vec<CoreSeeds> {
    let mut seeds: Vec<CoreSeeds> = roles.iter().map(|_| CoreSeeds::default()).collect();
    let Member { identity, origin, mut machine, node, wal, reserve, lock: _ } = member;
    let edges = roles.iter().filter(|roles| roles.edge.is_some()).count();
    let views = Arc::new(ViewSlot::new(machine.store_mut().view(), edges));
    let limits =
        RequestLimits { request_bytes_max: config.request_bytes_max, txn_ops_max: config.txn_ops_max };
    let memory_bytes = config.memory_bytes.unwrap_or_else(memory::available_bytes);
    let api = ApiSeed {
        identity,
        limits,
        quota_bytes: config.quota_bytes,
        lease_ttl_min: config.lease_ttl_min(),
        lease_seed: origin.boot,
        views: Arc::clone(&views),
        status: Arc::clone(status),
        counters: Arc::clone(&counters),
        reserve: Arc::clone(&reserve),
        memory: MemoryLimits::new(memory_bytes, edges),
    };
    let listen = listen_config(config, places);
    let (mut from_edges, mut to_edges) = (Vec::new(), Vec::new());
    for (roles, seeds) in roles.iter().zip(&mut seeds) {
        let Some(edge) = roles.edge else { continue };
        let (to_log, from_edge) = pair(limits::MAILBOX_MESSAGES_MAX);
        let (to_edge, from_state) = pair(limits::MAILBOX_MESSAGES_MAX);
        from_edges.push(from_edge);
        to_edges.push(to_edge);
        let Latches { ready, stop } = latches.clone();
        seeds.edge = Some(EdgeSeed {
            edge,
            to_log,
            from_state,
            api: api.clone(),
            listen: listen.clone(),
            ready,
            stop,
            progress_interval: config.progress_interval,
            member_duties: (edge == 0).then_some(config.retention),
        });
    }
    let (to_state, from_log) = pair(limits::MAILBOX_MESSAGES_MAX);
    let (to_log, from_state) = pair(limits::MAILBOX_MESSAGES_MAX);
    let log = LogSeed {
        node,
        wal,
        from_edges,
        to_state,
        from_state,
        status: Arc::clone(status),
        origin,
        tick: config.heartbeat,
    };
    let state = StateSeed {
        machine,
        from_log,
        to_log,
        to_edges,
        views,
        status: Arc::clone(status),
        counters,
        reserve,
        member: identity.member,
        ready: latches.ready.clone(),
    };
    let place = |role: fn(&Roles) -> bool| roles.iter().position(role).expect("every role is assigned");
    seeds[place(|roles| roles.log)].log = Some(log);
    seeds[place(|roles| roles.state)].state = Some(state);
    seeds
}

fn listen_config(config: &Config, places: Arc<Places>) -> ListenConfig {
    ListenConfig {
        addresses: config.client_addresses.clone(),
        message_bytes_max: config.request_bytes_max.saturating_add(limits::GRPC_OVERHEAD_BYTES),
        streams_max: config.streams_max.min(limits::STREAMS_PER_CONNECTION_MAX),
        keepalive: config.keepalive,
        places,
    }
}

/// What a member tells the cluster about itself before it serves.
#[derive(Clone)]
struct Published {
    member: revd_proto::etcdserverpb::Member,
}

impl Published {
    fn of(config: &Config, member: &Member) -> Self {
        Self {
            member: revd_proto::etcdserverpb::Member {
                id: member.identity.member,
                name: config.name.clone(),
                client_ur_ls: config.advertise_client_urls.clone(),
                ..Default::default()
            },
        }
    }

    /// Through the log: when this is applied, everything that was in the log before is applied too. That takes as long as it
    /// takes.
    async fn publish(self, api: &Api) {
        let attributes = self.member.encode_to_vec().into();
        let published = api.context().propose_patiently(Kind::MemberAttributes, attributes).await;
        let agreed = match published {
            Ok(_) => api.context().propose_patiently(Kind::ClusterVersion, version::CLUSTER.into()).await,
            Err(error) => Err(error),
        };
        if let Err(error) = agreed {
            log::fatal("this member cannot be published", json!({"error": error.to_string()}));
        }
    }
}

fn start_core(
    roles: Roles,
    seeds: CoreSeeds,
    latches: &Latches,
    published: Published,
    listening: Sender<()>,
) -> anyhow::Result<ExecutorJoinHandle<()>> {
    let ready = latches.ready.clone();
    LocalExecutorBuilder::new(Placement::Fixed(roles.cpu))
        .name(&format!("core-{}", roles.cpu))
        .io_memory(if roles.log { limits::LOG_IO_BYTES } else { limits::IO_BYTES })
        .blocking_thread_pool_placement(PoolPlacement::Unbound(limits::HELPER_THREADS_PER_CORE))
        .spawn(move || async move {
            let giving_back = glommio::spawn_local(duties::memory::run());
            let log = seeds.log.map(|seed| {
                glommio::spawn_local(async { end_on_error("writing the log", log_core::run(seed).await) })
            });
            let state = seeds.state.map(|seed| {
                glommio::spawn_local(async { end_on_error("applying the log", state::run(seed).await) })
            });
            if let Some(seed) = seeds.edge {
                let is_first = seed.edge == 0;
                let prepare = async |api: &Api| {
                    if is_first {
                        published.publish(api).await;
                        ready.set();
                    }
                };
                // The one who waits may have given up when a core could not start.
                let listening = move || listening.send(()).unwrap_or_default();
                end_on_error("serving clients", edge::run(seed, prepare, listening).await);
            }
            for role in [log, state].into_iter().flatten() {
                role.await;
            }
            giving_back.cancel().await;
        })
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("starting a core on CPU {}", roles.cpu))
}

/// A role that fails ends the process: what is on disk is whole, what is in memory cannot be trusted.
fn end_on_error<E: std::fmt::Display>(doing: &str, result: Result<(), E>) {
    if let Err(error) = result {
        log::fatal("the member cannot go on", json!({"doing": doing, "error": error.to_string()}));
    }
}
