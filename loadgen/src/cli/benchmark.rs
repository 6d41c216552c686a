//! etcd's `benchmark` (3.7): its subcommands and flags, and its summary. Flags of older versions
//! are understood too. Calls under `--rate` begin by the clock here, and latencies count from the
//! intended start.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::cli::outputs::status;
use crate::cost::CostSource;
use crate::keys::{KeyOrder, KeySpace, SizeRange};
use crate::measure::Session;
use crate::plan::{OpKind, Plan, PlannedOp, RangeOp, WatchPlan};
use crate::report::summary;

/// `loadgen benchmark`, or the program called `benchmark`.
#[derive(Args)]
pub(super) struct BenchmarkArgs {
    /// gRPC endpoints
    #[arg(long, global = true, value_delimiter = ',', default_value = "127.0.0.1:2379")]
    endpoints: Vec<String>,
    /// Connections
    #[arg(long, global = true, default_value_t = 1)]
    conns: usize,
    /// Callers
    #[arg(long, global = true, default_value_t = 1)]
    clients: usize,
    /// Full precision in the summary
    #[arg(long, global = true)]
    precise: bool,
    /// Figures of each second
    #[arg(long, global = true)]
    sample: bool,
    #[command(subcommand)]
    command: BenchmarkCommand,
}

#[derive(Args, Clone)]
struct Writes {
    /// Bytes of a key
    #[arg(long, default_value_t = 8)]
    key_size: usize,
    /// Keys
    #[arg(long, default_value_t = 1)]
    key_space_size: u64,
    /// Calls a second
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Calls
    #[arg(long, default_value_t = 10_000)]
    total: u64,
    /// Bytes of a value
    #[arg(long, default_value = "8")]
    val_size: SizeRange,
    /// One key after the other
    #[arg(long)]
    sequential_keys: bool,
}

#[derive(Args, Clone)]
struct Reads {
    /// The first key
    key: String,
    /// The end of the range
    end: Option<String>,
    /// l (linearizable) or s (serializable)
    #[arg(long, default_value = "l")]
    consistency: String,
    /// Results at most
    #[arg(long, default_value_t = 0)]
    limit: i64,
}

#[derive(Subcommand)]
enum BenchmarkCommand {
    /// Writes
    Put {
        #[command(flatten)]
        writes: Writes,
    },
    /// Reads
    Range {
        #[command(flatten)]
        reads: Reads,
        /// Calls a second
        #[arg(long, default_value_t = 0.0)]
        rate: f64,
        /// Calls
        #[arg(long, default_value_t = 10_000)]
        total: u64,
        /// Only count
        #[arg(long)]
        count_only: bool,
        /// Leave values out
        #[arg(long)]
        keys_only: bool,
        /// In pages
        #[arg(long)]
        paginate: bool,
        /// All keys that begin so
        #[arg(long)]
        prefix: bool,
        /// By the streaming call
        #[arg(long)]
        stream: bool,
    },
    /// Transactions of puts
    TxnPut {
        #[command(flatten)]
        writes: Writes,
        /// Puts in each
        #[arg(long, default_value_t = 1)]
        txn_ops: usize,
    },
    /// Reads and writes
    TxnMixed {
        #[command(flatten)]
        reads: Reads,
        #[command(flatten)]
        writes: Writes,
        /// Reads for each write
        #[arg(long, default_value_t = 1.0)]
        rw_ratio: f64,
        /// The end of the range
        #[arg(long)]
        end_key: Option<String>,
    },
    /// Watchers and writes
    Watch {
        /// Streams
        #[arg(long, default_value_t = 10)]
        streams: usize,
        /// Watchers on each
        #[arg(long, default_value_t = 100)]
        watch_per_stream: usize,
        /// Keys that are watched
        #[arg(long, default_value_t = 1)]
        watched_key_total: u64,
        /// Writes
        #[arg(long, default_value_t = 1000)]
        put_total: u64,
        /// Writes a second
        #[arg(long, default_value_t = 0.0)]
        put_rate: f64,
        /// Bytes of a key
        #[arg(long, default_value_t = 32)]
        key_size: usize,
        /// Keys
        #[arg(long, default_value_t = 1)]
        key_space_size: u64,
        /// One key after the other
        #[arg(long)]
        sequential_keys: bool,
    },
    /// From writes to events
    WatchLatency {
        /// Streams
        #[arg(long, default_value_t = 10)]
        streams: usize,
        /// Watchers on each
        #[arg(long, default_value_t = 10)]
        watchers_per_stream: usize,
        /// Writes
        #[arg(long, default_value_t = 1000)]
        put_total: u64,
        /// Writes a second
        #[arg(long, default_value_t = 100.0)]
        put_rate: f64,
        /// Bytes of a key
        #[arg(long, default_value_t = 32)]
        key_size: usize,
        /// Bytes of a value
        #[arg(long, default_value = "32")]
        val_size: SizeRange,
        /// Ask for what was there before
        #[arg(long)]
        prevkv: bool,
    },
    /// Watchers that catch up
    WatchGet {
        /// Watchers
        #[arg(long, default_value_t = 10_000)]
        watchers: usize,
        /// Streams
        #[arg(long, default_value_t = 1)]
        streams: usize,
        /// Events for each
        #[arg(long, default_value_t = 8)]
        events: u64,
    },
    /// Leases that are kept alive
    LeaseKeepalive {
        /// Calls
        #[arg(long, default_value_t = 10_000)]
        total: u64,
    },
    /// Transactions that read, and write if nothing has changed
    Stm {
        /// Keys
        #[arg(long, default_value_t = 1)]
        keys: u64,
        /// Transactions
        #[arg(long, default_value_t = 10_000)]
        total: u64,
        /// Transactions a second
        #[arg(long, default_value_t = 0.0)]
        rate: f64,
        /// Bytes of a value
        #[arg(long, default_value = "8")]
        val_size: SizeRange,
    },
}

