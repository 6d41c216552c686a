//! The comparisons of a transaction and of those nested in it: which branches are taken.
//!
//! A comparison over a range looks at every key of it, until one does not satisfy it: so they are
//! evaluated in turns, and where a transaction is applied, within a bound.

use revd_engine::mvcc::{Direction, KeyRange, Reader, Scan, StoredRecord};
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{Compare, RequestOp, TxnRequest};

use crate::error::Error;
use crate::limits;
use crate::read::range;

/// Which branch each transaction takes, the nested ones of the taken
/// branches in order behind their parent.
pub type Path = Vec<bool>;

/// Comparisons being evaluated, all against one state.
#[derive(Debug)]
pub struct Comparing<'a> {
    reader: Reader<'a>,
    /// Nested ones whose turn has not come; the next one is last.
    waiting: Vec<&'a TxnRequest>,
    /// The one whose turn it is, and those of its comparisons that are to come.
    current: Option<(&'a TxnRequest, std::slice::Iter<'a, Compare>)>,
    comparison: Option<Comparison<'a>>,
    path: Path,
}

/// One comparison.
#[derive(Debug)]
struct Comparison<'a> {
    compare: &'a Compare,
    keys: Scan<'a>,
    is_empty: bool,
}

impl<'a> Comparing<'a> {
    /// Those of a transaction, from the first one on.
    #[must_use]
    pub fn new(reader: Reader<'a>, request: &'a TxnRequest) -> Self {
        let current = Some((request, request.compare.iter()));
        Self { reader, waiting: Vec::new(), current, comparison: None, path: Vec::new() }
    }

    /// Looks at a bounded number of comparisons and keys, fewer if values are
    /// long; true when all is decided.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn turn(&mut self, mut keys_left: usize) -> Result<bool, Error> {
        loop {
            if let Some(comparison) = &mut self.comparison {
                match comparison.turn(&self.reader, &mut keys_left)? {
                    None => return Ok(false),
                    Some(true) => self.comparison = None,
                    Some(false) => self.decide(false),
                }
            }
            if let Some((_, compares)) = &mut self.current {
                match compares.next() {
                    Some(compare) => self.comparison = Some(Comparison::new(&self.reader, compare)),
                    None => self.decide(true),
                }
                continue;
            }
            let Some(next) = self.waiting.pop() else { return Ok(true) };
            self.current = Some((next, next.compare.iter()));
            let Some(left) = keys_left.checked_sub(1) else { return Ok(false) };
            keys_left = left;
        }
    }

    fn decide(&mut self, succeeded: bool) {
        self.comparison = None;
        if let Some((request, _)) = self.current.take() {
            self.path.push(succeeded);
            self.waiting.extend(nested(branch(request, succeeded)).rev());
        }
    }

    /// The path: whole when [`Comparing::turn`] has returned true.
    #[must_use]
    pub fn path(self) -> Path {
        self.path
    }
}

impl<'a> Comparison<'a> {
    fn new(reader: &Reader<'a>, compare: &'a Compare) -> Self {
        let range = KeyRange::from_wire(&compare.key, &compare.range_end);
        Self { compare, keys: reader.scan(range, i64::MAX, Direction::Forward), is_empty: true }
    }

    /// Whether every key of the range satisfies it, once that is known; a missing key counts as all
    /// zeros, except that no comparison of its value holds.
    fn turn(&mut self, reader: &Reader<'a>, keys_left: &mut usize) -> Result<Option<bool>, Error> {
        let compare = self.compare;
        loop {
            let Some(left) = keys_left.checked_sub(1) else { return Ok(None) };
            *keys_left = left;
            let Some((_, meta)) = self.keys.next() else { break };
            self.is_empty = false;
            let record =
                if needs_record(compare) { range::stored(reader, meta)? } else { StoredRecord::default() };
            let numbers = [meta.version, meta.create_revision, meta.modified.main, record.stamp.lease];
            let most = compare.target_union.as_ref().map_or(0, operand_bytes).min(record.value.len());
            *keys_left = keys_left.saturating_sub(most / limits::COMPARED_BYTES_PER_KEY);
            if !satisfies(compare, numbers, record.value) {
                return Ok(Some(false));
            }
        }
        let for_none = || compare.target != CompareTarget::Value as i32 && satisfies(compare, [0; 4], &[]);
        Ok(Some(!self.is_empty || for_none()))
    }
}

