//! The part of a machine that members compare with each other, and what alarms say of it.

use crate::apply::Machine;
use crate::apply::alarm::{Raised, corrupt_members};
use crate::apply::state_hashes::StateHashes;

impl Machine {
    /// The state hashes behind the newest entries.
    #[must_use]
    pub fn hashes(&self) -> &StateHashes {
        &self.hashes
    }

    /// Members whose data is damaged, or differs from that of others: their alarms are raised.
    #[must_use]
    pub fn corrupt_members(&self) -> &[u64] {
        &self.corrupt
    }

    /// This member is one of them: it must answer nobody from its state.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        self.corrupt.contains(&self.config.own.member)
    }

    pub(super) fn look_at_alarms(&mut self) {
        let tables = self.state.store.tables();
        (self.raised, self.corrupt) = (Raised::of(tables), corrupt_members(tables));
    }
}