fn one_key(prefix: &str) -> KeySpace {
    KeySpace { prefix: prefix.to_owned(), count: 1, size: 0, order: KeyOrder::Sequential }
}

fn writes(writes: &Writes, kind: OpKind, plan: Plan) -> Plan {
    let order = if writes.sequential_keys { KeyOrder::Sequential } else { KeyOrder::Uniform };
    let keys = KeySpace { prefix: String::new(), count: writes.key_space_size, size: writes.key_size, order };
    Plan {
        ops: vec![PlannedOp::new(kind)],
        keys,
        val_size: writes.val_size,
        total: Some(writes.total),
        rate: Some(writes.rate).filter(|rate| *rate > 0.0),
        ..plan
    }
}

fn watched(plan: Plan, watch: WatchPlan, total: u64, rate: f64) -> Plan {
    Plan {
        ops: vec![PlannedOp::new(OpKind::Put { prev_kv: false })],
        watch: Some(watch),
        total: Some(total),
        rate: Some(rate).filter(|rate| *rate > 0.0),
        ..plan
    }
}

fn read(reads: &Reads, range: RangeOp) -> anyhow::Result<PlannedOp> {
    let serializable = match reads.consistency.as_str() {
        "l" => false,
        "s" => true,
        other => anyhow::bail!("--consistency {other}: l (linearizable) or s (serializable)"),
    };
    let between = Some((reads.key.clone(), reads.end.clone().unwrap_or_default()));
    Ok(PlannedOp::new(OpKind::Range(RangeOp { limit: reads.limit, serializable, between, ..range })))
}

impl BenchmarkArgs {
    /// The plan of a command about watchers; none for others.
    fn watch_plan(&self, base: Plan) -> Option<Plan> {
        let conns = |streams: usize| self.conns.min(streams).max(1);
        Some(match &self.command {
            BenchmarkCommand::Watch {
                streams,
                watch_per_stream,
                watched_key_total,
                put_total,
                put_rate,
                key_size,
                key_space_size,
                sequential_keys,
            } => {
                let watchers = streams * watch_per_stream;
                let keys = (*watched_key_total).max(1);
                let watch = WatchPlan {
                    watchers,
                    streams: *streams,
                    conns: conns(*streams),
                    keys,
                    ..WatchPlan::default()
                };
                let mut plan = watched(base, watch, *put_total, *put_rate);
                plan.keys.count = keys.max(*key_space_size);
                plan.keys.size = *key_size;
                plan.keys.order = if *sequential_keys { KeyOrder::Sequential } else { KeyOrder::Uniform };
                plan
            }
            BenchmarkCommand::WatchLatency {
                streams,
                watchers_per_stream,
                put_total,
                put_rate,
                key_size,
                val_size,
                prevkv,
            } => {
                let watch = WatchPlan {
                    watchers: streams * watchers_per_stream,
                    streams: *streams,
                    conns: conns(*streams),
                    keys: 1,
                    prev_kv: *prevkv,
                    ..WatchPlan::default()
                };
                let mut plan = watched(base, watch, *put_total, *put_rate);
                plan.keys.size = *key_size;
                plan.val_size = *val_size;
                plan
            }
            BenchmarkCommand::WatchGet { watchers, streams, events } => {
                let streams = (*streams).min(*watchers);
                let watch = WatchPlan {
                    watchers: *watchers,
                    streams,
                    conns: conns(streams),
                    from_start: true,
                    ..WatchPlan::default()
                };
                let keys = KeySpace { count: *events, ..one_key("watch-get/") };
                Plan { watch: Some(watch), preload: true, keys, duration: 600.0, ..base }
            }
            _ => return None,
        })
    }

