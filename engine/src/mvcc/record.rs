//! A stored record: the protobuf encoding of `mvccpb.KeyValue`, byte for byte what etcd stores.
//!
//! Fields in order of their numbers, zero values left out: 1 key, 2 create revision, 3 mod
//! revision, 4 version, 5 value, 6 lease. A tombstone holds only the key.

use crate::key_parts::KeyParts;
use crate::{Error, Result, varint};

/// Bytes of head and foot around key and value at most.
const FRAME_MAX: usize = 64;

/// Bytes of the length of a key or value; neither has 2^42 bytes.
const LENGTH_BYTES_MAX: usize = 6;

// Six tags, two lengths and four numbers.
const _: () = assert!(FRAME_MAX >= 6 + 2 * LENGTH_BYTES_MAX + 4 * varint::BYTES_MAX);

/// The numbers that a put stores besides key and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Revision of the put that began this generation.
    pub create_revision: i64,
    /// Revision of this put.
    pub mod_revision: i64,
    /// Puts in this generation.
    pub version: i64,
    /// Lease it is attached to, 0 for none.
    pub lease: i64,
}

/// Encodes a put's record and hands it over in parts, so that key and value are copied once.
pub fn encode_put<'k, T>(
    key: impl Into<KeyParts<'k>>,
    value: &[u8],
    stamp: Stamp,
    use_parts: impl FnOnce(&[&[u8]]) -> T,
) -> T {
    let key = key.into();
    let Stamp { create_revision: created, mod_revision: modified, version, .. } = stamp;
    debug_assert!(
        version > 0 && (0..=modified).contains(&created),
        "version {version} of a key, created at {created} and put at {modified}"
    );
    let mut frame = RecordFrame::default();
    frame.bytes_field(0x0a, key.len());
    let head = frame.len;
    frame.number(0x10, stamp.create_revision);
    frame.number(0x18, stamp.mod_revision);
    frame.number(0x20, stamp.version);
    if !value.is_empty() {
        frame.bytes_field(0x2a, value.len());
    }
    let middle = frame.len;
    frame.number(0x30, stamp.lease);
    let (bytes, [begin, rest]) = (&frame.bytes, key.parts());
    use_parts(&[&bytes[..head], begin, rest, &bytes[head..middle], value, &bytes[middle..frame.len]])
}

/// Encodes a tombstone's record.
pub fn encode_tombstone<T>(key: &[u8], use_parts: impl FnOnce(&[&[u8]]) -> T) -> T {
    let mut frame = RecordFrame::default();
    frame.bytes_field(0x0a, key.len());
    use_parts(&[&frame.bytes[..frame.len], key])
}

/// The small pieces between key and value.
struct RecordFrame {
    bytes: [u8; FRAME_MAX],
    len: usize,
}

impl Default for RecordFrame {
    fn default() -> Self {
        Self { bytes: [0; FRAME_MAX], len: 0 }
    }
}

impl RecordFrame {
    fn varint(&mut self, value: u64) {
        let (bytes, len) = varint::encode(value);
        self.bytes[self.len..self.len + len].copy_from_slice(&bytes[..len]);
        self.len += len;
    }

    fn byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn bytes_field(&mut self, tag: u8, len: usize) {
        self.byte(tag);
        self.varint(len as u64);
    }

    fn number(&mut self, tag: u8, value: i64) {
        if value != 0 {
            self.byte(tag);
            self.varint(value.cast_unsigned());
        }
    }
}

/// A stored record's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredRecord<'r> {
    /// The key.
    pub key: &'r [u8],
    /// The value, empty for a tombstone.
    pub value: &'r [u8],
    /// Revisions, version, lease; zeros for a tombstone.
    pub stamp: Stamp,
}

impl<'r> StoredRecord<'r> {
    /// Reads a record; none if it is malformed.
    #[must_use]
    pub fn parse(mut bytes: &'r [u8]) -> Option<Self> {
        let mut record = Self::default();
        while let Some((tag, rest)) = bytes.split_first() {
            bytes = rest;
            let number = varint::take(&mut bytes)?;
            if matches!(tag, 0x0a | 0x2a) {
                let len = usize::try_from(number).ok()?;
                let (field, rest) = bytes.split_at_checked(len)?;
                bytes = rest;
                *if *tag == 0x0a { &mut record.key } else { &mut record.value } = field;
                continue;
            }
            let number = number.cast_signed();
            match tag {
                0x10 => record.stamp.create_revision = number,
                0x18 => record.stamp.mod_revision = number,
                0x20 => record.stamp.version = number,
                0x30 => record.stamp.lease = number,
                _ => return None,
            }
        }
        Some(record)
    }
}

/// The user key of a record as it is stored.
///
/// # Errors
/// When the record cannot be read.
pub(crate) fn key_of(record: &[u8]) -> Result<&[u8]> {
    let record = StoredRecord::parse(record).ok_or_else(|| Error::corrupt("a record cannot be read"))?;
    Ok(record.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_encoded_as_protobuf_demands() {
        let stamp = Stamp { create_revision: 2, mod_revision: 300, version: 3, lease: -1 };
        let bytes = encode_put(&b"k"[..], b"vv", stamp, |parts| parts.concat());
        let mut expected = b"\x0a\x01k\x10\x02\x18\xac\x02\x20\x03\x2a\x02vv\x30".to_vec();
        expected.extend_from_slice(&[0xff; 9]);
        expected.push(1);
        assert_eq!(bytes, expected);
        let record = StoredRecord::parse(&bytes).unwrap();
        assert_eq!(record, StoredRecord { key: b"k", value: b"vv", stamp });
        let plain = encode_put(&b"k"[..], b"", Stamp { lease: 0, ..stamp }, |parts| parts.concat());
        assert_eq!(plain, b"\x0a\x01k\x10\x02\x18\xac\x02\x20\x03");
        assert_eq!(encode_tombstone(b"key", |parts| parts.concat()), b"\x0a\x03key");
    }

    #[test]
    fn noise_is_refused_or_read_but_never_panics() {
        let stamp = Stamp { create_revision: 2, mod_revision: 3, version: 1, lease: 9 };
        let bytes = encode_put(&b"key"[..], b"value", stamp, |parts| parts.concat());
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let _ = StoredRecord::parse(&bad);
                let _ = StoredRecord::parse(&bytes[..at]);
            }
        }
    }
}
