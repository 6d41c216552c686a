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

/// All rounds of one attack on one server.
#[derive(Default)]
struct AttackRounds {
    measured: Vec<AttackRound>,
    /// Why others could not be: honest callers could not begin, or the server did not start.
    broken: Vec<String>,
}

impl AttackRounds {
    /// The limits that the best round exceeds, and rounds that could not be measured: these are no
    /// better.
    fn verdict(&self, attack: Attack) -> String {
        let fewest = self.measured.iter().map(|round| faults(attack, round)).min_by_key(Vec::len);
        let mut said = fewest.unwrap_or_default();
        if let Some(why) = self.broken.first() {
            let (broken, all) = (self.broken.len(), self.broken.len() + self.measured.len());
            said.push(format!("{broken} of {all} rounds could not be measured ({why:.60})"));
        }
        if said.is_empty() { "holds".to_owned() } else { said.join("; ") }
    }
}

fn row(attack: Attack, name: &str, all: &AttackRounds) -> Vec<String> {
    let rounds = &all.measured;
    if rounds.is_empty() {
        let mut row = vec![String::new(); HEAD.len()];
        (row[0], row[2]) = (attack.name.to_owned(), name.to_owned());
        row[HEAD.len() - 1] = all.verdict(attack);
        return row;
    }
    let middle = |of: &dyn Fn(&AttackRound) -> f64| median(rounds.iter().map(of));
    let p = |of: fn(&AttackRound) -> &Noticed, share: f64| {
        time(middle(&|round| Noticed::quantile(&of(round).calm_gets, share)) / 1e3)
    };
    let worst = |of: &dyn Fn(&AttackRound) -> f64| time(rounds.iter().map(of).fold(0.0, f64::max) / 1e3);
    let ratio = middle(&AttackRound::p99_ratio);
    let memory = rounds.iter().map(|round| round.memory.1).max().unwrap_or(0);
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
        time(middle(&|round| Noticed::quantile(&round.attacked.gets, 0.99)) / 1e3),
        worst(&|round| Noticed::slowest(&round.attacked.gets)),
        worst(&|round| Noticed::slowest(&round.peace.puts)),
        worst(&|round| Noticed::slowest(&round.attacked.puts)),
        bytes(memory as f64),
        all.verdict(attack),
    ]
}

fn in_json(attack: Attack, name: &str, round: &AttackRound) -> Value {
    let times = |noticed: &Noticed| {
        let at = |share| Noticed::quantile(&noticed.gets, share) / 1e3;
        json!({
            "p50-us": at(0.5), "p99-us": at(0.99), "calm-p99-us": Noticed::quantile(&noticed.calm_gets, 0.99) / 1e3,
            "slowest-get-us": Noticed::slowest(&noticed.gets) / 1e3,
            "slowest-put-us": Noticed::slowest(&noticed.puts) / 1e3, "gets": noticed.gets.len(),
            "puts": noticed.puts.len(), "errors": noticed.errors, "lost": noticed.lost,
        })
    };
    json!({
        "attack": attack.name, "finding": attack.finding, "server": name, "struck": round.times,
        "peace": times(&round.peace), "attacked": times(&round.attacked), "memory-in-peace": round.memory.0,
        "memory-peak": round.memory.1, "lives": round.lives, "memory-after": round.memory_after, "faults": faults(attack, round),
        "told": round.told.iter().take(10).collect::<Vec<_>>(),
    })
}

const HEAD: [&str; 15] = [
    "attack",
    "finding",
    "server",
    "struck",
    "p50 in peace",
    "p50",
    "p99 in peace",
    "p99",
    "ratio",
    "p99 with stalls",
    "slowest get",
    "slowest put in peace",
    "slowest put",
    "memory",
    "verdict",
];

fn measure(attack: Attack, spec: &ServerSpec, args: &AttacksArgs) -> AttackRounds {
    let mut rounds = AttackRounds::default();
    for _ in 0..args.rounds {
        match round(attack, spec, args.full) {
            Ok(round) => rounds.measured.push(round),
            Err(error) => {
                eprintln!("{} on {}: {error:#}", attack.name, spec.program.name);
                rounds.broken.push(format!("{error:#}"));
            }
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
    let all = attacks::all().into_iter().chain(attacks::over_tls());
    for attack in all.filter(|attack| attack.name.contains(&args.only)) {
        for spec in &specs {
            let name = &spec.program.name;
            let rounds = measure(attack, spec, args);
            lines.extend(rounds.measured.iter().map(|round| in_json(attack, name, round)));
            lines.extend(rounds.broken.iter().map(|why| {
                json!({
                    "attack": attack.name, "finding": attack.finding, "server": name,
                    "faults": [format!("could not be measured: {why}")],
                })
            }));
            let row = row(attack, name, &rounds);
            eprintln!("{}", row.join(" | "));
            rounds
                .measured
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_that_could_not_be_measured_is_a_fault() {
        let attack = attacks::all()[0];
        let times = || Noticed { gets: vec![1_000], puts: vec![1_000], ..Noticed::default() };
        let good = AttackRound {
            peace: times(),
            attacked: times(),
            memory: (0, 0),
            told: vec![(attack.right.to_owned(), 1)],
            times: 1,
            lives: true,
            memory_after: 1,
        };
        let mut rounds = AttackRounds { measured: vec![good], broken: Vec::new() };
        assert_eq!(rounds.verdict(attack), "holds");
        rounds.broken.push("connection refused".to_owned());
        let said = "1 of 2 rounds could not be measured (connection refused)";
        assert_eq!(rounds.verdict(attack), said);
        assert_eq!(row(attack, "revd", &rounds).last().unwrap(), said);
        rounds.measured.clear();
        assert!(row(attack, "revd", &rounds).last().unwrap().starts_with("1 of 1 rounds"));
    }

    #[test]
    fn each_kind_that_an_attacker_must_not_get_is_a_fault() {
        let attack = attacks::over_tls().into_iter().find(|attack| attack.wrong == "let in").unwrap();
        let kinds =
            ["one kind: sent away", "another: let in, and answered", "a third: let in, without an answer"];
        let told = [&kinds[..], &[attack.right]].concat();
        let times = || Noticed { gets: vec![1_000], puts: vec![1_000], ..Noticed::default() };
        let round = AttackRound {
            peace: times(),
            attacked: times(),
            memory: (0, 0),
            told: told.into_iter().map(|what| (what.to_owned(), 1)).collect(),
            times: 1,
            lives: true,
            memory_after: 1,
        };
        let expected = kinds[1..].iter().map(|what| format!("the attacker got {what:?}"));
        assert_eq!(faults(attack, &round), expected.collect::<Vec<_>>());
    }
}
