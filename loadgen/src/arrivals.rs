//! When calls are meant to begin: the open loop. Calls begin by this clock, whether earlier ones
//! have ended or not, so that a server that stalls shows (no coordinated omission).

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp1};
use serde::{Deserialize, Serialize};

/// The rate over time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrivalShape {
    /// Always the same distance.
    #[default]
    Constant,
    /// Independent of each other, as of many users.
    Poisson,
    /// From nothing to the rate over the whole run.
    Ramp,
    /// Half the rate, then all of it in the second half of the run.
    Step,
    /// Between half and all of it, a wave every ten seconds.
    Sine,
}

impl std::str::FromStr for ArrivalShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "constant" => Self::Constant,
            "poisson" => Self::Poisson,
            "ramp" => Self::Ramp,
            "step" => Self::Step,
            "sine" => Self::Sine,
            _ => {
                return Err(format!(
                    "`{text}` is no arrival shape: constant, poisson, ramp, step or sine are"
                ));
            }
        })
    }
}

/// Nanoseconds of a wave.
const WAVE: f64 = 10e9;
/// A rate is never less than this share of what was asked for.
const LEAST_SHARE: f64 = 0.01;

/// The clock of one thread.
#[derive(Debug)]
pub struct Arrivals {
    shape: ArrivalShape,
    /// Calls per nanosecond.
    rate: f64,
    start: u64,
    /// Nanoseconds of the whole run.
    length: f64,
    next: f64,
    random: SmallRng,
}

impl Arrivals {
    /// `rate` calls a second from `start` on, for `length` nanoseconds; `offset` of a distance
    /// later, so that threads do not begin together.
    #[must_use]
    pub fn new(shape: ArrivalShape, rate: f64, start: u64, length: u64, offset: f64, seed: u64) -> Self {
        let rate = rate / 1e9;
        Self {
            shape,
            rate,
            start,
            length: length as f64,
            next: offset / rate,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// When the next call is meant to begin.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "times are positive and whole enough"
    )]
    pub fn next(&self) -> u64 {
        self.start + self.next as u64
    }

    /// That one has begun.
    pub fn advance(&mut self) {
        let distance: f64 = match self.shape {
            ArrivalShape::Poisson => Exp1.sample(&mut self.random),
            _ => 1.0,
        };
        self.next += distance / (self.rate * self.share());
    }

    /// The share of the rate that is due now.
    fn share(&self) -> f64 {
        let passed = self.next / self.length.max(1.0);
        let share = match self.shape {
            ArrivalShape::Constant | ArrivalShape::Poisson => 1.0,
            ArrivalShape::Ramp => passed,
            ArrivalShape::Step => {
                if passed < 0.5 {
                    0.5
                } else {
                    1.0
                }
            }
            ArrivalShape::Sine => 0.75 + 0.25 * (self.next / WAVE * std::f64::consts::TAU).sin(),
        };
        share.clamp(LEAST_SHARE, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(shape: ArrivalShape, from: u64, to: u64) -> usize {
        let mut arrivals = Arrivals::new(shape, 1000.0, 0, 10_000_000_000, 0.0, 3);
        let mut counted = 0;
        while arrivals.next() < to {
            counted += usize::from(arrivals.next() >= from);
            arrivals.advance();
        }
        counted
    }

    #[test]
    fn shapes_have_their_rates() {
        let second = 1_000_000_000;
        assert!(count(ArrivalShape::Constant, 0, 10 * second).abs_diff(10_000) <= 1);
        assert!(count(ArrivalShape::Poisson, 0, 10 * second).abs_diff(10_000) < 400);
        assert!(count(ArrivalShape::Step, 0, 5 * second).abs_diff(2_500) <= 2);
        assert!(count(ArrivalShape::Step, 5 * second, 10 * second).abs_diff(5_000) <= 2);
        assert!(
            count(ArrivalShape::Ramp, 9 * second, 10 * second)
                > 5 * count(ArrivalShape::Ramp, second, 2 * second)
        );
        assert!(
            count(ArrivalShape::Sine, 2 * second, 3 * second)
                > count(ArrivalShape::Sine, 7 * second, 8 * second) + 300
        );
    }
}
