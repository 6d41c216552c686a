//! The plan of a run: the same description from the command line, from a suite's TOML, and in every
//! result.

use serde::{Deserialize, Serialize};

use crate::arrivals::ArrivalShape;
use crate::keys::{KeySpace, SizeRange};
use crate::units::time;

/// The name under which the delays of watchers stand among operations.
pub const WATCH_NAME: &str = "watch";

/// The name under which compactions stand there.
pub const COMPACT_NAME: &str = "compact";

/// Operations that etcd and revd allow in a transaction (`--max-txn-ops`).
const MAX_TXN_OPS: usize = 128;

/// Seconds between looks of a thread at most: a stop of the run waits for one.
const TURN_EVERY_MAX: f64 = 0.05;

/// A caller makes one call from look to look at most, as its reply is read by the next one. With
/// callers for so many looks there is one free for each call that is due, though servers answer
/// only by the look after that: at constant arrivals, and where an operation is one call. Bursts of
/// other arrivals, and operations of several calls, may find all callers waiting.
const CALLERS_LOOKS: f64 = 2.0;

/// One run against one server or cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Plan {
    /// Its name in tables.
    pub name: String,
    /// Where the servers are.
    pub endpoints: Vec<String>,
    /// Connections.
    pub conns: usize,
    /// Callers, each with one call at a time. In an open loop: calls under way at most.
    pub clients: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// The operations of callers, by weight.
    pub ops: Vec<PlannedOp>,
    /// Which keys.
    pub keys: KeySpace,
    /// How long values are, in bytes.
    pub val_size: SizeRange,
    /// Write every key once before.
    pub preload: bool,
    /// Puts in each transaction meanwhile; 1: each key by a put of its own. The last transaction is
    /// filled up with the first keys again. Many make it quick, at a revision for so many keys.
    pub preload_batch: usize,
    /// Calls a second, by the clock; none: each caller calls again when it has its answer.
    pub rate: Option<f64>,
    /// How the rate goes.
    pub arrivals: ArrivalShape,
    /// Seconds from one look of an open loop's thread to its next one at least: it begins the calls
    /// that are due and reads replies no more often, so that it takes less CPU beside a server on
    /// the same machine. A call waits for a look to begin, and its reply for another one; each
    /// further call of an operation begins with the reply before, and waits for its own reply's
    /// look. The rest of a request that socket or window had no room for goes out at once; a part
    /// of a reply that comes later than the one before waits for a look of its own. Latencies count
    /// all of that. 0: as often as calls are due and replies come.
    pub turn_every: f64,
    /// Calls in all; none: as long as the run lasts.
    pub total: Option<u64>,
    /// Seconds that are measured.
    pub duration: f64,
    /// Seconds before that, which are not.
    pub warmup: f64,
    /// Seconds from one compaction to the next, the first of which is so long after the warm-up;
    /// none: nothing is compacted. It keeps all that is newer than a tenth of this time, so that
    /// reads in pages that have begun go on.
    pub compact_every: Option<f64>,
    /// Seconds between writes of 4 KiB to a file of loadgen's own beside the server's data, each
    /// with an fdatasync: whether the disk itself stands still. The disk has so many flushes more.
    /// None: no such writes.
    pub disk_probe: Option<f64>,
    /// Watchers beside them.
    pub watch: Option<WatchPlan>,
    /// Seconds after which a call times out.
    pub timeout: f64,
    /// The same seed gives the same keys, values and arrivals.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            name: String::new(),
            endpoints: vec!["127.0.0.1:2379".to_owned()],
            conns: 1,
            clients: 1,
            threads: 1,
            ops: Vec::new(),
            keys: KeySpace::default(),
            val_size: SizeRange { min: 256, max: 256 },
            preload: false,
            preload_batch: 1,
            rate: None,
            arrivals: ArrivalShape::Constant,
            turn_every: 0.0,
            total: None,
            duration: 10.0,
            warmup: 1.0,
            compact_every: None,
            disk_probe: None,
            watch: None,
            timeout: 30.0,
            seed: 1,
        }
    }
}

/// An operation of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedOp {
    /// Its kind.
    #[serde(flatten)]
    pub kind: OpKind,
    /// How often, compared with the others.
    #[serde(default = "one")]
    pub weight: u32,
    /// Other keys than those of the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<KeySpace>,
    /// Other values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub val_size: Option<SizeRange>,
    /// Its name in tables, if not that of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

