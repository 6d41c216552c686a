//! The sweep of an edge: calls that have waited too long are answered, refusals of its budgets are
//! counted, and the streams of a corrupt member end.

use std::rc::Rc;
use std::time::Duration;

use crate::api::Api;
use crate::duties::pace::every;
use crate::edge::pending::Proposals;
use crate::limits::{self, RequestSweeps};

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>, proposals: Rc<Proposals>, election_timeout: Duration) {
    let sweeps = RequestSweeps::new(election_timeout);
    every(limits::SWEEP_INTERVAL, || {
        proposals.sweep(api.context().leader(), sweeps);
        api.context().look_at_budgets();
        api.context().end_if_corrupt();
    })
    .await;
}