    fn plan(&self) -> anyhow::Result<Plan> {
        let base = Plan {
            endpoints: self.endpoints.clone(),
            conns: self.conns,
            clients: self.clients,
            warmup: 0.0,
            keys: one_key("bench"),
            name: "benchmark".to_owned(),
            ..Plan::default()
        };
        let put = OpKind::Put { prev_kv: false };
        if let Some(plan) = self.watch_plan(base.clone()) {
            return Ok(plan);
        }
        Ok(match &self.command {
            BenchmarkCommand::Put { writes: args } => writes(args, put, base),
            BenchmarkCommand::TxnPut { writes: args, txn_ops } => {
                writes(args, OpKind::Txn { puts: *txn_ops }, base)
            }
            BenchmarkCommand::Range {
                reads,
                rate,
                total,
                count_only,
                keys_only,
                paginate,
                prefix,
                stream,
            } => {
                let mut reads = reads.clone();
                if *prefix {
                    reads.end = Some(String::from_utf8(KeySpace::end(&reads.key))?);
                }
                reads.limit = if *paginate && reads.limit == 0 { 10_000 } else { reads.limit };
                let (keys_only, count_only, paginate, stream) = (*keys_only, *count_only, *paginate, *stream);
                let op =
                    read(&reads, RangeOp { keys_only, count_only, paginate, stream, ..RangeOp::default() })?;
                let rate = Some(*rate).filter(|rate| *rate > 0.0);
                Plan { ops: vec![op], total: Some(*total), rate, ..base }
            }
            BenchmarkCommand::TxnMixed { reads, writes: args, rw_ratio, end_key } => {
                let mut reads = reads.clone();
                reads.end = end_key.clone().or(reads.end);
                reads.limit = if reads.limit == 0 { 1_000 } else { reads.limit };
                anyhow::ensure!(
                    (0.0..=1e6).contains(rw_ratio),
                    "--rw-ratio {rw_ratio}: reads for each write"
                );
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
                let weight = (rw_ratio * 1000.0) as u32;
                let mut plan = writes(args, put, base);
                plan.ops[0].weight = 1000;
                plan.ops.push(PlannedOp { weight, ..read(&reads, RangeOp::default())? });
                plan
            }
            BenchmarkCommand::LeaseKeepalive { total } => {
                let ops = vec![PlannedOp::new(OpKind::LeaseKeepAlive { ttl: 100 })];
                Plan { ops, total: Some(*total), ..base }
            }
            BenchmarkCommand::Stm { keys, total, rate, val_size } => {
                let rate = Some(*rate).filter(|rate| *rate > 0.0);
                let keys = KeySpace { count: *keys, order: KeyOrder::Uniform, ..one_key("stm/") };
                let ops = vec![PlannedOp::new(OpKind::Cas)];
                Plan { ops, total: Some(*total), rate, keys, val_size: *val_size, ..base }
            }
            BenchmarkCommand::Watch { .. }
            | BenchmarkCommand::WatchLatency { .. }
            | BenchmarkCommand::WatchGet { .. } => {
                unreachable!("made above")
            }
        })
    }
}

/// Runs it.
pub(super) fn run(args: BenchmarkArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    let run = Session::new(false)?.run(&plan, 1, &CostSource::default())?;
    for round in &run.rounds {
        for op in &round.ops {
            if round.ops.len() > 1 {
                println!("\n{}:", op.name);
            }
            print!("{}", summary::of(op, round.seconds, args.precise));
            if args.sample {
                println!("\nEach second (requests, slowest in ms):");
                for (at, second) in op.seconds.iter().enumerate() {
                    println!("  {at}: {} {:.3}", second.count, second.max / 1e3);
                }
            }
        }
    }
    run.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    run.violations.iter().chain(&run.stopped).for_each(|what| eprintln!("WRONG: {what}"));
    Ok(status(&[run]))
}
