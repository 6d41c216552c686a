//! Which keys a range names, and what a Range answers about them.

use bytes::Bytes;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::{RangeRequest, RangeResponse};
use revd_proto::mvccpb::KeyValue;

/// The end of a range that has none.
const OPEN: &[u8] = b"\0";

/// Whether a range of etcd's API has this key.
#[must_use]
pub fn is_in_range(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        end => key >= start && key < end,
    }
}

/// First key, and the one behind the last; none if there is no end. A range that ends before it
/// begins is empty.
pub(crate) fn bounds(start: &Bytes, end: &Bytes) -> (Bytes, Option<Bytes>) {
    match &end[..] {
        [] => (start.clone(), Some([&start[..], OPEN].concat().into())),
        OPEN => (start.clone(), None),
        _ => (start.clone(), Some(end.max(start).clone())),
    }
}

/// Whether a Range has to look at every key before it may leave some out.
fn looks_at_all(request: &RangeRequest) -> bool {
    let RangeRequest { min_mod_revision, max_mod_revision, min_create_revision, max_create_revision, .. } =
        request;
    let filters = [min_mod_revision, max_mod_revision, min_create_revision, max_create_revision];
    let in_key_order = request.sort_order() == SortOrder::Ascend && request.sort_target() == SortTarget::Key;
    filters.iter().any(|filter| **filter != 0) || !(in_key_order || request.sort_order() == SortOrder::None)
}

fn passes(request: &RangeRequest, kv: &KeyValue) -> bool {
    let within = |at: i64, min: i64, max: i64| (min == 0 || at >= min) && (max == 0 || at <= max);
    within(kv.mod_revision, request.min_mod_revision, request.max_mod_revision)
        && within(kv.create_revision, request.min_create_revision, request.max_create_revision)
}

fn sort(request: &RangeRequest, kvs: &mut [KeyValue]) {
    match request.sort_target() {
        SortTarget::Key => {}
        SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
        SortTarget::Create => kvs.sort_by_key(|kv| kv.create_revision),
        SortTarget::Mod => kvs.sort_by_key(|kv| kv.mod_revision),
        SortTarget::Value => kvs.sort_by(|one, other| one.value.cmp(&other.value)),
    }
    if request.sort_order() == SortOrder::Descend {
        kvs.reverse();
    }
}

/// The answer, without a header, from the keys of the range in their order.
pub(crate) fn answer(request: &RangeRequest, mut kvs: Vec<KeyValue>) -> RangeResponse {
    let count = i64::try_from(kvs.len()).expect("keys fit in memory");
    if request.count_only {
        return RangeResponse { count, ..RangeResponse::default() };
    }
    let limit = usize::try_from(request.limit).unwrap_or(0);
    if limit > 0 && !looks_at_all(request) {
        kvs.truncate(limit + 1);
    }
    kvs.retain(|kv| passes(request, kv));
    sort(request, &mut kvs);
    let more = limit > 0 && kvs.len() > limit;
    if more {
        kvs.truncate(limit);
    }
    if request.keys_only {
        for kv in &mut kvs {
            kv.value = Bytes::new();
            kv.lease = 0; // etcd 3.7 answers from its index, which has no leases
        }
    }
    RangeResponse { header: None, kvs, more, count }
}
