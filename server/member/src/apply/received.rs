//! A state that another member has sent takes the place of the machine's.

use revd_engine::mvcc::{Applied, Store, Tables};

use crate::apply::alarm::Raised;
use crate::apply::outcome::Effect;
use crate::apply::state::State;
use crate::apply::{DurableIndex, FatalError, Machine};
use crate::error::Error;
use crate::lease::Leases;

/// A state that another member has sent, opened: its file is whole and durable.
#[derive(Debug)]
pub struct ReceivedState(State);

/// The state whose place another one has taken. Dropping it takes long.
#[derive(Debug)]
pub struct ReplacedState {
    /// It is only held.
    _state: State,
}

impl ReceivedState {
    /// Loads everything that a machine keeps in memory; may run on any thread.
    ///
    /// # Errors
    /// When the store is damaged.
    pub fn load(store: Store) -> revd_engine::Result<Self> {
        let leases = Leases::load(&store)?;
        Ok(Self(State { store, leases }))
    }

    /// The last entry that it has the effect of.
    #[must_use]
    pub fn applied(&self) -> Applied {
        self.0.store.applied()
    }

    /// Its small tables.
    #[must_use]
    pub fn tables(&self) -> &Tables {
        self.0.store.tables()
    }
}

impl DurableIndex {
    /// As of a received state that has taken the machine's place: its file is the tree file.
    pub(crate) fn of_installed(machine: &Machine) -> Self {
        debug_assert!(!machine.store().has_unsaved(), "a received state is in its file");
        Self(machine.store().applied().index)
    }
}

impl Machine {
    /// Goes on from a received state, not within an entry. Callers that wait for this member as a
    /// leader are refused: it has not been one.
    ///
    /// # Errors
    /// [`FatalError::Received`] when it is not newer than the machine's; the member must stop.
    pub fn replace_state(
        &mut self,
        received: ReceivedState,
        now: u64,
        effects: &mut Vec<Effect>,
    ) -> Result<ReplacedState, FatalError> {
        assert!(!self.is_within_entry(), "a state takes the place of one with half an entry");
        let ReceivedState(state) = received;
        let (before, after) = (self.store(), &state.store);
        if before.applied().index >= after.applied().index || before.revision() > after.revision() {
            return Err(FatalError::Received {
                index: after.applied().index,
                revision: after.revision(),
                applied: before.applied().index,
                before: before.revision(),
            });
        }
        self.set_leadership(None, now, effects);
        self.key_lists.refuse_all(self.state.store.revision(), &Error::NoLeader, effects);
        self.raised = Raised::of(state.store.tables());
        Ok(ReplacedState { _state: std::mem::replace(&mut self.state, state) })
    }
}
