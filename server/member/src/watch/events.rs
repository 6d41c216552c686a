//! From stored records to encoded events.
//!
//! A stored record is an encoded `mvccpb.KeyValue` already; a tombstone holds the key only and gets
//! its revision here.

use bytes::Bytes;
use revd_engine::mvcc::revision::{RecordKey, RecordKind};
use revd_engine::mvcc::{Reader, StoredRecord};
use revd_engine::{Error, Result, varint};
use revd_proto::tags::{event, key_value, watch_response};

use crate::wire::{put_field, put_number, put_varint};

const DELETE: i64 = 1;

/// Which events a watcher wants, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Selection {
    pub(super) prev_kv: bool,
    pub(super) no_put: bool,
    pub(super) no_delete: bool,
}

impl Selection {
    pub(super) fn index(self) -> u8 {
        u8::from(self.prev_kv) | u8::from(self.no_put) << 1 | u8::from(self.no_delete) << 2
    }

    /// The one that has this index.
    pub(super) fn of_index(index: u8) -> Self {
        Self { prev_kv: index & 1 != 0, no_put: index & 2 != 0, no_delete: index & 4 != 0 }
    }

    fn passes(self, kind: RecordKind) -> bool {
        match kind {
            RecordKind::Put => !self.no_put,
            RecordKind::Tombstone => !self.no_delete,
        }
    }
}

/// The event that a record is.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecordEvent<'v> {
    pub(super) revision: i64,
    pub(super) key: &'v [u8],
    kind: RecordKind,
    record: &'v [u8],
    /// The put that begins a key's life.
    is_create: bool,
}

impl<'v> RecordEvent<'v> {
    pub(super) fn read(key: RecordKey, record: &'v [u8]) -> Result<Self> {
        let stored = StoredRecord::parse(record).ok_or_else(|| {
            Error::Corrupt(format!("the record of revision {} cannot be read", key.revision.main))
        })?;
        Ok(Self {
            revision: key.revision.main,
            key: stored.key,
            kind: key.kind,
            record,
            is_create: stored.stamp.create_revision == key.revision.main,
        })
    }

    /// The key as it was before this revision, unless it was not there or a compaction took it.
    fn previous(&self, reader: &Reader<'v>) -> Result<Option<&'v [u8]>> {
        let before = self.revision - 1;
        if self.is_create || before < reader.compact_revision() {
            return Ok(None);
        }
        reader.get(self.key, before).map(|meta| reader.record(meta.modified)).transpose()
    }

    /// Appends it as one more event, if it is wanted.
    pub(super) fn encode(&self, wanted: Selection, reader: &Reader<'v>, out: &mut Vec<u8>) -> Result<()> {
        if !wanted.passes(self.kind) {
            return Ok(());
        }
        let previous = if wanted.prev_kv { self.previous(reader)? } else { None };
        let is_delete = self.kind == RecordKind::Tombstone;
        let revision = self.revision.cast_unsigned();
        let kv_len = self.record.len() + if is_delete { 1 + varint::len(revision) } else { 0 };
        let field_len = |len: usize| 1 + varint::len(len as u64) + len;
        let event_len = if is_delete { 2 } else { 0 }
            + field_len(kv_len)
            + previous.map_or(0, |previous| field_len(previous.len()));
        out.reserve(field_len(event_len));
        out.push(watch_response::EVENTS);
        put_varint(out, event_len as u64);
        if is_delete {
            put_number(out, event::TYPE, DELETE);
        }
        out.push(event::KV);
        put_varint(out, kv_len as u64);
        out.extend_from_slice(self.record);
        if is_delete {
            put_number(out, key_value::MOD_REVISION, self.revision);
        }
        if let Some(previous) = previous {
            put_field(out, event::PREV_KV, previous);
        }
        Ok(())
    }
}

/// Cuts encoded events so that each part is shorter than `bytes_max`, but has one event at least.
pub(super) fn fragments(mut events: Bytes, bytes_max: usize) -> Vec<Bytes> {
    let mut parts = Vec::new();
    while !events.is_empty() {
        let mut end = 0;
        while end < events.len() {
            let next = end + event_len(&events[end..]);
            if end > 0 && next >= bytes_max {
                break;
            }
            end = next;
        }
        parts.push(events.split_to(end));
    }
    parts
}

/// Length of the first event with its tag and length; we encoded it ourselves.
fn event_len(events: &[u8]) -> usize {
    let mut rest = &events[1..];
    let len = varint::take(&mut rest).and_then(|len| usize::try_from(len).ok());
    events.len() - rest.len() + len.unwrap_or(rest.len()).min(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_hold_whole_events_in_order() {
        let mut events = Vec::new();
        for len in [10_usize, 200, 1, 0, 500, 3] {
            events.push(watch_response::EVENTS);
            put_varint(&mut events, len as u64);
            events.extend(std::iter::repeat_n(7, len));
        }
        let events = Bytes::from(events);
        for bytes_max in [1, 20, 210, 230, 500, 10_000] {
            let parts = fragments(events.clone(), bytes_max);
            assert_eq!(parts.concat(), events);
            for part in &parts {
                assert!(part.len() < bytes_max || event_len(part) == part.len(), "{bytes_max}");
            }
        }
        assert_eq!(fragments(events, 10_000).len(), 1);
    }
}
