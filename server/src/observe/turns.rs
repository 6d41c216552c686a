//! How long the turns of loops take: other tasks of a core wait as long as one lasts.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::clock::{self, Ticker};
use crate::limits;
use crate::observe::count::Count;
use crate::observe::exposition::{Exposition, Kind};
use crate::observe::log;

/// A loop that works in turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loop {
    /// Of an HTTP/2 connection: what came, its calls, what goes.
    Connection,
    /// A step of the hub of watches: what is new, and the past for those who lag.
    Watches,
    /// Of the state core: apply, publish, begin a checkpoint.
    State,
}

/// Buckets, by the binary logarithm of microseconds; the last one has no end.
const BUCKETS: usize = 24;
/// Metrics say how many turns took less than so many microseconds: the end of every other bucket
/// from a quarter of a millisecond to a second.
const ENDS: [usize; 7] = [8, 10, 12, 14, 16, 18, 20];

/// Core view: written by its core alone, read by anyone.
#[derive(Debug)]
pub struct Turns {
    loops: [[Count; BUCKETS]; Loop::ALL.len()],
    /// Microseconds of all turns.
    took: [Count; Loop::ALL.len()],
    clock: Ticker,
    /// When a turn was last complained of, in milliseconds; and how many came too soon after one to
    /// be told of.
    told: AtomicU64,
    untold: Count,
}

impl Loop {
    /// Every loop, in the order of their declaration.
    pub const ALL: [Self; 3] = [Self::Connection, Self::Watches, Self::State];

    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Watches => "watches",
            Self::State => "state",
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            loops: std::array::from_fn(|_| std::array::from_fn(|_| Count::default())),
            took: std::array::from_fn(|_| Count::default()),
            clock: Ticker::new(),
            told: AtomicU64::new(0),
            untold: Count::default(),
        }
    }
}

impl Turns {
    /// A turn took so many microseconds. If that is far too long, the log says so with what `doing`
    /// says of it.
    #[inline]
    pub fn record(&self, which: Loop, microseconds: u64, doing: impl FnOnce() -> Value) {
        let bucket = (u64::BITS - microseconds.leading_zeros()) as usize;
        let count = &self.loops[which as usize][bucket.min(BUCKETS - 1)];
        count.set(count.get() + 1);
        let took = &self.took[which as usize];
        took.set(took.get().saturating_add(microseconds));
        if microseconds >= limits::TURN_FAR_TOO_LONG_MICROSECONDS {
            self.tell(which, microseconds, doing);
        }
    }

    /// Does work that is a turn, or a part of one worth a look of its own.
    pub fn timed<T>(&self, which: Loop, doing: impl FnOnce() -> Value, work: impl FnOnce() -> T) -> T {
        let began = clock::now();
        let done = work();
        let took = clock::since(began).as_micros();
        self.record(which, u64::try_from(took).unwrap_or(u64::MAX), doing);
        done
    }

    #[cold]
    fn tell(&self, which: Loop, microseconds: u64, doing: impl FnOnce() -> Value) {
        let now = self.clock.milliseconds() + 1;
        let told = self.told.load(Ordering::Relaxed);
        if told != 0 && now < told + limits::TURN_WARNING_MILLISECONDS {
            return self.untold.set(self.untold.get() + 1);
        }
        self.told.store(now, Ordering::Relaxed);
        let untold = self.untold.get();
        self.untold.set(0);
        let fields = json!({
            "loop": which.name(),
            "took-ms": microseconds / 1000,
            "doing": doing(),
            "others-not-logged": untold,
        });
        log::warn("a turn took far too long: others of its core had to wait", fields);
    }

    /// How many turns there were.
    #[must_use]
    pub fn total(&self, which: Loop) -> u64 {
        self.before(which, BUCKETS)
    }

    /// How many turns fell into the first so many buckets.
    fn before(&self, which: Loop, buckets: usize) -> u64 {
        self.loops[which as usize][..buckets].iter().map(Count::get).sum()
    }
}

/// Adds the metrics of several cores together.
pub fn write<'t>(cores: impl Iterator<Item = &'t Turns> + Clone, to: &mut Exposition) {
    let help = "How long turns of the loops took: other tasks of a core wait as long as one lasts.";
    let mut family = to.family("revd_turn_duration_seconds", Kind::Histogram, help);
    for which in Loop::ALL {
        let sum = |of: &dyn Fn(&Turns) -> u64| cores.clone().map(of).fold(0, u64::saturating_add);
        let name = which.name();
        for end in ENDS {
            // Bucket `n` holds what is below `2^n`.
            let before = sum(&|turns| turns.before(which, end + 1));
            let end = seconds(1 << end).to_string();
            family.sample("_bucket", &[("loop", name), ("le", &end)], before);
        }
        let (total, took) =
            (sum(&|turns| turns.total(which)), sum(&|turns| turns.took[which as usize].get()));
        family.sample("_bucket", &[("loop", name), ("le", "+Inf")], total);
        family.sample("_sum", &[("loop", name)], seconds(took));
        family.sample("_count", &[("loop", name)], total);
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_counted_by_how_long_they_took() {
        let cores = [Turns::default(), Turns::default()];
        for (core, microseconds) in [(0, 0), (0, 255), (1, 256), (1, 1_023), (0, 70_000), (0, u64::MAX)] {
            cores[core].record(Loop::Connection, microseconds, || json!({}));
        }
        assert_eq!(cores[0].timed(Loop::State, || json!({}), || 7), 7);
        assert_eq!((cores[0].total(Loop::Connection), cores[0].total(Loop::State)), (4, 1));
        let mut text = Exposition::default();
        write(cores.iter(), &mut text);
        let text = text.into_text();
        let has = |line: &str| assert!(text.lines().any(|own| own == line), "no {line} in {text}");
        for (end, turns) in [("0.000256", 2), ("0.001024", 4), ("0.065536", 4), ("0.262144", 5), ("+Inf", 6)]
        {
            has(&format!("revd_turn_duration_seconds_bucket{{loop=\"connection\",le=\"{end}\"}} {turns}"));
        }
        has("revd_turn_duration_seconds_bucket{loop=\"state\",le=\"+Inf\"} 1");
        has("revd_turn_duration_seconds_count{loop=\"connection\"} 6");
        has("revd_turn_duration_seconds_sum{loop=\"watches\"} 0");
    }

    #[test]
    fn complaints_about_turns_are_few() {
        let turns = Turns::default();
        let mut told = 0;
        for _ in 0..100 {
            turns.record(Loop::State, limits::TURN_FAR_TOO_LONG_MICROSECONDS, || {
                told += 1;
                json!({})
            });
        }
        assert_eq!((told, turns.untold.get()), (1, 99));
    }
}
