//! Callers in the background, and their latencies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use prost::Message as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use revd_proto::etcdserverpb::RangeRequest;

use crate::caller::Caller;
use crate::clock;
use crate::figures::store::{key, put};
use crate::record::histogram;
use crate::wire::RpcMethod;

/// Calls under way.
const CALLERS: usize = 20;

/// The call that is made.
#[derive(Clone, Copy)]
pub(super) enum BackgroundWork {
    Put,
    Get,
}

/// Callers at work on a thread of their own.
pub(super) struct Background {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<Latencies>>,
}

/// Latencies of all calls.
pub(super) struct Latencies {
    /// Of all calls, also those that failed, in nanoseconds.
    all: Histogram<u64>,
    pub(super) failed: usize,
}

impl Latencies {
    /// These, if there are any and none has failed.
    ///
    /// # Errors
    /// With how many have.
    pub(super) fn good(self) -> anyhow::Result<Self> {
        let (failed, calls) = (self.failed, self.all.len());
        anyhow::ensure!(calls > 0, "no call has ended");
        anyhow::ensure!(failed == 0, "{failed} of {calls} calls have failed");
        Ok(self)
    }

    /// So many of a hundred calls took no longer, in microseconds.
    pub(super) fn percentile(&self, percent: f64) -> f64 {
        self.all.value_at_percentile(percent) as f64 / 1e3
    }
}

impl Background {
    /// Starts calls to random ones of the keys.
    pub(super) fn start(endpoint: &str, work: BackgroundWork, keys: u64) -> anyhow::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (flag, caller) = (Arc::clone(&is_over), Caller::connect(endpoint)?.discarding());
        let thread = std::thread::spawn(move || call(caller, work, keys, &flag));
        Ok(Self { is_over, thread })
    }

    /// Ends them after this time.
    pub(super) fn stop_after(self, time: Duration) -> anyhow::Result<Latencies> {
        clock::rest(time);
        self.stop()
    }

    /// Ends them when their last calls are answered.
    pub(super) fn stop(self) -> anyhow::Result<Latencies> {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.join().map_err(|_| anyhow::anyhow!("the callers have panicked"))?;
        ended.context("callers in the background")
    }
}

fn call(
    mut caller: Caller,
    work: BackgroundWork,
    keys: u64,
    is_over: &AtomicBool,
) -> anyhow::Result<Latencies> {
    let mut latencies = Latencies { all: histogram(), failed: 0 };
    let mut random = SmallRng::seed_from_u64(1);
    let mut under_way = BTreeMap::new();
    loop {
        let is_over = is_over.load(Ordering::Relaxed);
        while !is_over && under_way.len() < CALLERS {
            let (number, seed) = (random.random_range(0..keys), random.random());
            let (method, body) = match work {
                BackgroundWork::Put => (RpcMethod::Put, put(number, seed).encode_to_vec()),
                BackgroundWork::Get => {
                    let get = RangeRequest { key: key(number), ..RangeRequest::default() };
                    (RpcMethod::Range, get.encode_to_vec())
                }
            };
            let token = caller.begin(method.path(), &body).context("no more streams")?;
            under_way.insert(token, clock::nanos());
        }
        if under_way.is_empty() {
            return Ok(latencies);
        }
        caller.turn(Duration::from_millis(10))?;
        let now = clock::nanos();
        for (token, outcome) in std::mem::take(&mut caller.heard.ended) {
            let Some(begun) = under_way.remove(&token) else { continue };
            latencies.all.record(now - begun)?;
            latencies.failed += usize::from(outcome.is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_failed_are_not_good_nor_are_none() {
        let latencies = |calls: u64, failed| {
            let mut all = histogram();
            (0..calls).for_each(|_| all.record(1_000).unwrap());
            Latencies { all, failed }
        };
        let failed = |latencies: Latencies| latencies.good().err().map(|error| error.to_string());
        assert_eq!(failed(latencies(10, 0)), None);
        assert_eq!(failed(latencies(10, 3)).unwrap(), "3 of 10 calls have failed");
        assert_eq!(failed(latencies(0, 0)).unwrap(), "no call has ended");
    }
}
