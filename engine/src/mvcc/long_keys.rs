//! Keys too long for a page: where they lie in the file, and those that wait to be saved.
//!
//! Each has a row by its SHA-256: any other order or checksum could be made to lead many keys to
//! one place. Earlier versions put all keys of one CRC-32C into one row; such a row is divided when
//! one of its keys is saved.
//!
//! ```text
//! table 2   SHA-256 of the key -> u32 key length | key | u32 history length | history
//!           CRC-32C of the key, big-endian (earlier) -> the same for all keys with it
//! ```

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Included, Unbounded};

use sha2::{Digest, Sha256};

use crate::Result;
use crate::mvcc::key_index::Key;
use crate::mvcc::saved_history::malformed;

/// Bytes of a row's key, and of those that earlier versions wrote.
pub(crate) const ROW_KEY: usize = 32;
pub(crate) const EARLIER_ROW_KEY: usize = size_of::<u32>();

/// Keys that have changed since they were saved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitingKeys {
    keys: BTreeSet<Key>,
    bytes: usize,
}

impl WaitingKeys {
    pub(crate) fn insert(&mut self, key: Key) {
        let len = key.len();
        if self.keys.insert(key) {
            self.bytes += len;
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key)
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes those from `from` on and below `end` out.
    pub(crate) fn take_range(&mut self, from: &[u8], end: Option<&[u8]>) -> Vec<Key> {
        let end = end.map_or(Unbounded, Excluded);
        let taken: Vec<Key> = self.keys.range::<[u8], _>((Included(from), end)).cloned().collect();
        for key in &taken {
            assert!(self.keys.remove(key), "a key that waits was found");
            self.bytes -= key.len();
        }
        taken
    }

    /// Adds others; the work is that of the fewer.
    pub(crate) fn merge(&mut self, mut others: Self) {
        if others.keys.len() > self.keys.len() {
            std::mem::swap(self, &mut others);
        }
        others.keys.into_iter().for_each(|key| self.insert(key));
    }
}

/// The key of its row.
pub(crate) fn row_key(key: &[u8]) -> [u8; ROW_KEY] {
    Sha256::digest(key).into()
}

/// The key of the row that earlier versions put it into.
pub(crate) fn earlier_row_key(key: &[u8]) -> [u8; EARLIER_ROW_KEY] {
    crc32c::crc32c(key).to_be_bytes()
}

/// A row of one key.
pub(crate) fn encode(key: &[u8], history: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(8 + key.len() + history.len());
    for part in [key, history] {
        let len = u32::try_from(part.len()).expect("keys and values of histories are bounded");
        row.extend_from_slice(&len.to_le_bytes());
        row.extend_from_slice(part);
    }
    row
}

/// The keys of a row, with their encoded histories.
pub(crate) fn decode(mut row: &[u8]) -> Result<Vec<(&[u8], &[u8])>> {
    let mut keys = Vec::new();
    while !row.is_empty() {
        let key = take_part(&mut row).ok_or_else(malformed)?;
        keys.push((key, take_part(&mut row).ok_or_else(malformed)?));
    }
    Ok(keys)
}

fn take_part<'r>(row: &mut &'r [u8]) -> Option<&'r [u8]> {
    let (len, rest) = row.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *row = rest;
    Some(part)
}

/// The key of a row of its own, with its encoded history.
pub(crate) fn sole(row: &[u8]) -> Result<(&[u8], &[u8])> {
    match decode(row)?[..] {
        [sole] => Ok(sole),
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_keys_are_counted_and_taken_by_range() {
        let key = |name: &str| Key::from(name.as_bytes());
        let (mut waiting, mut others) = (WaitingKeys::default(), WaitingKeys::default());
        ["b", "d", "b", "aa"].iter().for_each(|name| waiting.insert(key(name)));
        assert_eq!(waiting.bytes(), 4);
        assert_eq!(waiting.take_range(b"aa", Some(b"d")), [key("aa"), key("b")]);
        ["c", "d", "e"].iter().for_each(|name| others.insert(key(name)));
        waiting.merge(others);
        assert_eq!(waiting.bytes(), 3);
        assert_eq!(waiting.take_range(b"d", None), [key("d"), key("e")]);
        assert_eq!((waiting.bytes(), waiting.take_range(b"", None)), (1, vec![key("c")]));
    }

    #[test]
    fn rows_survive_the_round_trip_and_noise_is_refused() {
        let row = encode(b"key", b"history");
        assert_eq!(sole(&row).unwrap(), (&b"key"[..], &b"history"[..]));
        let two = [row.clone(), encode(b"other", b"")].concat();
        assert_eq!(decode(&two).unwrap().len(), 2);
        assert!(sole(&two).is_err() && sole(b"").is_err());
        for cut in 1..row.len() {
            assert!(decode(&row[..cut]).is_err());
        }
    }
}
