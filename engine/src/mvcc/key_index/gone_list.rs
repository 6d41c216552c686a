//! Lists of nodes that the tree has no more.
//!
//! A share that is held long has millions of them behind it. A list in one piece would be copied
//! whenever it grows out of its place, in the middle of a turn; this one is of many pieces.

use crate::mvcc::key_index::node_box::{Gone, Node};

/// Nodes of a piece: 64 KiB.
const PIECE: usize = if cfg!(test) { 8 } else { 4 * 1024 };

/// Nodes in no order.
#[derive(Debug)]
pub(super) struct GoneList<N: Node> {
    /// None is empty; nodes come to the last one and leave it.
    pieces: Vec<Vec<Gone<N>>>,
    len: usize,
}

impl<N: Node> Default for GoneList<N> {
    fn default() -> Self {
        Self { pieces: Vec::new(), len: 0 }
    }
}

impl<N: Node> GoneList<N> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn push(&mut self, node: Gone<N>) {
        self.len += 1;
        match self.pieces.last_mut() {
            Some(piece) if piece.len() < PIECE => piece.push(node),
            _ => self.pieces.push(vec![node]),
        }
    }

    pub(super) fn pop(&mut self) -> Option<Gone<N>> {
        let piece = self.pieces.last_mut()?;
        let node = piece.pop().expect("no piece is empty");
        self.len -= 1;
        if piece.is_empty() {
            self.pieces.pop();
        }
        Some(node)
    }

    /// Adds all of another one.
    pub(super) fn append(&mut self, mut other: Self) {
        self.len += other.len;
        if self.pieces.len() < other.pieces.len() {
            std::mem::swap(&mut self.pieces, &mut other.pieces);
        }
        self.pieces.append(&mut other.pieces);
    }
}

impl<N: Node> IntoIterator for GoneList<N> {
    type Item = Gone<N>;
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<Gone<N>>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.into_iter().flatten()
    }
}
