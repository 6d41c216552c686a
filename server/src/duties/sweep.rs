//! The sweep of an edge: calls that have waited too long are answered, refusals of its budgets are
//! counted.

use std::rc::Rc;

use crate::api::Api;
use crate::duties::pace::every;
use crate::edge::pending::Proposals;
use crate::limits;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>, proposals: Rc<Proposals>) {
    every(limits::SWEEP_INTERVAL, || {
        proposals.sweep(api.context().leader(), limits::REQUEST_SWEEPS_MAX);
        api.context().look_at_budgets();
    })
    .await;
}
