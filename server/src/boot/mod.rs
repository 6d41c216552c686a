//! Start and stop, in order.
//!
//! ```text
//! start: io_uring there? -> addresses free? -> data directory locked, tree file and log
//!        opened (`recover`) -> cores -> log replayed, member published -> listening -> ready
//! stop:  edges take no more work and answer what is open -> log core empties -> state core applies
//!        the rest and takes a last checkpoint -> exit
//! ```
//!
//! The decisions on this way are the member's: `revd_member::boot` has recovery and the life of
//! the process, `revd_member::cores` how each core comes up and ends.

mod dns;
mod grpc_call;
mod initial_check;
mod notify;
pub mod recover;
mod registry;
mod remote_cluster;
pub mod runtime;
mod wiring;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};

use anyhow::Context as _;
use glommio::ExecutorJoinHandle;
use revd_engine::mvcc::Garbage;
use revd_member::boot::lifecycle::{Lifecycle, ProcessEvent, ProcessStep};
use revd_member::raft::status::MemberStatus;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::api::auth::parts::AuthParts;
use crate::boot::wiring::{Common, start_core, wire};
use crate::config::{Config, ListenAddress};
use crate::cores::{Roles, assign};
use crate::disk::unreadable;
use crate::duties;
use crate::limits;
use crate::net::listen::wait_until_free;
use crate::net::permits::ConnectionPermits;
use crate::net::tls::{self, TlsDomain};
use crate::observe::counters::Counters;
use crate::observe::log;
use crate::observe::process;
use crate::queues::latch::Latch;

/// Where the events of the process come from.
struct Process {
    listeners: Receiver<()>,
    signals: Signals,
    cores: Vec<ExecutorJoinHandle<()>>,
}

/// Runs a member until it is asked to stop; returns the signal that asked.
///
/// # Errors
/// The reason why it cannot start or stop cleanly, worded for the operator.
pub fn run(config: &Config) -> anyhow::Result<i32> {
    config.warnings.iter().for_each(|warning| log::warn(warning, json!({})));
    runtime::limit_core_files(config.core_dumps);
    duties::memory::start().context("starting the thread that gives memory back")?;
    let mut cpus = runtime::allowed_cpus()?;
    let _first_cpu = runtime::take_first_cpu(&mut cpus);
    runtime::check()?;
    let places = runtime::connection_places(config.cores.unwrap_or(cpus.len()), config)?;
    wait_for_addresses(config)?;
    unreadable::say_which().context("asking for the signal of pages that cannot be read")?;
    let clients_tls = TlsDomain::open("client", config.security.clients.clone())?;
    let peers_tls = TlsDomain::open("peer", config.security.peers.clone())?;
    let auth = AuthParts::open(config)
        .map_err(|error| anyhow::anyhow!("failed to create token provider: {error}"))?;
    let mut member = recover::open(config, &peers_tls)?;
    initial_check::run(config, &mut member, &peers_tls)?;
    let watched = vec![Arc::clone(&clients_tls), Arc::clone(&peers_tls)];
    let ends = tls::watch(watched).context("starting the thread that looks at certificates")?;
    // More threads than CPUs only wake each other.
    let share = cpus.len() / runtime::members_on_host(&member.membership, member.identity.member);
    let cores = config.cores.unwrap_or(share.max(1));
    // From here on a signal means: stop in good order. Before, it ends the process as ever: clients
    // were promised nothing.
    let signals = Signals::new([SIGINT, SIGTERM]).context("asking for signals")?;
    let lock = member.lock.try_clone().context("keeping the data directory's lock")?;
    let roles = assign(cores, &cpus);
    let applied = member.machine.store().applied().index;
    let status = Arc::new(MemberStatus::default());
    let edges = roles.iter().filter(|roles| roles.edge.is_some()).count();
    let clients_max = places.clients.min(edges.saturating_mul(limits::CONNECTIONS_PER_CORE_MAX));
    let counters = Arc::new(Counters::new(edges).with_certificates(ends));
    process::watch(&counters.process).context("starting the thread that looks at this process")?;
    let collect = duties::cleaner::start(Arc::clone(&counters), Garbage::free)
        .context("starting the thread that frees memory")?;
    member.machine.store().collect_garbage(collect);
    let (listening, listeners) = mpsc::channel();
    let (ready, stop) = (Latch::default(), Latch::default());
    let common = Common {
        status: Arc::clone(&status),
        permits: [clients_max, places.metrics].map(ConnectionPermits::new),
        peer_connections_max: places.peers,
        counters,
        tls: [clients_tls, peers_tls],
        auth,
        ready,
        stop: stop.clone(),
        listening,
    };
    let seeds = wire(config, member, &roles, common);
    let cores = roles.iter().zip(seeds).map(|(roles, seeds)| start_core(*roles, seeds));
    let mut process = Process { listeners, signals, cores: cores.collect::<anyhow::Result<_>>()? };
    let mut lifecycle = Lifecycle::new(edges);
    loop {
        let event = process.next_event(lifecycle)?;
        match lifecycle.step(event) {
            ProcessStep::Wait => {}
            ProcessStep::TellProgress => tell_progress(&status, applied),
            ProcessStep::Announce => announce(config, &roles),
            ProcessStep::StopCores(signal) => {
                log::info("stopping", json!({"signal": signal}));
                stop.set();
            }
            ProcessStep::Abandon(signal) => {
                log::info("stopping before the log is applied", json!({"signal": signal}));
                std::mem::forget(lock);
                return Ok(signal);
            }
            ProcessStep::End(signal) => {
                drop(lock);
                log::info("stopped", json!({}));
                return Ok(signal);
            }
        }
    }
}

