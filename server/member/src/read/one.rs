//! A get as most are: of one key, without a filter. Its answer is that of a [range](super::range),
//! but found by one search of the index, and copied once.

use revd_engine::mvcc::Reader;
use revd_engine::varint;
use revd_proto::etcdserverpb::RangeRequest;
use revd_proto::etcdserverpb::range_request::SortTarget;
use revd_proto::tags::range_response;

use crate::budget::Share;
use crate::error::Error;
use crate::limits::REPLY_CHUNK_BYTES;
use crate::read::range::{FIELDS_ROOM, has_filter};
use crate::wire::{put_field, put_number};

/// Whether a request is such a get.
#[must_use]
pub fn is_plain(request: &RangeRequest) -> bool {
    request.range_end.is_empty()
        && !request.count_only
        && !request.keys_only
        && request.sort_target == SortTarget::Key as i32
        && !has_filter(request)
}

/// The answer to such a get.
#[derive(Debug, Clone, Copy)]
pub struct FoundKey<'r>(Option<&'r [u8]>);

/// Looks the key of such a get up.
///
/// # Errors
/// As [`RangeRun::new`](super::range::RangeRun::new); when the record cannot be read.
pub fn find<'r>(request: &RangeRequest, reader: &Reader<'r>) -> Result<FoundKey<'r>, Error> {
    let at = reader.resolve(request.revision)?;
    let record = reader.get(&request.key, at).map(|meta| reader.record(meta.modified));
    Ok(FoundKey(record.transpose()?))
}

impl FoundKey<'_> {
    /// Bytes that are put.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const COUNT: usize = 2;
        self.0.map_or(0, |record| 1 + varint::len(record.len() as u64) + record.len() + COUNT)
    }

    /// Whether there is room for it now, where there is for a range of this key. As of any range,
    /// those of its chunks count that are full.
    #[must_use]
    pub fn fits(&self, replies: &Share) -> bool {
        let bytes = self.bytes();
        bytes < REPLY_CHUNK_BYTES || replies.fits(bytes + FIELDS_ROOM)
    }

    /// Appends everything of the `RangeResponse` but its header.
    pub fn put(&self, out: &mut Vec<u8>) {
        if let Some(record) = self.0 {
            put_field(out, range_response::KVS, record);
            put_number(out, range_response::COUNT, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;

    use crate::budget::Budget;
    use crate::read::range;

    /// Keys that are there, were, and never were, at every revision: as a range finds them.
    #[test]
    fn a_get_is_answered_as_a_range_is() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        for number in 0..40_u8 {
            let mut txn = store.begin();
            let key = [b'k', number % 7];
            if number % 5 == 4 {
                let _ = txn.delete_range(revd_engine::mvcc::KeyRange::One(&key));
            } else {
                txn.put(&key, &vec![number; usize::from(number) * 9], 0);
            }
            txn.commit();
        }
        store.compact(9).unwrap();
        let view = store.view();
        let mut found = 0;
        for revision in -1..60 {
            for key in 0..9 {
                for limit in [0, 1, -1] {
                    let key = vec![b'k', key].into();
                    let request = RangeRequest { key, revision, limit, ..RangeRequest::default() };
                    assert!(is_plain(&request));
                    let answer = find(&request, &view.reader()).map(|found| {
                        let mut out = Vec::new();
                        found.put(&mut out);
                        assert_eq!(out.len(), found.bytes());
                        out
                    });
                    let share = Share::new(usize::MAX);
                    let expected = range::answer(&request, view.reader(), &share);
                    found += usize::from(answer.as_ref().is_ok_and(|body| !body.is_empty()));
                    assert_eq!(answer, expected.map(|body| body.concat()), "{request:?}");
                }
            }
        }
        assert!(found > 100, "{found}");
    }

    /// Values about as long as a connection's part of a small budget: what may be answered at once
    /// may be answered as any range, or a client would be told that its reply is too large now and
    /// then.
    #[test]
    fn a_get_that_fits_is_no_range_that_is_too_large() {
        let budget = Budget::new(8 * REPLY_CHUNK_BYTES);
        let share = budget.share();
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions::default()).unwrap();
        let (mut fitting, mut refused) = (0, 0);
        for bytes in
            (0..5 * REPLY_CHUNK_BYTES).step_by(4096).chain(4 * REPLY_CHUNK_BYTES - 90..4 * REPLY_CHUNK_BYTES)
        {
            let mut txn = store.begin();
            txn.put(b"k", &vec![7; bytes], 0);
            txn.commit();
            let view = store.view();
            let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
            let answer = range::answer(&request, view.reader(), &share);
            if find(&request, &view.reader()).unwrap().fits(&share) {
                fitting += 1;
                assert!(answer.is_ok(), "{bytes}");
            } else {
                refused += 1;
                assert!(bytes > 4 * REPLY_CHUNK_BYTES - 90, "{bytes} fit without reason to refuse them");
            }
        }
        assert!(fitting > 60 && refused > 10, "{fitting} {refused}");
    }

    #[test]
    fn a_get_that_asks_for_more_is_not_plain() {
        let plain = RangeRequest { key: "k".into(), serializable: true, ..RangeRequest::default() };
        assert!(is_plain(&plain));
        for other in [
            RangeRequest { range_end: "l".into(), ..plain.clone() },
            RangeRequest { count_only: true, ..plain.clone() },
            RangeRequest { keys_only: true, ..plain.clone() },
            RangeRequest { sort_target: SortTarget::Value as i32, ..plain.clone() },
            RangeRequest { min_mod_revision: 1, ..plain.clone() },
            RangeRequest { max_mod_revision: 1, ..plain.clone() },
            RangeRequest { min_create_revision: 1, ..plain.clone() },
            RangeRequest { max_create_revision: 1, ..plain },
        ] {
            assert!(!is_plain(&other), "{other:?}");
        }
    }
}
