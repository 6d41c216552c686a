//! The checks of a request before anything is done for it, in etcd's order and with etcd's errors.

use std::collections::BTreeSet;

use revd_member::error::Error;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, range_request,
};

use crate::limits;

/// etcd wraps a proposal in an envelope before it compares its size with `--max-request-bytes`.
const ENVELOPE_BYTES: usize = 16;

/// Bounds an operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
    /// `--max-request-bytes`
    pub request_bytes_max: usize,
    /// `--max-txn-ops`
    pub txn_ops_max: usize,
}

impl RequestLimits {
    /// Parts of a transaction that is decoded at all: all that one without nested ones may have,
    /// or what is enough for those of anybody.
    #[must_use]
    pub fn txn_parts_max(&self) -> usize {
        const COMPARISONS_AND_TWO_BRANCHES: usize = 1 + 2 * 2;
        limits::TXN_PARTS_MAX.max(self.txn_ops_max.saturating_mul(COMPARISONS_AND_TWO_BRANCHES))
    }
}

/// Checks a range.
///
/// # Errors
/// The error that the client gets.
pub fn range(request: &RangeRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if range_request::SortOrder::try_from(request.sort_order).is_err()
        || range_request::SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Error::InvalidSortOption);
    }
    Ok(())
}

/// Checks a put.
///
/// # Errors
/// The error that the client gets.
pub fn put(request: &PutRequest) -> Result<(), Error> {
    if request.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

/// Checks a delete.
///
/// # Errors
/// The error that the client gets.
pub fn delete_range(request: &DeleteRangeRequest) -> Result<(), Error> {
    if request.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Checks a message that is to be proposed.
///
/// # Errors
/// The error that the client gets.
pub fn proposal_size(message_bytes: usize, limits: RequestLimits) -> Result<(), Error> {
    if message_bytes + ENVELOPE_BYTES > limits.request_bytes_max {
        return Err(Error::RequestTooLarge);
    }
    Ok(())
}

/// Checks a transaction: sizes and operations first, then that no key is changed twice.
///
/// # Errors
/// The error that the client gets.
pub fn txn(request: &TxnRequest, limits: RequestLimits) -> Result<(), Error> {
    operations(request, limits.txn_ops_max)?;
    // etcd looks at each branch on its own: both may put the same key.
    changed_keys(&request.success)?;
    changed_keys(&request.failure)?;
    Ok(())
}

fn operations(request: &TxnRequest, ops_max: usize) -> Result<(), Error> {
    let longest = request.compare.len().max(request.success.len()).max(request.failure.len());
    if longest > ops_max {
        return Err(Error::TooManyOperations);
    }
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|op| operation(op, ops_max - longest))
}

fn operation(op: &RequestOp, nested_ops_max: usize) -> Result<(), Error> {
    match &op.request {
        Some(Request::RequestRange(request)) => range(request),
        Some(Request::RequestPut(request)) => put(request),
        Some(Request::RequestDeleteRange(request)) => delete_range(request),
        Some(Request::RequestTxn(request)) => operations(request, nested_ops_max),
        None => Err(Error::KeyNotFound),
    }
}

/// The changes of one branch.
#[derive(Debug, Default)]
struct Changes<'r> {
    puts: BTreeSet<&'r [u8]>,
    deletes: Deletes<'r>,
}

/// Deleted ranges: `start <= key < end`, and those without end. etcd takes the range end literally
/// here: "\0", which elsewhere means "to the last key", makes a range that holds nothing.
#[derive(Debug, Default)]
struct Deletes<'r> {
    keys: BTreeSet<&'r [u8]>,
    /// Disjoint, by start; overlapping ones are merged.
    ranges: std::collections::BTreeMap<&'r [u8], &'r [u8]>,
}

