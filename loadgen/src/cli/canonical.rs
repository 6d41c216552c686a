//! Without arguments: the canonical workload on a server of its own, and a short table.

use std::process::ExitCode;

use crate::cli::outputs::status;
use crate::cli::servers::ServerArgs;
use crate::measure::Session;
use crate::plan::Plan;
use crate::presets::preset;
use crate::result::median;
use crate::servers::Servers;
use crate::table;
use crate::units::{amount, time};

/// The canonical workload, and how long each scenario takes.
const SCENARIOS: [&str; 6] = ["put", "get", "range", "txn", "cas", "watch-fanout"];
const SECONDS: f64 = 3.0;

/// Runs it on revd, or on etcd where there is no revd.
pub(super) fn run() -> anyhow::Result<ExitCode> {
    let args = ServerArgs::default();
    let spec = args.spec("revd").or_else(|_| args.spec("etcd"));
    let spec = spec.map_err(|_| {
        anyhow::anyhow!(
            "there is neither revd nor etcd beside loadgen or on the PATH to run against: build one (cargo build --release -p \
             revd), or name an endpoint (loadgen put --endpoints HOST:PORT)"
        )
    })?;
    let servers = Servers::start(&spec)?;
    println!("{} on a fresh directory; {SECONDS} s each; more with `loadgen --help`\n", servers.name);
    let session = Session::new(false)?;
    let (mut rows, mut runs) = (Vec::new(), Vec::new());
    for name in SCENARIOS {
        let plan = Plan { duration: SECONDS, endpoints: servers.endpoints.clone(), ..preset(name)? };
        let run = session.run(&plan, 1, &servers.cost_source())?;
        for op in run.op_names() {
            let at = |figure: &str| time(median(run.op(op).filter_map(|op| op.latency.named(figure))));
            let rate = median(run.op(op).map(|op| op.rate));
            let cost = median(run.rounds.iter().filter_map(|round| Some(round.cost.as_ref()?.cpu_us_per_op)));
            let what = if op == name { name.to_owned() } else { format!("{name}: {op}") };
            rows.push(vec![what, amount(rate), at("p50"), at("p99"), at("max"), time(cost)]);
        }
        runs.push(run);
        if session.is_interrupted() {
            break;
        }
    }
    print!("{}", table::plain(&["", "per second", "p50", "p99", "max", "server CPU"], rows));
    for run in &runs {
        let wrong = run.violations.iter().chain(&run.stopped).chain(&run.warnings);
        wrong.for_each(|text| println!("{}: {text}", run.plan.name));
    }
    Ok(status(&runs))
}