fn one() -> u32 {
    1
}

impl PlannedOp {
    /// Once as often as others.
    #[must_use]
    pub fn new(kind: OpKind) -> Self {
        Self { kind, weight: 1, keys: None, val_size: None, name: None }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.kind.name())
    }
}

/// The kinds of operations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum OpKind {
    /// Writes a key.
    Put {
        /// Asks for the previous value.
        #[serde(default)]
        prev_kv: bool,
    },
    /// Reads a key.
    Get {
        /// Serializable: from the local member, without a quorum.
        #[serde(default)]
        serializable: bool,
    },
    /// Reads many keys.
    Range(RangeOp),
    /// Writes a key if it is still as the caller knows it, and reads it otherwise: what Kubernetes
    /// does for each update.
    Cas,
    /// Writes several keys in one transaction.
    Txn {
        /// How many.
        puts: usize,
    },
    /// Removes a key.
    Delete,
    /// A new lease.
    LeaseGrant {
        /// Its seconds.
        ttl: i64,
    },
    /// Keeps a lease of the caller's own alive, on a stream of its own.
    LeaseKeepAlive {
        /// Its seconds.
        ttl: i64,
    },
    /// Leases with a key each and without keepalives: from the end of each TTL to the DELETE event
    /// of its key.
    LeaseExpiry {
        /// Their seconds.
        ttl: i64,
    },
    /// Makes a connection, reads one key by a serializable get, and closes the connection.
    Connect,
    /// Takes a lock and gives it back.
    Lock {
        /// How many locks there are.
        locks: u64,
    },
}

/// A read of many keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct RangeOp {
    /// Keys at most; 0 for all under the prefix.
    pub limit: i64,
    /// Leaves values out.
    pub keys_only: bool,
    /// Only asks how many there are.
    pub count_only: bool,
    /// Serializable: from the local member, without a quorum.
    pub serializable: bool,
    /// All keys of the prefix, page by page at one revision: one list.
    pub paginate: bool,
    /// By the streaming call.
    pub stream: bool,
    /// From this key to before that one (only this one if that is empty), instead of the plan's
    /// keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub between: Option<(String, String)>,
}

impl OpKind {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Get { .. } => "get",
            Self::Range(_) => "range",
            Self::Cas => "cas",
            Self::Txn { .. } => "txn",
            Self::Delete => "delete",
            Self::LeaseGrant { .. } => "lease-grant",
            Self::LeaseKeepAlive { .. } => "lease-keepalive",
            Self::LeaseExpiry { .. } => "lease-expiry",
            Self::Connect => "connect",
            Self::Lock { .. } => "lock",
        }
    }

    /// Whether its replies are linearizable: they show all writes that were confirmed before the
    /// call.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        match self {
            Self::Get { serializable } => !serializable,
            Self::Range(range) => !range.serializable,
            Self::Put { .. } | Self::Cas | Self::Txn { .. } | Self::Delete => true,
            Self::LeaseGrant { .. }
            | Self::LeaseKeepAlive { .. }
            | Self::LeaseExpiry { .. }
            | Self::Connect
            | Self::Lock { .. } => false,
        }
    }

    /// Whether it needs keys in the store.
    #[must_use]
    pub fn reads(&self) -> bool {
        matches!(self, Self::Get { .. } | Self::Range(_) | Self::Delete)
    }
}

/// Watchers of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct WatchPlan {
    /// Watchers in all.
    pub watchers: usize,
    /// Streams they are on.
    pub streams: usize,
    /// Connections those are on.
    pub conns: usize,
    /// Keys that are watched, each by as many; 0: every watcher watches the whole prefix.
    pub keys: u64,
    /// Asks for the previous value.
    pub prev_kv: bool,
    /// From before the preload on: how long it takes to catch up.
    pub from_start: bool,
    /// Milliseconds that each stream waits before it reads again: slow watchers.
    pub slow: u64,
}

impl Default for WatchPlan {
    fn default() -> Self {
        Self { watchers: 1, streams: 1, conns: 1, keys: 0, prev_kv: false, from_start: false, slow: 0 }
    }
}

