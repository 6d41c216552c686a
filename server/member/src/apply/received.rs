//! A state that another member has sent takes the place of the machine's.

use revd_engine::mvcc::{Applied, Store, Tables};

use crate::apply::state::State;
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

impl ReceivedState {
    /// Takes the machine's place; the state before.
    pub(super) fn replace(mut self, state: &mut State) -> ReplacedState {
        self.0.store.take_place_of(&state.store);
        ReplacedState { _state: std::mem::replace(state, self.0) }
    }

    /// Its newest revision.
    pub(super) fn revision(&self) -> i64 {
        self.0.store.revision()
    }
}
