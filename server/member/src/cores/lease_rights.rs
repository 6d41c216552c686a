//! Callers that wait to be told whether they may do what depends on the keys of leases.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::apply::Machine;
use crate::apply::command::CommandId;
use crate::apply::local::LeaseRights;
use crate::apply::outcome::{Effect, Outcome, Rest};
use crate::limits;

/// State core view: such callers, in the order they have come. The slots of edges bound them.
#[derive(Debug, Default)]
pub(super) struct LeaseRightsAsked(VecDeque<(CommandId, Arc<LeaseRights>)>);

impl LeaseRightsAsked {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, id: CommandId, rights: Arc<LeaseRights>) {
        self.0.push_back((id, rights));
    }

    /// Answers some of them, for a turn at most; `microseconds` is the clock.
    pub(super) fn answer(
        &mut self,
        machine: &mut Machine,
        microseconds: impl Fn() -> u64,
        effects: &mut Vec<Effect>,
    ) {
        if self.0.is_empty() {
            return;
        }
        let began = microseconds();
        for step in 1..=limits::LEASE_REQUESTS_PER_TURN {
            let Some((id, rights)) = self.0.pop_front() else { return };
            let result = machine.check_lease_rights(&rights).map(|()| bytes::Bytes::new());
            let revision = machine.store().revision();
            effects.push(Effect::Reply(id, Outcome { revision, result, rest: Rest::NONE }));
            if step.is_multiple_of(4) && microseconds() >= began + limits::APPLY_MICROSECONDS {
                return;
            }
        }
    }
}
