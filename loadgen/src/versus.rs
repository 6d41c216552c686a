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
    rounds: impl Fn(&Plan) -> usize,
    mut after: impl FnMut(&RunResult, &RunResult),
) -> anyhow::Result<(Pairs, Option<anyhow::Error>)> {
    let (a, b) = (Servers::start(specs.0)?, Servers::start(specs.1)?);
    let mut pairs = Vec::new();
    for plan in plans {
        match pair(session, plan, (&a, &b), rounds(plan)) {
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
    let sources = [servers.0.cost_source(), servers.1.cost_source()];
    for round in 0..rounds.max(1) {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            session.round(&mut runs[which], &sources[which])?;
            if runs[which].stopped.is_some() {
                let [first, second] = runs;
                return Ok((first, second));
            }
        }
    }
    let [first, second] = runs;
    Ok((first, second))
}
