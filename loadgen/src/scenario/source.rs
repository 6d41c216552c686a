//! Everything that one thread of a plan does: its operations, by their weights.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::plan::{OpKind, Plan};
use crate::scenario::operation::{KeyEnd, OpParts, Operation};
use crate::scenario::{kv, lease, lock, txn};

/// Everything that one thread does.
pub(crate) struct OpSource {
    ops: Vec<Box<dyn Operation>>,
    /// Sums of weights.
    until: Vec<u32>,
    random: SmallRng,
}

impl OpSource {
    /// The operations of thread `thread` of a plan.
    pub(crate) fn new(plan: &Plan, thread: usize) -> Self {
        let mut sum = 0;
        let mut until = Vec::new();
        let mut ops: Vec<Box<dyn Operation>> = Vec::new();
        for (index, op) in plan.ops.iter().enumerate() {
            sum += op.weight;
            until.push(sum);
            ops.push(operation(&OpParts { plan, op, thread, index }));
        }
        let seed = plan.seed.wrapping_mul(31).wrapping_add(thread as u64);
        Self { ops, until, random: SmallRng::seed_from_u64(seed) }
    }

    /// Chooses the next operation of a caller.
    pub(crate) fn choose(&mut self) -> usize {
        let sum = self.until.last().copied().unwrap_or(0);
        if self.ops.len() < 2 || sum == 0 {
            return 0;
        }
        let at = self.random.random_range(0..sum);
        self.until.iter().position(|until| at < *until).unwrap_or(0)
    }

    pub(crate) fn op(&mut self, op: usize) -> &mut dyn Operation {
        &mut *self.ops[op]
    }

    /// An event for a key that is gone: which operation waited for it, and whether it is in time.
    pub(crate) fn gone(&mut self, key: &[u8], now: u64) -> Option<(usize, KeyEnd)> {
        self.ops.iter_mut().enumerate().find_map(|(at, op)| op.gone(key, now).map(|end| (at, end)))
    }

    /// Keys that should go and have not.
    pub(crate) fn waiting(&self) -> u64 {
        self.ops.iter().map(|op| op.waiting()).sum()
    }
}

fn operation(parts: &OpParts<'_>) -> Box<dyn Operation> {
    match &parts.op.kind {
        OpKind::Put { prev_kv } => Box::new(kv::PutOperation::new(parts, *prev_kv)),
        OpKind::Get { serializable } => Box::new(kv::GetOperation::new(parts, *serializable)),
        // Of all calls that show that a connection serves, this one costs least.
        OpKind::Connect => Box::new(kv::GetOperation::new(parts, true)),
        OpKind::Range(range) => Box::new(kv::RangeOperation::new(parts, range.clone())),
        OpKind::Delete => Box::new(kv::DeleteOperation::new(parts)),
        OpKind::Cas => Box::new(txn::CasOperation::new(parts)),
        OpKind::Txn { puts } => Box::new(txn::PutsOperation::new(parts, *puts)),
        OpKind::LeaseGrant { ttl } => Box::new(lease::GrantOperation::new(*ttl)),
        OpKind::LeaseKeepAlive { ttl } => Box::new(lease::KeepAliveOperation::new(*ttl)),
        OpKind::LeaseExpiry { ttl } => Box::new(lease::ExpiryOperation::new(parts, *ttl)),
        OpKind::Lock { locks } => Box::new(lock::LockOperation::new(parts, *locks)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlannedOp;

    #[test]
    fn operations_come_by_their_weights() {
        let op = |weight| PlannedOp { weight, ..PlannedOp::new(OpKind::Cas) };
        let plan = Plan { ops: vec![op(1), op(0), op(9)], ..Plan::default() };
        let mut source = OpSource::new(&plan, 0);
        let mut counts = [0; 3];
        for _ in 0..10_000 {
            counts[source.choose()] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!((800..1200).contains(&counts[0]), "{counts:?}");
    }
}
