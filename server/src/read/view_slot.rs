//! Where the state core leaves each new View for the edges.

use std::sync::Arc;

use arc_swap::ArcSwap;
use revd_engine::mvcc::View;

/// Node view: one writer, any number of readers, no lock.
#[derive(Debug)]
pub struct ViewSlot(ArcSwap<View>);

impl ViewSlot {
    /// A slot that holds the state a member starts with.
    #[must_use]
    pub fn new(view: View) -> Self {
        Self(ArcSwap::from_pointee(view))
    }

    /// Publishes a newer View.
    pub fn store(&self, view: View) {
        self.0.store(Arc::new(view));
    }

    /// The newest View.
    #[must_use]
    pub fn load(&self) -> View {
        View::clone(&self.0.load())
    }
}
