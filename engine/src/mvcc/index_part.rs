//! Parts of the key index, for threads that work on them side by side.

use crate::Result;
use crate::mvcc::key_index::IndexPiece;
use crate::mvcc::layout::INDEX;
use crate::snapshot::Snapshot;

/// Keys of the index, from one on and below another, or all behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexPart {
    pub(crate) from: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

impl IndexPart {
    /// Parts that hold about as much of the saved index each, in their order; fewer if the index is
    /// small.
    ///
    /// # Errors
    /// When the file is damaged.
    pub(crate) fn divide(tree: &Snapshot, parts: usize) -> Result<Vec<Self>> {
        let mut starts = vec![Vec::new()];
        starts.extend(tree.dividing_keys(INDEX, parts)?.into_iter().map(<[u8]>::to_vec));
        let ends = starts.iter().skip(1).cloned().map(Some).chain([None]);
        Ok(starts.clone().into_iter().zip(ends).map(|(from, end)| Self { from, end }).collect())
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        *self.from <= *key && self.end.as_deref().is_none_or(|end| key < end)
    }
}

/// A part that is loaded.
#[derive(Debug)]
pub(crate) struct LoadedPart<'p> {
    /// Its place among all of them.
    pub(crate) at: usize,
    pub(crate) part: &'p IndexPart,
    pub(crate) piece: IndexPiece,
}

/// Which of some parts, in the order of their keys, has a key.
pub(crate) fn part_of(parts: &[LoadedPart<'_>], key: &[u8]) -> Option<usize> {
    let behind = parts.partition_point(|loaded| *loaded.part.from <= *key);
    let at = behind.checked_sub(1)?;
    parts[at].part.has(key).then_some(at)
}
