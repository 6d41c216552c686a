//! Revisions: when something changed.

/// Bytes of a [`RecordKey`].
pub const RECORD_KEY_BYTES: usize = 17;

/// The `sub`-th change of revision `main`. `main` counts transactions from 1, `sub` their changes
/// from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision {
    /// The transaction.
    pub main: i64,
    /// The change within it.
    pub sub: i64,
}

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RecordKind {
    /// The key has this value.
    Put = 0,
    /// The key is gone.
    Tombstone = 1,
}

/// Under which key a record is stored: its revision, then its kind; big-endian, so that bytes sort
/// as revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// When.
    pub revision: Revision,
    /// The kind of the record.
    pub kind: RecordKind,
}

impl RecordKey {
    /// ```text
    ///  0  u64  main, big-endian
    ///  8  u64  sub, big-endian
    /// 16  u8   0 put, 1 tombstone
    /// ```
    #[must_use]
    pub fn encode(self) -> [u8; RECORD_KEY_BYTES] {
        let mut out = [0; RECORD_KEY_BYTES];
        out[..8].copy_from_slice(&self.revision.main.to_be_bytes());
        out[8..16].copy_from_slice(&self.revision.sub.to_be_bytes());
        out[16] = self.kind as u8;
        out
    }

    /// Reads a record key; none if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_KEY_BYTES] = bytes.try_into().ok()?;
        let long =
            |at: usize| bytes[at..at + 8].try_into().ok().map(i64::from_be_bytes).filter(|at| *at >= 0);
        let kind = match bytes[16] {
            0 => RecordKind::Put,
            1 => RecordKind::Tombstone,
            _ => return None,
        };
        Some(Self { revision: Revision { main: long(0)?, sub: long(8)? }, kind })
    }

    /// The key etcd stores the same record under: `main '_' sub`, and `t` for a tombstone. Returns
    /// its length.
    #[must_use]
    pub fn etcd_form(self) -> ([u8; 18], usize) {
        let mut out = [0; 18];
        out[..8].copy_from_slice(&self.revision.main.to_be_bytes());
        out[8] = b'_';
        out[9..17].copy_from_slice(&self.revision.sub.to_be_bytes());
        out[17] = b't';
        (out, if self.kind == RecordKind::Tombstone { 18 } else { 17 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_revisions_and_survive_the_round_trip() {
        let mut keys = Vec::new();
        for (main, sub) in [(1, 0), (1, 1), (2, 0), (255, 0), (256, 3), (i64::MAX, i64::MAX)] {
            for kind in [RecordKind::Put, RecordKind::Tombstone] {
                keys.push(RecordKey { revision: Revision { main, sub }, kind });
            }
        }
        let bytes: Vec<_> = keys.iter().map(|key| key.encode()).collect();
        assert!(bytes.is_sorted());
        assert_eq!(bytes.iter().map(|key| RecordKey::decode(key).unwrap()).collect::<Vec<_>>(), keys);
        assert_eq!(RecordKey::decode(&[0; 16]), None);
        assert_eq!(RecordKey::decode(&[2; 17]), None);
    }
}
