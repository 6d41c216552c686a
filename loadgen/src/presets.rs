//! Scenarios by name: plans that the command line and suites begin with.

use crate::arrivals::ArrivalShape;
use crate::keys::{KeyOrder, KeySpace, SizeRange};
use crate::plan::{OpKind, Plan, PlannedOp, RangeOp, WatchPlan};

/// Every name and what it stands for.
pub const NAMES: [(&str, &str); 29] = [
    ("put", "writes of single keys"),
    ("get", "linearizable reads of single keys"),
    ("get-serializable", "reads of single keys from what the member has"),
    ("range", "ranges of 100 keys"),
    ("range-keys", "the same, keys only"),
    ("range-count", "how many keys there are"),
    ("list", "all keys in pages of 500 at one revision"),
    ("range-stream", "all keys by the streaming call (etcd 3.7)"),
    ("cas", "compare and swap as Kubernetes does it"),
    ("txn", "transactions of 10 puts"),
    ("delete", "removals of single keys, as many writes beside them"),
    ("mixed", "nine reads for each write"),
    ("watch-latency", "from each write to its event, 100 watchers"),
    ("watch-fanout", "each write goes to 1,000 watchers"),
    ("watch-catchup", "10 watchers read 10,000 revisions that were there before"),
    ("lease-grant", "new leases"),
    ("lease-keepalive", "500 streams that keep a lease alive each"),
    ("lease-expiry", "1,000 leases that end: how late their keys go"),
    ("lock", "100 callers want one of ten locks"),
    ("connect", "1,000 new connections a second, a read of one key on each"),
    ("kubernetes", "list, watch, updates, node heartbeats and events of a cluster"),
    ("config-watch", "few writes, many readers and watchers"),
    ("lease-storm", "leases made and kept alive by many"),
    ("ycsb-a", "half reads, half writes, zipf"),
    ("ycsb-b", "95 % reads, zipf"),
    ("ycsb-c", "reads only, zipf"),
    ("ycsb-e", "95 % short ranges, 5 % writes, zipf"),
    ("ycsb-f", "half reads, half compare and swap, zipf"),
    ("large", "ten minutes with 10 million keys: 50,000 puts and 5,000 gets a second, compactions"),
];

/// Scenarios that take long: `versus` runs them when they are asked for by name, as long as they
/// say, and once.
pub const LONG: [&str; 1] = ["large"];

fn get(serializable: bool) -> OpKind {
    OpKind::Get { serializable }
}

fn range(limit: i64) -> OpKind {
    OpKind::Range(RangeOp { limit, ..RangeOp::default() })
}

fn list(limit: i64) -> OpKind {
    OpKind::Range(RangeOp { limit, paginate: true, ..RangeOp::default() })
}

fn weighted(weight: u32, kind: OpKind) -> PlannedOp {
    PlannedOp { weight, ..PlannedOp::new(kind) }
}

const PUT: OpKind = OpKind::Put { prev_kv: false };

/// A scenario's plan.
///
/// # Errors
/// With the names that there are, when there is none of this name.
pub fn preset(name: &str) -> anyhow::Result<Plan> {
    let ops = |kinds: Vec<PlannedOp>| Plan {
        name: name.to_owned(),
        ops: kinds,
        conns: 10,
        clients: 100,
        ..Plan::default()
    };
    let one = |kind: OpKind| {
        let preload = kind.reads();
        Plan { preload, ..ops(vec![PlannedOp::new(kind)]) }
    };
    let few = |plan: Plan| Plan { conns: 4, clients: 8, ..plan };
    let zipf = |kinds: Vec<PlannedOp>| {
        let plan = ops(kinds);
        Plan { preload: true, keys: KeySpace { order: KeyOrder::Zipf(0.99), ..plan.keys.clone() }, ..plan }
    };
    Ok(match name {
        "put" => one(PUT),
        "get" => one(get(false)),
        "get-serializable" => one(get(true)),
        "range" => one(range(100)),
        "range-keys" => one(OpKind::Range(RangeOp { limit: 100, keys_only: true, ..RangeOp::default() })),
        "range-count" => one(OpKind::Range(RangeOp { count_only: true, ..RangeOp::default() })),
        "list" => few(one(list(500))),
        "range-stream" => few(one(OpKind::Range(RangeOp { stream: true, ..RangeOp::default() }))),
        "cas" => Plan { preload: true, ..one(OpKind::Cas) },
        "txn" => one(OpKind::Txn { puts: 10 }),
        "delete" => Plan { preload: true, ..ops(vec![PlannedOp::new(OpKind::Delete), PlannedOp::new(PUT)]) },
        "mixed" => Plan { preload: true, ..ops(vec![weighted(9, get(false)), weighted(1, PUT)]) },
        "watch-latency" => watched(ops(vec![PlannedOp::new(PUT)]), 100, 100, 100.0),
        "watch-fanout" => watched(ops(vec![PlannedOp::new(PUT)]), 1_000, 100, 50.0),
        "watch-catchup" => catch_up(ops(Vec::new())),
        "lease-grant" => one(OpKind::LeaseGrant { ttl: 600 }),
        "lease-keepalive" => Plan { clients: 500, ..one(OpKind::LeaseKeepAlive { ttl: 600 }) },
        "lease-expiry" => Plan { total: Some(1_000), warmup: 0.0, ..one(OpKind::LeaseExpiry { ttl: 5 }) },
        "lock" => one(OpKind::Lock { locks: 10 }),
        "connect" => Plan { rate: Some(1_000.0), clients: 500, ..one(OpKind::Connect) },
        "kubernetes" => kubernetes(ops(Vec::new())),
        "config-watch" => {
            let kinds = vec![weighted(19, get(true)), weighted(1, PUT)];
            let plan = watched(ops(kinds), 500, 100, 2_000.0);
            Plan { preload: true, keys: KeySpace { count: 200, ..plan.keys }, ..plan }
        }
        "lease-storm" => Plan {
            clients: 500,
            ..ops(vec![
                weighted(9, OpKind::LeaseKeepAlive { ttl: 60 }),
                weighted(1, OpKind::LeaseGrant { ttl: 60 }),
            ])
        },
        "ycsb-a" => zipf(vec![weighted(50, get(false)), weighted(50, PUT)]),
        "ycsb-b" => zipf(vec![weighted(95, get(false)), weighted(5, PUT)]),
        "ycsb-c" => zipf(vec![weighted(1, get(false))]),
        "ycsb-e" => zipf(vec![weighted(95, range(100)), weighted(5, PUT)]),
        "ycsb-f" => zipf(vec![weighted(50, get(false)), weighted(50, OpKind::Cas)]),
        "large" => large(ops(vec![weighted(10, PUT), weighted(1, get(false))])),
        _ => {
            let names = NAMES.map(|(name, _)| name).join(", ");
            anyhow::bail!("there is no scenario `{name}`; there are: {names}");
        }
    })
}

