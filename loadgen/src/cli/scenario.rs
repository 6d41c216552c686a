//! One subcommand for each scenario: a preset, changed by flags.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::arrivals::ArrivalShape;
use crate::cli::outputs::{Outputs, status};
use crate::cli::servers::ServerArgs;
use crate::cli::values::seconds;
use crate::keys::{KeyOrder, SizeRange};
use crate::plan::{OpKind, Plan, PlannedOp, RangeOp};
use crate::presets::preset;
use crate::report::terminal;
use crate::sweep::{self, Rates};

/// Flags of all scenarios.
#[derive(Args, Clone)]
pub(super) struct Common {
    /// Where the servers are
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:2379", help_heading = "Load")]
    endpoints: Vec<String>,
    /// Connections
    #[arg(long, help_heading = "Load")]
    conns: Option<usize>,
    /// Callers, each with one call at a time; in an open loop calls under way at most
    #[arg(long, help_heading = "Load")]
    clients: Option<usize>,
    /// Threads of loadgen
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    threads: usize,
    /// Calls in all, instead of a duration
    #[arg(long, conflicts_with = "duration", help_heading = "Load")]
    total: Option<u64>,
    /// How long is measured
    #[arg(long, value_parser = seconds, help_heading = "Load")]
    duration: Option<f64>,
    /// Warm-up before that [default: 1s; 0s with --total]
    #[arg(long, value_parser = seconds, help_heading = "Load")]
    warmup: Option<f64>,
    /// Calls a second by the clock (open loop); without it every caller calls again at once; 0 for
    /// that too
    #[arg(long, help_heading = "Load")]
    rate: Option<f64>,
    /// How the rate goes: constant, poisson, ramp, step, sine
    #[arg(long, help_heading = "Load")]
    arrivals: Option<ArrivalShape>,
    /// Time from one look of a thread at clock and sockets to its next one at least, where calls go
    /// by the clock: less CPU for the generator; a call waits for a look to begin, and its reply
    /// for another
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Load")]
    turn_every: Option<f64>,
    /// Rates to be tried one after the other: 1000..64000:7
    #[arg(long, conflicts_with_all = ["rate", "total"], help_heading = "Load")]
    sweep: Option<Rates>,
    /// Time-out of a call
    #[arg(long, value_parser = seconds, help_heading = "Load")]
    timeout: Option<f64>,
    /// Compact the history this often, up to what was new a tenth of that time before
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Load")]
    compact_every: Option<f64>,
    /// Probe the disk of a server that loadgen starts this often: 4 KiB and an fdatasync
    #[arg(long, value_name = "TIME", value_parser = seconds, help_heading = "Load")]
    disk_probe: Option<f64>,
    /// Measurements
    #[arg(long, default_value_t = 1, help_heading = "Load")]
    rounds: usize,
    /// Prefix of all keys; {namespace} becomes one of a hundred
    #[arg(long, help_heading = "Keys and values")]
    key_prefix: Option<String>,
    /// Bytes of a key
    #[arg(long, help_heading = "Keys and values")]
    key_size: Option<usize>,
    /// How many keys there are
    #[arg(long, help_heading = "Keys and values")]
    key_space_size: Option<u64>,
    /// sequential, uniform, zipf:0.99 or hotset:0.1:0.9
    #[arg(long, help_heading = "Keys and values")]
    key_order: Option<KeyOrder>,
    /// One key after the other
    #[arg(long, conflicts_with = "key_order", help_heading = "Keys and values")]
    sequential_keys: bool,
    /// Bytes of a value: 256, or 100..4000
    #[arg(long, help_heading = "Keys and values")]
    val_size: Option<SizeRange>,
    /// Do not write the keys first
    #[arg(long, help_heading = "Keys and values")]
    no_preload: bool,
    /// The same seed gives the same keys, values and arrivals
    #[arg(long, default_value_t = 1, help_heading = "Keys and values")]
    seed: u64,
    /// Name of the run
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    outputs: Outputs,
}