impl Plan {
    /// Watchers catch up over history, and that is measured.
    #[must_use]
    pub fn catches_up(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.from_start)
    }

    /// Each operation has a connection of its own.
    #[must_use]
    pub fn connects(&self) -> bool {
        self.ops.iter().any(|op| op.kind == OpKind::Connect)
    }

    /// Refuses rates and times that make no sense.
    fn check_times(&self) -> anyhow::Result<()> {
        use anyhow::ensure;
        let name = &self.name;
        if let Some(rate) = self.rate {
            ensure!(
                rate.is_finite() && rate > 0.0 && rate <= 1e8,
                "{name}: --rate {rate} is no rate: calls a second, above 0 and at most 100,000,000"
            );
        }
        let times = [("duration", self.duration), ("warmup", self.warmup), ("timeout", self.timeout)];
        for (what, seconds) in times {
            ensure!(
                seconds.is_finite() && (0.0..=1e6).contains(&seconds),
                "{name}: --{what} of {seconds} s makes no sense"
            );
        }
        for (what, every) in [("compact-every", self.compact_every), ("disk-probe", self.disk_probe)] {
            ensure!(
                every.is_none_or(|every| (0.01..=1e6).contains(&every)),
                "{name}: {what} = {} makes no sense: seconds, at least 0.01",
                every.unwrap_or_default()
            );
        }
        Ok(())
    }

    /// Refuses looks that make no sense, or are so far apart that the rate cannot be kept.
    fn check_looks(&self) -> anyhow::Result<()> {
        use anyhow::{Context as _, ensure};
        let Self { name, turn_every, clients, threads, .. } = self;
        ensure!(
            (0.0..=TURN_EVERY_MAX).contains(turn_every),
            "{name}: turn-every = {turn_every} makes no sense: seconds, at most {TURN_EVERY_MAX}"
        );
        if *turn_every == 0.0 {
            return Ok(());
        }
        let rate = self.rate.with_context(|| {
            format!(
                "{name}: turn-every = {turn_every} has no effect where callers call again at once: give a --rate, or \
                 leave it out"
            )
        })?;
        ensure!(
            !self.connects(),
            "{name}: turn-every = {turn_every} does not go with connect: each step of a handshake would wait for a look"
        );
        // Each thread has its share of callers and of the rate.
        let threads = *threads as f64;
        let least = (rate * turn_every * CALLERS_LOOKS / threads).ceil() * threads;
        ensure!(
            (*clients as f64 / threads).floor() * threads >= least,
            "{name}: --clients {clients} is too few for --rate {rate} with turn-every = {turn_every}, as a caller makes \
             one call from look to look: give --clients {least} or more, or a turn-every that is shorter"
        );
        Ok(())
    }

    /// Which looks of the generator figures rest on, if it did not look for each call.
    #[must_use]
    pub fn looks(&self) -> Option<String> {
        (self.turn_every > 0.0).then(|| {
            format!(
                "the generator looked at clock and sockets every {} (turn-every): times have the waits for looks in them",
                time(self.turn_every * 1e6)
            )
        })
    }

    /// Refuses plans that make no sense.
    ///
    /// # Errors
    /// With the field, its value, and advice.
    pub fn check(&self) -> anyhow::Result<()> {
        use anyhow::ensure;
        let name = &self.name;
        ensure!(!self.endpoints.is_empty(), "{name}: no endpoint; give one with --endpoints");
        ensure!(self.conns > 0 && self.clients > 0, "{name}: --conns and --clients must be at least 1");
        ensure!(self.threads > 0 && self.threads <= 256, "{name}: --threads must be 1 to 256");
        ensure!(
            self.ops.is_empty() || self.clients >= self.threads,
            "{name}: --clients {} is fewer than --threads {}: a thread would be without callers",
            self.clients,
            self.threads
        );
        ensure!(
            self.clients <= 1 << 24,
            "{name}: --clients {} is too many (at most {})",
            self.clients,
            1 << 24
        );
        self.check_times()?;
        self.check_looks()?;
        ensure!(
            (1..=MAX_TXN_OPS).contains(&self.preload_batch),
            "{name}: preload-batch = {} makes no sense: 1 to {MAX_TXN_OPS}, which servers allow in a transaction",
            self.preload_batch
        );
        ensure!(
            !self.catches_up() || self.preload_batch == 1,
            "{name}: watchers that catch up count an event for each revision: no preload-batch there"
        );
        ensure!(
            self.total.is_some() || self.duration > 0.0,
            "{name}: neither --total nor --duration says when it ends"
        );
        ensure!(self.keys.count > 0, "{name}: there must be at least one key");
        let watches = self.watch.is_some();
        ensure!(!self.ops.is_empty() || watches, "{name}: there is nothing to do: no op and no watch");
        ensure!(self.ops.is_empty() || self.ops.iter().any(|op| op.weight > 0), "{name}: all weights are 0");
        ensure!(
            !self.connects() || (self.ops.len() == 1 && !watches),
            "{name}: connect goes with no other operation, and not with watchers"
        );
        if let Some(watch) = &self.watch {
            ensure!(
                watch.watchers >= watch.streams && watch.streams >= watch.conns && watch.conns > 0,
                "{name}: {} watchers on {} streams over {} connections: each needs at least one of the former",
                watch.watchers,
                watch.streams,
                watch.conns
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_go_through_toml_unchanged() {
        let plan = Plan {
            name: "mixed".to_owned(),
            ops: vec![
                PlannedOp {
                    weight: 3,
                    ..PlannedOp::new(OpKind::Range(RangeOp { limit: 10, ..RangeOp::default() }))
                },
                PlannedOp::new(OpKind::Cas),
            ],
            watch: Some(WatchPlan::default()),
            rate: Some(1000.0),
            compact_every: Some(60.0),
            disk_probe: Some(0.1),
            turn_every: 0.00025,
            clients: 2,
            preload_batch: 128,
            ..Plan::default()
        };
        let text = toml::to_string(&plan).unwrap();
        assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan, "{text}");
        plan.check().unwrap();
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let good = Plan { ops: vec![PlannedOp::new(OpKind::Cas)], ..Plan::default() };
        good.check().unwrap();
        // Looks 10 ms apart have a hundred calls each.
        let looking = |clients| Plan { turn_every: 0.01, rate: Some(10_000.0), clients, ..good.clone() };
        looking(200).check().unwrap();
        for (bad, word) in [
            (Plan { rate: Some(-5.0), ..good.clone() }, "--rate -5"),
            (Plan { rate: Some(f64::NAN), ..good.clone() }, "--rate NaN"),
            (Plan { clients: 0, ..good.clone() }, "--clients"),
            (Plan { ops: Vec::new(), ..good.clone() }, "nothing to do"),
            (Plan { duration: 0.0, ..good.clone() }, "when it ends"),
            (Plan { compact_every: Some(0.0), ..good.clone() }, "compact-every = 0"),
            (Plan { compact_every: Some(f64::NAN), ..good.clone() }, "compact-every = NaN"),
            (Plan { disk_probe: Some(-0.1), ..good.clone() }, "disk-probe = -0.1"),
            (Plan { turn_every: -0.1, ..good.clone() }, "turn-every = -0.1"),
            (Plan { turn_every: f64::NAN, ..good.clone() }, "turn-every = NaN"),
            (Plan { turn_every: 0.1, ..good.clone() }, "at most 0.05"),
            (Plan { turn_every: 0.01, ..good.clone() }, "give a --rate"),
            (looking(199), "--clients 199 is too few for --rate 10000 with turn-every = 0.01"),
            (Plan { rate: Some(10_001.0), ..looking(200) }, "give --clients 201 or more"),
            (Plan { threads: 3, ..looking(200) }, "give --clients 201 or more"),
            (Plan { ops: vec![PlannedOp::new(OpKind::Connect)], ..looking(200) }, "does not go with connect"),
            (Plan { preload_batch: 129, ..good.clone() }, "preload-batch = 129"),
            (Plan { preload_batch: 0, ..good.clone() }, "preload-batch = 0"),
            (
                Plan {
                    ops: vec![PlannedOp::new(OpKind::Connect), PlannedOp::new(OpKind::Cas)],
                    ..good.clone()
                },
                "connect goes with no other",
            ),
            (
                Plan { watch: Some(WatchPlan { conns: 5, ..WatchPlan::default() }), ..good.clone() },
                "connections",
            ),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
