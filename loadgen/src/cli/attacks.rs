//! `loadgen attacks`: honest callers beside an attack.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use rustix::process::{Resource, Rlimit};
use serde_json::{Value, json};

use crate::attacks::honest::Noticed;
use crate::attacks::round::{AttackRound, faults, round};
use crate::attacks::{self, Attack};
use crate::cli::servers::{PairArgs, heading};
use crate::disk;
use crate::result::median;
use crate::servers::ServerSpec;
use crate::table;
use crate::units::{bytes, time};

/// `loadgen attacks`.
#[derive(Args)]
pub(super) struct AttacksArgs {
    /// Attacks whose name contains this, instead of all
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Rounds of each attack; the best one is judged
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// The sizes at which each attack was first seen (some need 12 GB where they are not refused)
    #[arg(long)]
    full: bool,
    /// Attack the first server only
    #[arg(long)]
    only_a: bool,
    /// Everything that was measured
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    pair: PairArgs,
}

fn row(attack: Attack, name: &str, rounds: &[AttackRound]) -> Vec<String> {
    let middle = |of: &dyn Fn(&AttackRound) -> f64| median(rounds.iter().map(of));
    let p = |of: fn(&AttackRound) -> &Noticed, share: f64| {
        time(middle(&|round| Noticed::quantile(&of(round).gets, share)) / 1e3)
    };
    let worst = |of: &dyn Fn(&AttackRound) -> f64| time(rounds.iter().map(of).fold(0.0, f64::max) / 1e3);
    let ratio = middle(&|round| {
        Noticed::quantile(&round.attacked.gets, 0.99) / Noticed::quantile(&round.peace.gets, 0.99)
    });
    let memory = rounds.iter().map(|round| round.memory.1).max().unwrap_or(0);
    let fewest = rounds.iter().map(|round| faults(attack, round)).min_by_key(Vec::len).unwrap_or_default();
    vec![
        attack.name.to_owned(),
        if attack.finding == 0 { String::new() } else { attack.finding.to_string() },
        name.to_owned(),
        rounds.iter().map(|round| round.times).sum::<u64>().to_string(),
        p(|round| &round.peace, 0.5),
        p(|round| &round.attacked, 0.5),
        p(|round| &round.peace, 0.99),
        p(|round| &round.attacked, 0.99),
        format!("{ratio:.1}"),
        worst(&|round| Noticed::slowest(&round.attacked.gets)),
        worst(&|round| Noticed::slowest(&round.peace.puts)),
        worst(&|round| Noticed::slowest(&round.attacked.puts)),
        bytes(memory as f64),
        if fewest.is_empty() { "holds".to_owned() } else { fewest.join("; ") },
    ]
}

fn in_json(attack: Attack, name: &str, round: &AttackRound) -> Value {
    let times = |noticed: &Noticed| {
        let at = |share| Noticed::quantile(&noticed.gets, share) / 1e3;
        json!({
            "p50-us": at(0.5), "p99-us": at(0.99), "slowest-get-us": Noticed::slowest(&noticed.gets) / 1e3,
            "slowest-put-us": Noticed::slowest(&noticed.puts) / 1e3, "gets": noticed.gets.len(),
            "puts": noticed.puts.len(), "errors": noticed.errors, "lost": noticed.lost,
        })
    };
    json!({
        "attack": attack.name, "finding": attack.finding, "server": name, "struck": round.times,
        "peace": times(&round.peace), "attacked": times(&round.attacked), "memory-in-peace": round.memory.0,
        "memory-peak": round.memory.1, "lives": round.lives, "memory-after": round.memory_after, "faults": faults(attack, round),
        "told": round.told.iter().take(5).collect::<Vec<_>>(),
    })
}

const HEAD: [&str; 14] = [
    "attack",
    "finding",
    "server",
    "struck",
    "p50 in peace",
    "p50",
    "p99 in peace",
    "p99",
    "ratio",
    "slowest get",
    "slowest put in peace",
    "slowest put",
    "memory",
    "verdict",
];

/// All rounds of one attack on one server.
fn measure(attack: Attack, spec: &ServerSpec, args: &AttacksArgs) -> Vec<AttackRound> {
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        match round(attack, spec, args.full) {
            Ok(round) => rounds.push(round),
            Err(error) => eprintln!("{} on {}: {error:#}", attack.name, spec.program.name),
        }
        // The data directory is removed by now.
        match disk::settle(&spec.data_folder()) {
            Ok(settled) if !settled.is_quick => {
                eprintln!("    the disk is still busy after {:.0?}", settled.waited);
            }
            Ok(_) => {}
            Err(error) => eprintln!("    waiting for the disk: {error:#}"),
        }
    }
    rounds
}

/// Attacks each server in turn, and prints the latency of honest callers.
pub(super) fn run(args: &AttacksArgs) -> anyhow::Result<ExitCode> {
    // Attackers hold many connections.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let specs = if args.only_a { vec![args.pair.first()?] } else { args.pair.both(1)?.into() };
    args.pair.pin()?;
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    for attack in attacks::all().into_iter().filter(|attack| attack.name.contains(&args.only)) {
        for spec in &specs {
            let name = &spec.program.name;
            let rounds = measure(attack, spec, args);
            lines.extend(rounds.iter().map(|round| in_json(attack, name, round)));
            if rounds.is_empty() {
                let mut row = vec![String::new(); HEAD.len()];
                (row[0], row[2]) = (attack.name.to_owned(), name.clone());
                row[HEAD.len() - 1] = "could not be measured".to_owned();
                rows.push(row);
                continue;
            }
            let row = row(attack, name, &rounds);
            eprintln!("{}", row.join(" | "));
            rounds
                .iter()
                .for_each(|round| eprintln!("    told: {:?}", round.told.iter().take(3).collect::<Vec<_>>()));
            rows.push(row);
        }
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&lines)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{}", heading(&specs));
    print!("{}", table::plain(&HEAD, rows));
    Ok(ExitCode::SUCCESS)
}
