//! How much memory replies may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::error::Error;

/// Bytes in replies that are being made or sent; clones share the count. A chunk is counted from when it is full until
/// the transport lets go of it.
#[derive(Debug, Clone)]
pub struct ReplyBudget {
    held: Arc<AtomicUsize>,
    bytes_max: usize,
}

/// A chunk, and the count it is part of.
struct Counted {
    chunk: Vec<u8>,
    held: Arc<AtomicUsize>,
}

impl ReplyBudget {
    /// At most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { held: Arc::default(), bytes_max }
    }

    /// What there may be in all.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Counts a chunk.
    ///
    /// # Errors
    /// [`Error::ReplyTooLarge`] when there is no room for it.
    pub fn chunk(&self, chunk: Vec<u8>) -> Result<Bytes, Error> {
        let held = self.held.fetch_add(chunk.len(), Ordering::Relaxed) + chunk.len();
        let counted = Counted { chunk, held: Arc::clone(&self.held) };
        if held > self.bytes_max {
            return Err(Error::ReplyTooLarge { bytes_max: self.bytes_max });
        }
        Ok(Bytes::from_owner(counted))
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.fetch_sub(self.chunk.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_count_until_they_are_let_go() {
        let budget = ReplyBudget::new(100);
        let first = budget.chunk(vec![1; 60]).unwrap();
        let part = first.slice(..10);
        drop(first);
        assert!(budget.chunk(vec![2; 60]).is_err(), "a part still holds the whole");
        drop(part);
        assert!(budget.chunk(vec![2; 60]).is_ok());
    }
}