fn needs_record(compare: &Compare) -> bool {
    compare.target == CompareTarget::Value as i32 || compare.target == CompareTarget::Lease as i32
}

fn operand_bytes(operand: &TargetUnion) -> usize {
    if let TargetUnion::Value(value) = operand { value.len() } else { 0 }
}

/// So much is looked at to compare a key.
pub(super) fn keys_per_comparison(compare: &Compare) -> u64 {
    1 + compare.target_union.as_ref().map_or(0, operand_bytes) as u64 / limits::COMPARED_BYTES_PER_KEY as u64
}

/// One key, given as version, create revision, mod revision, lease, and value. An
/// operand of another kind than the target counts as zero; an unknown target as equal;
/// an unknown operator as satisfied.
fn satisfies(compare: &Compare, [version, create, modified, lease]: [i64; 4], value: &[u8]) -> bool {
    use std::cmp::Ordering;
    let operand = compare.target_union.as_ref();
    let ordering = match CompareTarget::try_from(compare.target) {
        Ok(CompareTarget::Version) => version
            .cmp(&operand.map_or(0, |operand| if let TargetUnion::Version(it) = operand { *it } else { 0 })),
        Ok(CompareTarget::Create) => create.cmp(
            &operand.map_or(0, |operand| if let TargetUnion::CreateRevision(it) = operand { *it } else { 0 }),
        ),
        Ok(CompareTarget::Mod) => modified.cmp(
            &operand.map_or(0, |operand| if let TargetUnion::ModRevision(it) = operand { *it } else { 0 }),
        ),
        Ok(CompareTarget::Lease) => lease
            .cmp(&operand.map_or(0, |operand| if let TargetUnion::Lease(it) = operand { *it } else { 0 })),
        Ok(CompareTarget::Value) => value.cmp(
            operand.map_or(&[], |operand| if let TargetUnion::Value(it) = operand { it } else { &[][..] }),
        ),
        Err(_) => Ordering::Equal,
    };
    match CompareResult::try_from(compare.result) {
        Ok(CompareResult::Equal) => ordering.is_eq(),
        Ok(CompareResult::NotEqual) => ordering.is_ne(),
        Ok(CompareResult::Greater) => ordering.is_gt(),
        Ok(CompareResult::Less) => ordering.is_lt(),
        Err(_) => true,
    }
}

/// The operations that are carried out.
pub(super) fn branch(request: &TxnRequest, succeeded: bool) -> &[RequestOp] {
    if succeeded { &request.success } else { &request.failure }
}

/// The transactions among some operations.
fn nested(ops: &[RequestOp]) -> impl DoubleEndedIterator<Item = &TxnRequest> {
    ops.iter().filter_map(|op| match &op.request {
        Some(Request::RequestTxn(txn)) => Some(txn),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;
    use revd_engine::mvcc::Store;
    use std::sync::Arc;

    /// A turn is bounded in bytes, and so is what a logged transaction compares.
    #[test]
    fn long_values_count_as_many_keys() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let value = vec![7; 1 << 20];
        let mut txn = store.begin();
        for key in 0..20 {
            txn.put(format!("k{key:02}").as_bytes(), &value, 0);
        }
        txn.commit();
        let compare = Compare {
            key: "k".into(),
            range_end: "l".into(),
            target: CompareTarget::Value as i32,
            result: CompareResult::Equal as i32,
            target_union: Some(TargetUnion::Value(value.into())),
        };
        let request = TxnRequest { compare: vec![compare], ..TxnRequest::default() };
        let mut comparing = Comparing::new(store.reader(), &request);
        let mut turns = 1;
        while !comparing.turn(limits::RANGE_KEYS_PER_TURN).unwrap() {
            turns += 1;
        }
        assert_eq!((turns, comparing.path()), (3, vec![true]));
    }
}
