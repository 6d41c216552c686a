//! Where a node of the index lies in memory, and who frees it.
//!
//! A [`NodeBox`] owns its node and all below it, as a `Box` would. A branch that a share of the
//! index may have is never changed: a copy of it takes its place, with the same children, and the
//! original is [`Gone`]: it leaves its children to the copy, and lies there until no share has it
//! any more. So children have one owner at any time, and no counter: a copy of a branch touches
//! none of them. Which shares there are, and what they may have, is known to
//! `Shares` alone.
//!
//! A panic in the middle of a change may free nodes that a share has: a process that goes on behind
//! one must not read its shares again. That of the server does not go on.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::ptr::NonNull;

use crate::limits::SPARE_NODES_MAX;
use crate::prefetch::prefetch;

/// The number of the first share of an index.
pub(super) const FIRST_SHARE: u64 = 1;

/// A node of a tree.
///
/// # Safety
/// `copy` calls `second` once for each child, and puts what it returns in the place of the child.
/// `take_off_children` passes each child on, and neither it nor `prefetch_parts` looks at one: they
/// may be freed.
pub(super) unsafe trait Node: Default {
    /// Memory of rows that are no more.
    type SpareRows: Default + std::fmt::Debug;

    /// A copy with second owners of the children.
    fn copy(&self, second: impl Fn(&NodeBox<Self>) -> NodeBox<Self>, spare: &mut Self::SpareRows) -> Self;

    /// Asks for the memory that the end of the node looks at.
    fn prefetch_parts(&self);

    /// Frees the node, but for its children. Its memory is kept, if there is a place for that.
    fn take_off_children(self, take: impl FnMut(NodeBox<Self>), spare: Option<&mut Self::SpareRows>);
}

/// Memory of nodes that were freed a moment ago, for copies. Most of it lies in the caches of the
/// processor, as memory of the allocator seldom does where nodes are freed all over the index.
#[derive(Debug)]
pub(super) struct Spare<N: Node> {
    boxes: Vec<Box<MaybeUninit<Stamped<N>>>>,
    rows: N::SpareRows,
}

/// The owner of a node.
pub(super) struct NodeBox<N: Node>(NonNull<Stamped<N>>);

/// A node, and the number of the first share that could have it.
struct Stamped<N> {
    born: u64,
    node: N,
    #[cfg(test)]
    _counted: counted::Counted,
}

/// A node whose copy has taken its place: its children are the copy's, and may be freed.
pub(super) struct Gone<N: Node> {
    /// As of the node: known without a look at it, which may be a miss of the caches.
    pub(super) born: u64,
    node: ManuallyDrop<NodeBox<N>>,
}

// SAFETY: a `NodeBox` owns what it points to, as a `Box` does, and gives access to it as one does.
unsafe impl<N: Node + Send> Send for NodeBox<N> {}
// SAFETY: as above: from a shared `NodeBox` only shared references to the node come.
unsafe impl<N: Node + Sync> Sync for NodeBox<N> {}

impl<N: Node> NodeBox<N> {
    /// A node that shares with this number or a higher one may have.
    pub(super) fn new(node: N, born: u64) -> Self {
        Self::within(Box::new_uninit(), node, born)
    }

    /// The same, in memory that is there.
    fn within(memory: Box<MaybeUninit<Stamped<N>>>, node: N, born: u64) -> Self {
        let stamped = Stamped {
            born,
            node,
            #[cfg(test)]
            _counted: counted::Counted::new(),
        };
        Self(NonNull::from(Box::leak(Box::write(memory, stamped))))
    }

    fn stamped(&self) -> &Stamped<N> {
        // SAFETY: it points to what `within` has leaked, until it is dropped, and is not changed
        // while there is this reference: `as_mut` needs the box itself, and that no share has the
        // node.
        unsafe { self.0.as_ref() }
    }

    /// Asks for the memory of the node, which is looked at soon.
    pub(super) fn prefetch(&self) {
        prefetch(self.0.as_ptr(), 1);
    }

    /// The first share that could have it.
    pub(super) fn born(&self) -> u64 {
        self.stamped().born
    }

    /// The node, without its box.
    pub(super) fn into_inner(self) -> N {
        self.take_apart().0
    }

