//! Compactions beside the callers, by the clock.

use std::sync::Arc;

use crate::clock;
use crate::login::ask;
use crate::plan::{COMPACT_NAME, Plan};
use crate::record::OpRecord;
use crate::result::CompactionMark;
use crate::run::beside::{Beside, RunTime};
use crate::run::shared::RunShared;
use crate::wire::RpcMethod;
use crate::wire::fields::put_number;

const COMPACT: RpcMethod = RpcMethod::Other("/etcdserverpb.KV/Compact");
/// Compactions that are kept with their times; the others are counted.
const MARKS_MAX: usize = 10_000;

/// The compactions of a run, and their latencies.
pub(super) struct Compactions {
    pub(super) record: OpRecord,
    pub(super) marks: Vec<CompactionMark>,
}

impl Compactions {
    pub(super) fn none() -> Self {
        Self { record: OpRecord::new(COMPACT_NAME), marks: Vec::new() }
    }
}

/// Starts them, if the plan has any.
///
/// # Errors
/// When the system has no thread.
pub(super) fn start(plan: &Plan, shared: &Arc<RunShared>) -> anyhow::Result<Option<Beside<Compactions>>> {
    let Some(every) = plan.compact_every else { return Ok(None) };
    let endpoint = plan.endpoints[0].clone();
    let work = move |time: &RunTime| compact(&endpoint, clock::from_seconds(every), time);
    Ok(Some(Beside::start("loadgen-compact", plan, shared, work)?))
}

fn compact(endpoint: &str, every: u64, time: &RunTime) -> Compactions {
    let mut done = Compactions::none();
    let (mut due, mut last) = (time.from.saturating_add(every), 0);
    while time.rest_until(due - every / 10) {
        let revision = time.newest();
        if !time.rest_until(due) {
            break;
        }
        due += every;
        // The server refuses a revision twice; without writes there is nothing to compact.
        if revision <= last {
            continue;
        }
        last = revision;
        let mut body = Vec::new();
        put_number(&mut body, 1, revision);
        let begun = clock::nanos();
        let said = ask(endpoint, COMPACT, &body).map_err(|error| format!("{error:#}"));
        let now = clock::nanos();
        let (took, at) = (now - begun, now.saturating_sub(time.from));
        let error = said.err();
        match &error {
            // By the round before, or by another client.
            Some(what) if what.contains("has been compacted") => continue,
            Some(what) => done.record.fail(what, at),
            None => done.record.add(took, took, at),
        }
        if done.marks.len() < MARKS_MAX {
            let at = begun.saturating_sub(time.from) as f64 / 1e9;
            done.marks.push(CompactionMark { at, revision, took: took as f64 / 1e3, error });
        }
    }
    done
}