impl<'r> Deletes<'r> {
    fn add(&mut self, request: &'r DeleteRangeRequest) {
        let (start, end) = (&request.key[..], &request.range_end[..]);
        if end.is_empty() {
            self.keys.insert(start);
        } else if start < end {
            self.add_range(start, end);
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        self.keys.contains(key) || self.ranges.range(..=key).next_back().is_some_and(|(_, end)| key < *end)
    }

    fn merge(&mut self, other: Self) {
        self.keys.extend(other.keys);
        for (start, end) in other.ranges {
            self.add_range(start, end);
        }
    }

    fn add_range(&mut self, mut start: &'r [u8], mut end: &'r [u8]) {
        if let Some((before, before_end)) = self.ranges.range(..=start).next_back()
            && *before_end >= start
        {
            end = end.max(before_end);
            start = before;
        }
        while let Some((next, next_end)) = self.ranges.range(start..=end).next() {
            let (next, next_end) = (*next, *next_end);
            end = end.max(next_end);
            self.ranges.remove(next);
        }
        self.ranges.insert(start, end);
    }
}

/// The changes of a branch, nested transactions included: an error if a key is put twice, or put
/// and deleted. The two branches of a nested transaction may put the same keys, since only one of
/// them is taken.
fn changed_keys(ops: &[RequestOp]) -> Result<Changes<'_>, Error> {
    let mut changes = Changes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(request)) = &op.request {
            changes.deletes.add(request);
        }
    }
    for op in ops {
        let Some(Request::RequestTxn(request)) = &op.request else { continue };
        let then = changed_keys(&request.success)?;
        let otherwise = changed_keys(&request.failure)?;
        let nested: BTreeSet<&[u8]> = then.puts.union(&otherwise.puts).copied().collect();
        for key in nested {
            if changes.deletes.contains(key) || !changes.puts.insert(key) {
                return Err(Error::DuplicateKey);
            }
        }
        changes.deletes.merge(then.deletes);
        changes.deletes.merge(otherwise.deletes);
    }
    for op in ops {
        if let Some(Request::RequestPut(request)) = &op.request
            && (changes.deletes.contains(&request.key) || !changes.puts.insert(&request.key))
        {
            return Err(Error::DuplicateKey);
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits = RequestLimits { request_bytes_max: 1000, txn_ops_max: 4 };

    fn op(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put_of(key: &'static str) -> RequestOp {
        op(Request::RequestPut(PutRequest { key: key.into(), ..PutRequest::default() }))
    }

    fn delete_of(key: &'static str, range_end: &'static str) -> RequestOp {
        let range_end = range_end.into();
        op(Request::RequestDeleteRange(DeleteRangeRequest { key: key.into(), range_end, prev_kv: false }))
    }

    fn txn_of(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> TxnRequest {
        TxnRequest { compare: vec![], success, failure }
    }

    fn nested(success: Vec<RequestOp>, failure: Vec<RequestOp>) -> RequestOp {
        op(Request::RequestTxn(txn_of(success, failure)))
    }

    #[test]
    fn a_key_is_changed_once_on_any_path() {
        let refused = Err(Error::DuplicateKey);
        let check = |success| txn(&txn_of(success, vec![]), LIMITS);
        assert_eq!(check(vec![put_of("a"), put_of("a")]), refused);
        assert_eq!(check(vec![put_of("b"), delete_of("a", "c")]), refused);
        assert_eq!(check(vec![put_of("c"), delete_of("a", "c")]), Ok(()));
        assert_eq!(check(vec![delete_of("a", "c"), delete_of("b", "")]), Ok(()));
        assert_eq!(check(vec![nested(vec![put_of("a")], vec![put_of("a")])]), Ok(()));
        assert_eq!(check(vec![nested(vec![put_of("a")], vec![]), put_of("a")]), refused);
        assert_eq!(check(vec![nested(vec![], vec![delete_of("a", "")]), put_of("a")]), refused);
        assert_eq!(
            check(vec![nested(vec![put_of("a")], vec![]), nested(vec![put_of("a")], vec![])]),
            refused
        );
        assert_eq!(txn(&txn_of(vec![put_of("a")], vec![put_of("a")]), LIMITS), Ok(()));
    }

    #[test]
    fn the_open_end_is_taken_literally_as_etcd_does() {
        assert_eq!(txn(&txn_of(vec![delete_of("a", "\0"), put_of("b")], vec![]), LIMITS), Ok(()));
    }

    #[test]
    fn deleted_ranges_merge() {
        let ops = vec![delete_of("m", "p"), delete_of("a", "c"), delete_of("b", "n")];
        let changes = changed_keys(&ops).unwrap();
        assert_eq!(changes.deletes.ranges.into_iter().collect::<Vec<_>>(), [(&b"a"[..], &b"p"[..])]);
    }

    #[test]
    fn nested_transactions_share_the_limit() {
        let three = || vec![put_of("a"), put_of("b"), put_of("c")];
        assert_eq!(txn(&txn_of(vec![nested(three(), vec![])], vec![]), LIMITS), Ok(()));
        let four = vec![put_of("a"), put_of("b"), put_of("c"), put_of("d")];
        assert_eq!(txn(&txn_of(vec![nested(four, vec![])], vec![]), LIMITS), Err(Error::TooManyOperations));
    }
}
