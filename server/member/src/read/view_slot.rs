//! Where the state core leaves each new View for the edges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use revd_engine::mvcc::View;

/// Node view: one writer, any number of readers, no lock.
#[derive(Debug)]
pub struct ViewSlot {
    newest: ArcSwap<View>,
    /// Which edges want to be told of each new View, by edge number.
    followed: Vec<AtomicBool>,
}

impl ViewSlot {
    /// A slot that holds the state a member starts with, for so many edges.
    #[must_use]
    pub fn new(view: View, edges: usize) -> Self {
        let followed = (0..edges).map(|_| AtomicBool::new(false)).collect();
        Self { newest: ArcSwap::from_pointee(view), followed }
    }

    /// Publishes a newer View.
    pub fn store(&self, view: View) {
        self.newest.store(Arc::new(view));
    }

    /// The newest View.
    #[must_use]
    pub fn load(&self) -> View {
        View::clone(&self.newest.load())
    }

    /// Looks at the newest View, briefly. Cores that hold one count in it that they do, where all
    /// cores count; a look counts on its own core. An edge keeps no View for the next look: one
    /// that rests would keep pages and memory that the store has replaced.
    pub fn look<T>(&self, at: impl FnOnce(&View) -> T) -> T {
        at(&self.newest.load())
    }

    /// An edge wants to be told of each View that is newer than the one it loads next, or does not
    /// any more.
    pub fn follow(&self, edge: u16, follows: bool) {
        let flag = &self.followed[usize::from(edge)];
        if flag.load(Ordering::Relaxed) != follows {
            // Sequentially consistent, as the writer's look is: either the edge loads the new View
            // or the writer sees the flag.
            flag.store(follows, Ordering::SeqCst);
        }
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Whether an edge is to be told of the View that was just published.
    #[must_use]
    pub fn is_followed(&self, edge: usize) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.followed[edge].load(Ordering::SeqCst)
    }
}