    /// The node, and the memory that it lay in.
    fn take_apart(self) -> (N, Box<MaybeUninit<Stamped<N>>>) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `within` has made it of a box like this, and it is not used or dropped again.
        let memory: Box<MaybeUninit<Stamped<N>>> = unsafe { Box::from_raw(this.0.as_ptr().cast()) };
        // SAFETY: `within` has written it, and it is read once: the memory counts as unwritten.
        let stamped = unsafe { memory.assume_init_read() };
        (stamped.node, memory)
    }

    /// Changes the node.
    ///
    /// # Safety
    /// No share has the node.
    pub(super) unsafe fn as_mut(&mut self) -> &mut N {
        // SAFETY: it points to what `within` has leaked; no share has it, and this box is borrowed.
        let stamped = unsafe { self.0.as_mut() };
        &mut stamped.node
    }

    /// A second owner of the node, for a share: it is never dropped, and so frees nothing.
    ///
    /// # Safety
    /// It is used only as long as the node is neither changed nor freed.
    pub(super) unsafe fn alias(&self) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Self(self.0))
    }

    /// Puts a copy of the node in its place; the original is gone.
    pub(super) fn replace(&mut self, born: u64, spare: &mut Spare<N>) -> Gone<N> {
        // The original, which is gone then, does not drop its children.
        let copy = self.copy(|child| NodeBox(child.0), &mut spare.rows);
        let memory = spare.boxes.pop().unwrap_or_else(Box::new_uninit);
        Gone::new(std::mem::replace(self, Self::within(memory, copy, born)))
    }
}

impl<N: Node> Deref for NodeBox<N> {
    type Target = N;

    fn deref(&self) -> &N {
        &self.stamped().node
    }
}

impl<N: Node> Drop for NodeBox<N> {
    fn drop(&mut self) {
        // SAFETY: `within` has made it of a box, and nothing uses it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl<N: Node> Default for NodeBox<N> {
    fn default() -> Self {
        Self::new(N::default(), FIRST_SHARE)
    }
}

/// Without the node, which may be one that must not be looked at any more.
impl<N: Node> std::fmt::Debug for NodeBox<N> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("NodeBox")
    }
}

impl<N: Node> std::fmt::Debug for Gone<N> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Gone({})", self.born)
    }
}

impl<N: Node> Gone<N> {
    fn new(node: NodeBox<N>) -> Self {
        Self { born: node.born(), node: ManuallyDrop::new(node) }
    }

    /// Asks for the memory of the node.
    pub(super) fn prefetch(&self) {
        self.node.prefetch();
    }

    /// Asks for the memory of its parts.
    pub(super) fn prefetch_parts(&self) {
        self.node.prefetch_parts();
    }

    /// Frees the node, but for its memory, as far as there is a place for it.
    pub(super) fn free(self, spare: &mut Spare<N>) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is taken once, here: what it was taken from is not dropped.
        let node = unsafe { ManuallyDrop::take(&mut this.node) };
        let (node, memory) = node.take_apart();
        node.take_off_children(std::mem::forget, Some(&mut spare.rows)); // they are the copy's
        if spare.boxes.len() < SPARE_NODES_MAX {
            spare.boxes.push(memory);
        }
    }
}

impl<N: Node> Default for Spare<N> {
    fn default() -> Self {
        Self { boxes: Vec::new(), rows: N::SpareRows::default() }
    }
}

impl<N: Node> Drop for Gone<N> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, here.
        let node = unsafe { ManuallyDrop::take(&mut self.node) };
        node.into_inner().take_off_children(std::mem::forget, None); // they are the copy's
    }
}

/// Counts nodes, so that a test sees when one is not freed.
#[cfg(test)]
pub(super) mod counted {
    use std::cell::Cell;

    thread_local! {
        static NODES: Cell<usize> = const { Cell::new(0) };
    }

    #[derive(Debug)]
    pub(super) struct Counted;

    impl Counted {
        pub(super) fn new() -> Self {
            NODES.set(NODES.get() + 1);
            Self
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            NODES.set(NODES.get().wrapping_sub(1));
        }
    }

    /// Nodes that this thread has made and that it has not freed.
    pub(in crate::mvcc::key_index) fn nodes() -> usize {
        NODES.get()
    }
}