/// Writes at a steady rate, and watchers of everything.
fn watched(plan: Plan, watchers: usize, streams: usize, rate: f64) -> Plan {
    let watch = WatchPlan { watchers, streams, conns: 10.min(streams), ..WatchPlan::default() };
    Plan { watch: Some(watch), rate: Some(rate), arrivals: ArrivalShape::Constant, ..plan }
}

fn catch_up(plan: Plan) -> Plan {
    let watch = WatchPlan { watchers: 10, streams: 10, conns: 10, from_start: true, ..WatchPlan::default() };
    Plan { watch: Some(watch), preload: true, duration: 120.0, warmup: 0.0, ..plan }
}

/// The calls of an API server for a busy cluster of some hundred nodes: pods of real sizes that are
/// updated, listed and watched, a heartbeat of each node, events with a lease.
fn kubernetes(plan: Plan) -> Plan {
    let keys = |prefix: &str, count| KeySpace {
        prefix: prefix.to_owned(),
        count,
        size: 60,
        order: KeyOrder::Uniform,
    };
    let nodes = keys("/registry/leases/kube-node-lease/node-", 500);
    let events = keys("/registry/events/{namespace}/event-", 20_000);
    let named =
        |name: &str, weight, kind| PlannedOp { name: Some(name.to_owned()), ..weighted(weight, kind) };
    let ops = vec![
        named("update pod", 25, OpKind::Cas),
        PlannedOp {
            keys: Some(nodes),
            val_size: Some(SizeRange { min: 400, max: 600 }),
            ..named("node heartbeat", 50, OpKind::Cas)
        },
        PlannedOp {
            keys: Some(events),
            val_size: Some(SizeRange { min: 500, max: 1_200 }),
            ..named("event", 10, PUT)
        },
        named("get pod", 14, get(false)),
        named("list pods", 1, list(500)),
    ];
    let watch = WatchPlan { watchers: 20, streams: 20, conns: 4, prev_kv: true, ..WatchPlan::default() };
    Plan {
        ops,
        keys: keys("/registry/pods/{namespace}/pod-", 5_000),
        val_size: SizeRange { min: 1_000, max: 8_000 },
        preload: true,
        rate: Some(1_000.0),
        arrivals: ArrivalShape::Poisson,
        watch: Some(watch),
        ..plan
    }
}

/// A store of a size that real clusters reach, for as long as it takes to see it grow: whether
/// writes stay quick, and whether memory and files stay as they are, while history is made and
/// compacted.
fn large(plan: Plan) -> Plan {
    Plan {
        keys: KeySpace { count: 10_000_000, size: 64, ..plan.keys.clone() },
        preload: true,
        preload_batch: 128,
        // Puts and gets together, by their weights.
        rate: Some(55_000.0),
        // The generator takes 5 us of CPU for a call; with a look for each call it took 7.7.
        turn_every: 0.000_25,
        duration: 600.0,
        compact_every: Some(60.0),
        disk_probe: Some(0.02),
        // A stall of 36 ms keeps all of them waiting; calls that begin late for that count from the
        // clock all the same.
        clients: 2_000,
        conns: 20,
        ..plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_makes_sense_and_goes_through_toml() {
        for (name, _) in NAMES {
            let plan = preset(name).unwrap();
            plan.check().unwrap();
            let text = toml::to_string(&plan).unwrap();
            assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan, "{text}");
        }
        assert!(LONG.iter().all(|long| NAMES.iter().any(|(name, _)| name == long)));
        let error = preset("putt").unwrap_err().to_string();
        assert!(error.contains("`putt`") && error.contains("watch-fanout"), "{error}");
    }
}