/// Flags of reads of many keys.
#[derive(Args, Clone)]
pub(super) struct RangeArgs {
    /// Keys at most; 0 for all
    #[arg(long)]
    limit: Option<i64>,
    /// Leave values out
    #[arg(long)]
    keys_only: bool,
    /// Only count
    #[arg(long)]
    count_only: bool,
    /// Serializable: from the local member, without a quorum
    #[arg(long)]
    serializable: bool,
    /// All keys in pages of --limit at one revision: one list
    #[arg(long)]
    paginate: bool,
    /// By the streaming call (etcd 3.7)
    #[arg(long)]
    stream: bool,
}

/// Flags of watchers.
#[derive(Args, Clone)]
pub(super) struct WatchArgs {
    /// Watchers in all
    #[arg(long, help_heading = "Watchers")]
    watchers: Option<usize>,
    /// Streams they are on
    #[arg(long, help_heading = "Watchers")]
    streams: Option<usize>,
    /// Connections those are on
    #[arg(long, help_heading = "Watchers")]
    watch_conns: Option<usize>,
    /// Each watches one of so many keys, instead of the whole prefix
    #[arg(long, help_heading = "Watchers")]
    watched_keys: Option<u64>,
    /// Ask for the previous value
    #[arg(long, help_heading = "Watchers")]
    prev_kv: bool,
    /// Slow watchers: milliseconds before each reads again, in tenths of a second
    #[arg(long, default_value_t = 0, help_heading = "Watchers")]
    slow: u64,
}