/// Waits until no other process listens where this one is to.
fn wait_for_addresses(config: &Config) -> anyhow::Result<()> {
    let clients = config.client_addresses.iter().map(|address| (address, "clients", "client"));
    let peers = config.cluster.peer_addresses.iter().map(|address| (address, "peers", "peer"));
    let metrics = config.metrics_addresses.iter().map(|address| (address, "probes", "metrics"));
    for (address, whom, flag) in peers.chain(clients).chain(metrics) {
        wait_until_free(&address.place).with_context(|| {
            let address = &address.place;
            format!("listening for {whom} on {address}: end the other process or change --listen-{flag}-urls")
        })?;
    }
    Ok(())
}

impl Process {
    /// Waits for what can happen next.
    fn next_event(&mut self, lifecycle: Lifecycle) -> anyhow::Result<ProcessEvent> {
        match lifecycle {
            Lifecycle::Replaying { .. } => match self.listeners.recv_timeout(limits::PROGRESS_INTERVAL) {
                Ok(()) => return Ok(ProcessEvent::EdgeListens),
                Err(RecvTimeoutError::Timeout) => {
                    let signal = self.signals.pending().next();
                    return Ok(signal.map_or(ProcessEvent::Quiet, ProcessEvent::Signal));
                }
                // An edge has failed, and ends the process.
                Err(RecvTimeoutError::Disconnected) => {}
            },
            Lifecycle::Serving => {}
            Lifecycle::Stopping { .. } | Lifecycle::Over => {
                for core in self.cores.drain(..) {
                    core.join().map_err(|error| anyhow::anyhow!("a core ended badly: {error}"))?;
                }
                return Ok(ProcessEvent::CoresEnded);
            }
        }
        Ok(ProcessEvent::Signal(self.signals.forever().next().unwrap_or(SIGTERM)))
    }
}

fn tell_progress(status: &MemberStatus, applied_at_start: u64) {
    let applied = status.applied.load().max(applied_at_start);
    let of = status.last_index.load().max(applied);
    log::info("applying the log before clients are served", json!({"applied": applied, "of": of}));
}

fn announce(config: &Config, roles: &[Roles]) {
    let places = |of: &[ListenAddress]| of.iter().map(|it| it.place.to_string()).collect::<Vec<_>>();
    log::info(
        "ready to serve client requests",
        json!({
            "name": config.name, "client-urls": config.advertise_client_urls,
            "listening-on": places(&config.client_addresses), "metrics-on": places(&config.metrics_addresses),
            "cores": roles.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    );
    let all = config.client_addresses.iter().chain(&config.cluster.peer_addresses);
    for address in all.filter(|address| address.is_exposed()) {
        let fields = json!({"address": address.place.to_string(), "see": "docs/SECURITY.md"});
        log::warn("without TLS, anybody on the way reads and changes what is said at this address", fields);
    }
    notify::ready();
}
