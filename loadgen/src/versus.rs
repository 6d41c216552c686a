//! Scenarios on two servers: started alike, measured in turns.

use crate::measure::Session;
use crate::plan::Plan;
use crate::result::RunResult;
use crate::servers::{ServerSpec, Servers};

/// Both results of each plan, first and second.
pub type Pairs = Vec<(RunResult, RunResult)>;

/// Runs plans against two servers in turns: in even rounds the first begins, in odd ones the
/// second. Results of scenarios before a failure are kept, with the failure.
///
/// # Errors
/// When a server does not start.
pub fn run(
    session: &Session,
    specs: (&ServerSpec, &ServerSpec),
    plans: &[Plan],
    rounds: usize,
    mut after: impl FnMut(&RunResult, &RunResult),
) -> anyhow::Result<(Pairs, Option<anyhow::Error>)> {
    let (a, b) = (Servers::start(specs.0)?, Servers::start(specs.1)?);
    let mut pairs = Vec::new();
    for plan in plans {
        match pair(session, plan, (&a, &b), rounds) {
            Ok((first, second)) => {
                after(&first, &second);
                pairs.push((first, second));
            }
            Err(error) => return Ok((pairs, Some(error.context(format!("scenario {}", plan.name))))),
        }
        if session.is_interrupted() {
            return Ok((pairs, Some(anyhow::anyhow!("interrupted"))));
        }
    }
    Ok((pairs, None))
}

fn pair(
    session: &Session,
    plan: &Plan,
    servers: (&Servers, &Servers),
    rounds: usize,
) -> anyhow::Result<(RunResult, RunResult)> {
    let to = |servers: &Servers| -> anyhow::Result<Plan> {
        Ok(Plan { endpoints: servers.endpoints_from_leader()?, ..plan.clone() })
    };
    let mut runs = [session.begin(&to(servers.0)?)?, session.begin(&to(servers.1)?)?];
    let pids = [servers.0.pids(), servers.1.pids()];
    for round in 0..rounds.max(1) {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            session.round(&mut runs[which], &pids[which])?;
            if runs[which].stopped.is_some() {
                let [first, second] = runs;
                return Ok((first, second));
            }
        }
    }
    let [first, second] = runs;
    Ok((first, second))
}