/// Scenarios.
#[derive(Subcommand)]
pub(super) enum Scenario {
    /// Writes of single keys
    Put {
        /// Ask for the previous value
        #[arg(long)]
        prev_kv: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Reads of single keys
    Get {
        /// Serializable: from the local member, without a quorum
        #[arg(long)]
        serializable: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Reads of many keys
    Range {
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Compare and swap, as Kubernetes updates
    Cas {
        #[command(flatten)]
        common: Common,
    },
    /// Transactions of several puts
    Txn {
        /// How many
        #[arg(long, default_value_t = 10)]
        puts: usize,
        #[command(flatten)]
        common: Common,
    },
    /// Operations by weight
    Mixed {
        /// Operations and their weights: get=9,put=1; names: put, get, get-serializable, range,
        /// range-count, list, cas, txn, delete, lease-grant, lease-keepalive, lock
        #[arg(long, default_value = "get=9,put=1")]
        mix: String,
        #[command(flatten)]
        common: Common,
    },
    /// Any scenario by its name; see `loadgen scenarios`
    Run {
        /// The name
        scenario: String,
        #[command(flatten)]
        common: Common,
    },
    /// From each write to its event
    WatchLatency {
        #[command(flatten)]
        watch: WatchArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Each write goes to many watchers
    WatchFanout {
        #[command(flatten)]
        watch: WatchArgs,
        #[command(flatten)]
        common: Common,
    },
    /// Watchers catch up over history
    WatchCatchup {
        #[command(flatten)]
        watch: WatchArgs,
        #[command(flatten)]
        common: Common,
    },
    /// New leases
    LeaseGrant {
        /// Their seconds
        #[arg(long, default_value_t = 600)]
        ttl: i64,
        #[command(flatten)]
        common: Common,
    },
    /// Keepalives, each lease on a stream of its own
    LeaseKeepalive {
        /// Their seconds
        #[arg(long, default_value_t = 600)]
        ttl: i64,
        #[command(flatten)]
        common: Common,
    },
    /// Leases that expire: how late their keys are deleted
    LeaseExpiry {
        /// Their seconds
        #[arg(long, default_value_t = 5)]
        ttl: i64,
        #[command(flatten)]
        common: Common,
    },
    /// Contended locks
    Lock {
        /// How many there are
        #[arg(long, default_value_t = 10)]
        locks: u64,
        #[command(flatten)]
        common: Common,
    },
    /// The calls of an API server of a busy cluster
    Kubernetes {
        #[command(flatten)]
        watch: WatchArgs,
        #[command(flatten)]
        common: Common,
    },
}

impl Scenario {
    /// The plan, before the common flags, and those.
    fn plan(self) -> anyhow::Result<(Plan, Common)> {
        let with =
            |name: &str, kind: OpKind| anyhow::Ok(Plan { ops: vec![PlannedOp::new(kind)], ..preset(name)? });
        Ok(match self {
            Self::Put { prev_kv, common } => (with("put", OpKind::Put { prev_kv })?, common),
            Self::Get { serializable, common } => (with("get", OpKind::Get { serializable })?, common),
            Self::Range { range, common } => {
                let RangeArgs { limit, keys_only, count_only, serializable, paginate, stream } = range;
                let limit = limit.unwrap_or(match (paginate, stream || count_only) {
                    (true, _) => 500,
                    (false, true) => 0,
                    (false, false) => 100,
                });
                let kind = OpKind::Range(RangeOp {
                    limit,
                    keys_only,
                    count_only,
                    serializable,
                    paginate,
                    stream,
                    between: None,
                });
                (with("range", kind)?, common)
            }
            Self::Cas { common } => (preset("cas")?, common),
            Self::Txn { puts, common } => (with("txn", OpKind::Txn { puts })?, common),
            Self::Mixed { mix, common } => (mixed(&mix)?, common),
            Self::Run { scenario, common } => (preset(&scenario)?, common),
            Self::WatchLatency { watch, common } => (watched("watch-latency", &watch)?, common),
            Self::WatchFanout { watch, common } => (watched("watch-fanout", &watch)?, common),
            Self::WatchCatchup { watch, common } => (watched("watch-catchup", &watch)?, common),
            Self::LeaseGrant { ttl, common } => (with("lease-grant", OpKind::LeaseGrant { ttl })?, common),
            Self::LeaseKeepalive { ttl, common } => {
                (with("lease-keepalive", OpKind::LeaseKeepAlive { ttl })?, common)
            }
            Self::LeaseExpiry { ttl, common } => (with("lease-expiry", OpKind::LeaseExpiry { ttl })?, common),
            Self::Lock { locks, common } => (with("lock", OpKind::Lock { locks })?, common),
            Self::Kubernetes { watch, common } => (watched("kubernetes", &watch)?, common),
        })
    }
}

fn mixed(mix: &str) -> anyhow::Result<Plan> {
    let mut plan = preset("mixed")?;
    plan.ops.clear();
    for part in mix.split(',') {
        let (name, weight) = part.split_once('=').unwrap_or((part, "1"));
        let weight = weight.trim().parse();
        let weight = weight.map_err(|_| anyhow::anyhow!("--mix `{part}`: get=9,put=1 is a mix"))?;
        for op in preset(name.trim())?.ops {
            plan.ops.push(PlannedOp { weight, name: Some(name.trim().to_owned()), ..op });
        }
    }
    Ok(plan)
}

fn watched(name: &str, args: &WatchArgs) -> anyhow::Result<Plan> {
    let mut plan = preset(name)?;
    if let Some(watch) = &mut plan.watch {
        watch.watchers = args.watchers.unwrap_or(watch.watchers);
        watch.streams = args.streams.unwrap_or(watch.streams.min(watch.watchers));
        watch.conns = args.watch_conns.unwrap_or(watch.conns.min(watch.streams));
        watch.prev_kv |= args.prev_kv;
        watch.slow = args.slow;
        if let Some(keys) = args.watched_keys {
            (watch.keys, plan.keys.count) = (keys, keys);
        }
    }
    Ok(plan)
}

impl Common {
    fn change(&self, plan: &mut Plan) {
        plan.endpoints.clone_from(&self.endpoints);
        plan.conns = self.conns.unwrap_or(plan.conns);
        plan.clients = self.clients.unwrap_or(plan.clients);
        // More connections than callers are of no use, unless they are asked for.
        if self.conns.is_none() {
            plan.conns = plan.conns.min(plan.clients).max(1);
        }
        plan.threads = self.threads;
        if self.total.is_some() {
            (plan.total, plan.warmup) = (self.total, 0.0);
        }
        if let Some(duration) = self.duration {
            (plan.duration, plan.total) = (duration, None);
        }
        plan.warmup = self.warmup.unwrap_or(plan.warmup);
        plan.rate = self.rate.or(plan.rate).filter(|rate| *rate != 0.0);
        plan.arrivals = self.arrivals.unwrap_or(plan.arrivals);
        // Callers that call again at once wait for no look, whatever the preset says.
        let preset = if plan.rate.is_some() { plan.turn_every } else { 0.0 };
        plan.turn_every = self.turn_every.unwrap_or(preset);
        plan.timeout = self.timeout.unwrap_or(plan.timeout);
        plan.compact_every = self.compact_every.or(plan.compact_every);
        plan.disk_probe = self.disk_probe.or(plan.disk_probe);
        if let Some(prefix) = &self.key_prefix {
            plan.keys.prefix.clone_from(prefix);
        }
        plan.keys.size = self.key_size.unwrap_or(plan.keys.size);
        plan.keys.count = self.key_space_size.unwrap_or(plan.keys.count);
        plan.keys.order = self.key_order.unwrap_or(plan.keys.order);
        if self.sequential_keys {
            plan.keys.order = KeyOrder::Sequential;
        }
        plan.val_size = self.val_size.unwrap_or(plan.val_size);
        plan.preload &= !self.no_preload;
        plan.seed = self.seed;
        if let Some(name) = &self.name {
            plan.name.clone_from(name);
        }
    }
}

/// Runs a scenario.
pub(super) fn run(scenario: Scenario) -> anyhow::Result<ExitCode> {
    let (mut plan, common) = scenario.plan()?;
    common.change(&mut plan);
    let Some(rates) = &common.sweep else {
        return run_plan(&plan, common.rounds, &common.server, &common.outputs);
    };
    sweep::check(&plan, rates)?;
    let started = common.server.start()?;
    common.server.pin()?;
    let source = common.server.cost_source(started.as_ref())?;
    if let Some(servers) = &started {
        plan.endpoints.clone_from(&servers.endpoints);
    }
    let runs = sweep::run(&common.outputs.session()?, &plan, rates, common.rounds, &source)?;
    print!("{}", sweep::table(&runs));
    let label = started.as_ref().map_or("server", |servers| &servers.name);
    common.outputs.write(&plan.name, &[label], &runs, &[])?;
    Ok(status(&runs))
}

/// Runs a plan as it stands, and shows its result.
fn run_plan(plan: &Plan, rounds: usize, server: &ServerArgs, outputs: &Outputs) -> anyhow::Result<ExitCode> {
    plan.check()?;
    let started = server.start()?;
    server.pin()?;
    let source = server.cost_source(started.as_ref())?;
    let mut plan = plan.clone();
    if let Some(servers) = &started {
        plan.endpoints.clone_from(&servers.endpoints);
    }
    let run = outputs.session()?.run(&plan, rounds, &source)?;
    print!("{}", terminal::of(&run));
    let label = started.as_ref().map_or("server", |servers| &servers.name);
    outputs.write(&plan.name, &[label], std::slice::from_ref(&run), &[])?;
    Ok(status(&[run]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Words {
        #[command(subcommand)]
        scenario: Scenario,
    }

    fn planned(words: &[&str]) -> Plan {
        let scenario = Words::parse_from([&["loadgen"], words].concat()).scenario;
        let (mut plan, common) = scenario.plan().unwrap();
        common.change(&mut plan);
        plan
    }

    #[test]
    fn flags_say_how_often_a_thread_looks() {
        let looks = |words: &[&str]| planned(words).turn_every;
        assert_eq!(looks(&["put", "--rate", "1000", "--turn-every", "250us"]), 0.000_25);
        assert_eq!(looks(&["put", "--rate", "1000"]), 0.0);
        assert_eq!(looks(&["run", "large"]), 0.000_25);
        assert_eq!(looks(&["run", "large", "--turn-every", "0"]), 0.0);
        assert_eq!(looks(&["run", "large", "--rate", "0"]), 0.0, "callers that call again at once");
        let refused = planned(&["put", "--turn-every", "1ms"]).check().unwrap_err().to_string();
        assert!(refused.contains("give a --rate"), "{refused}");
    }
}
