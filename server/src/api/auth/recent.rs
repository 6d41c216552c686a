//! Knowledge of tokens, by their digests, bounded: of two halves the older one is forgotten when
//! the younger one is full. A token that is asked for again is taken over into the younger half, so
//! that any number of others that come once push out none that is in use.

use std::collections::BTreeMap;

/// Node view.
#[derive(Debug)]
pub(super) struct Recent<T> {
    young: BTreeMap<[u8; 32], T>,
    old: BTreeMap<[u8; 32], T>,
    len_max: usize,
}

impl<T> Recent<T> {
    /// Remembers so many, and half of them at least.
    pub(super) fn new(len_max: usize) -> Self {
        Self { young: BTreeMap::new(), old: BTreeMap::new(), len_max }
    }

    /// The knowledge of a token, and whether it is about to be forgotten unless
    /// [`Recent::insert`] follows.
    pub(super) fn get(&self, digest: &[u8; 32]) -> Option<(&T, bool)> {
        let young = self.young.get(digest).map(|known| (known, false));
        young.or_else(|| self.old.get(digest).map(|known| (known, true)))
    }

    /// Remembers this, or goes on to.
    pub(super) fn insert(&mut self, digest: [u8; 32], known: T) {
        self.old.remove(&digest);
        if self.young.len() >= self.len_max / 2 && !self.young.contains_key(&digest) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, known);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}
