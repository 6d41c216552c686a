//! Keys and values of a run.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

/// A number of bytes, or a range of them: `256`, `100..4000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "String")]
pub struct SizeRange {
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

/// As TOML may have it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(usize),
    Words(String),
}

impl TryFrom<Text> for SizeRange {
    type Error = String;

    fn try_from(text: Text) -> Result<Self, String> {
        match text {
            Text::Number(bytes) => Ok(Self { min: bytes, max: bytes }),
            Text::Words(words) => words.parse(),
        }
    }
}

impl From<SizeRange> for String {
    fn from(size: SizeRange) -> Self {
        size.to_string()
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            write!(formatter, "{}", self.min)
        } else {
            write!(formatter, "{}..{}", self.min, self.max)
        }
    }
}

impl FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .map_err(|_| format!("`{text}` is no number of bytes: 256, or 100..4000"))
        };
        let (min, max) = match text.split_once("..") {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        if min > max || max > 1 << 30 {
            return Err(format!(
                "`{text}` is no size: the first must not be larger, and neither above 1 GiB"
            ));
        }
        Ok(Self { min, max })
    }
}

impl SizeRange {
    /// One of them.
    pub fn pick(self, random: &mut SmallRng) -> usize {
        if self.min == self.max { self.min } else { random.random_range(self.min..=self.max) }
    }
}

/// In what order keys are used: `sequential`, `uniform`, `zipf:0.99`, `hotset:0.1:0.9` (a tenth of
/// the keys gets nine tenths of the calls).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum KeyOrder {
    /// One after the other, and again.
    Sequential,
    /// Each as often as any other.
    Uniform,
    /// Few very often; the exponent.
    Zipf(f64),
    /// This share of the keys gets that share of the calls.
    Hotset(f64, f64),
}

impl TryFrom<String> for KeyOrder {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<KeyOrder> for String {
    fn from(order: KeyOrder) -> Self {
        match order {
            KeyOrder::Sequential => "sequential".to_owned(),
            KeyOrder::Uniform => "uniform".to_owned(),
            KeyOrder::Zipf(theta) => format!("zipf:{theta}"),
            KeyOrder::Hotset(keys, calls) => format!("hotset:{keys}:{calls}"),
        }
    }
}

impl FromStr for KeyOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no order of keys: sequential, uniform, zipf:0.99 or hotset:0.1:0.9 are");
        let share = |text: &str| {
            text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(wrong)
        };
        match text.split(':').collect::<Vec<_>>()[..] {
            ["sequential"] => Ok(Self::Sequential),
            ["uniform"] => Ok(Self::Uniform),
            ["zipf"] => Ok(Self::Zipf(0.99)),
            ["zipf", theta] => {
                let theta = theta.parse::<f64>().ok().filter(|theta| (0.0..=10.0).contains(theta));
                theta.map(Self::Zipf).ok_or_else(wrong)
            }
            ["hotset", keys, calls] => Ok(Self::Hotset(share(keys)?, share(calls)?)),
            _ => Err(wrong()),
        }
    }
}

/// The keys of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct KeySpace {
    /// Their common prefix; `{namespace}` becomes one of a hundred names.
    pub prefix: String,
    /// How many there are.
    pub count: u64,
    /// Bytes of a key; a longer prefix makes it longer.
    pub size: usize,
    /// Which comes next.
    pub order: KeyOrder,
}

impl Default for KeySpace {
    fn default() -> Self {
        Self { prefix: "/loadgen/".to_owned(), count: 10_000, size: 32, order: KeyOrder::Uniform }
    }
}

/// Where namespaces go.
const NAMESPACE: &str = "{namespace}";
const NAMESPACES: u64 = 100;

impl KeySpace {
    /// Key number `number`.
    pub fn put(&self, number: u64, key: &mut Vec<u8>) {
        use std::io::Write as _;
        let start = key.len();
        match self.prefix.split_once(NAMESPACE) {
            Some((before, behind)) => {
                let _ = write!(key, "{before}namespace-{:02}{behind}", number % NAMESPACES);
            }
            None => key.extend_from_slice(self.prefix.as_bytes()),
        }
        // A formatter would write its zeros one by one, for each call.
        let digits = number.checked_ilog10().map_or(1, |log| log as usize + 1);
        key.resize(key.len().max((start + self.size).saturating_sub(digits)), b'0');
        let _ = write!(key, "{number}");
    }

    /// The prefix of all keys, up to a namespace.
    #[must_use]
    pub fn common_prefix(&self) -> &str {
        self.prefix.split_once(NAMESPACE).map_or(&self.prefix, |(before, _)| before)
    }

    /// The first key that is behind all that begin so.
    #[must_use]
    pub fn end(prefix: &str) -> Vec<u8> {
        let mut end = prefix.as_bytes().to_vec();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return end;
            }
        }
        vec![0] // to the end of all keys
    }
}

/// Chooses keys, each thread for itself.
#[derive(Debug)]
pub struct KeyPicker {
    count: u64,
    order: KeyOrder,
    zipf: Option<Zipf<f64>>,
    next: u64,
    step: u64,
    random: SmallRng,
}

impl KeyPicker {
    /// For thread `thread` of `threads`, who share the keys if they are taken in turn.
    #[must_use]
    pub fn new(keys: &KeySpace, seed: u64, thread: usize, threads: usize) -> Self {
        let count = keys.count.max(1);
        let zipf = match keys.order {
            KeyOrder::Zipf(theta) => Zipf::new(count as f64, theta).ok(),
            _ => None,
        };
        let random = SmallRng::seed_from_u64(seed ^ (thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { count, order: keys.order, zipf, next: thread as u64, step: threads as u64, random }
    }

    /// The next key's number.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "ranks are whole and positive"
    )]
    pub fn pick(&mut self) -> u64 {
        match (self.order, &self.zipf) {
            (KeyOrder::Sequential, _) => {
                let number = self.next % self.count;
                self.next += self.step;
                number
            }
            // Scattered: the most wanted keys are no neighbours.
            (KeyOrder::Zipf(_), Some(zipf)) => {
                let rank = zipf.sample(&mut self.random) as u64;
                rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.count
            }
            (KeyOrder::Hotset(keys, calls), _) => {
                let hot = ((self.count as f64 * keys) as u64).clamp(1, self.count);
                if hot == self.count || self.random.random_bool(calls) {
                    self.random.random_range(0..hot)
                } else {
                    self.random.random_range(hot..self.count)
                }
            }
            _ => self.random.random_range(0..self.count),
        }
    }

    /// For sizes and values.
    pub fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }
}

/// A value of `len` random bytes; the same for the same seed.
#[must_use]
pub fn value(len: usize, seed: u64) -> Bytes {
    let mut value = vec![0; len];
    SmallRng::seed_from_u64(seed).fill(&mut value[..]);
    value.into()
}

/// Values: random bytes that do not compress, cut out of one block.
#[derive(Debug)]
pub struct ValueSource {
    size: SizeRange,
    block: Vec<u8>,
}

impl ValueSource {
    /// Of this size.
    #[must_use]
    pub fn new(size: SizeRange, seed: u64) -> Self {
        let mut block = vec![0; size.max * 2 + 64];
        SmallRng::seed_from_u64(seed).fill(&mut block[..]);
        Self { size, block }
    }

    /// One of them.
    pub fn pick(&self, random: &mut SmallRng) -> &[u8] {
        let len = self.size.pick(random);
        let at = random.random_range(0..=self.block.len() - len);
        &self.block[at..at + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(order: &str, count: u64) -> KeySpace {
        KeySpace { order: order.parse().unwrap(), count, ..KeySpace::default() }
    }

    #[test]
    fn sizes_and_orders_are_read_and_written() {
        for text in ["256", "100..4000"] {
            assert_eq!(text.parse::<SizeRange>().unwrap().to_string(), text);
        }
        for text in ["sequential", "uniform", "zipf:0.99", "hotset:0.1:0.9"] {
            assert_eq!(String::from(text.parse::<KeyOrder>().unwrap()), text);
        }
        for text in ["", "-1", "5..4", "a", "4000000000"] {
            assert!(text.parse::<SizeRange>().is_err(), "{text}");
        }
        for text in ["", "zipf:-1", "zipf:x", "hotset:2:0.5", "random"] {
            assert!(text.parse::<KeyOrder>().is_err(), "{text}");
        }
    }

    #[test]
    fn threads_share_keys_in_turn() {
        let keys = keys("sequential", 10);
        let mut seen: Vec<u64> = (0..3)
            .flat_map(|thread| {
                let mut picker = KeyPicker::new(&keys, 1, thread, 3);
                (0..10).map(move |_| picker.pick()).collect::<Vec<_>>()
            })
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..10).flat_map(|key| [key; 3]).collect::<Vec<_>>());
    }

    #[test]
    fn orders_have_their_shape() {
        let shares = |order: &str| {
            let mut picker = KeyPicker::new(&keys(order, 1000), 7, 0, 1);
            let mut counts = vec![0_u32; 1000];
            for _ in 0..100_000 {
                counts[usize::try_from(picker.pick()).unwrap()] += 1;
            }
            counts.sort_unstable_by(|a, b| b.cmp(a));
            f64::from(counts[..100].iter().sum::<u32>()) / 100_000.0
        };
        assert!((0.10..0.14).contains(&shares("uniform")), "{}", shares("uniform"));
        assert!(shares("zipf:0.99") > 0.6, "{}", shares("zipf:0.99"));
        assert!((0.88..0.92).contains(&shares("hotset:0.1:0.9")), "{}", shares("hotset:0.1:0.9"));
    }

    #[test]
    fn keys_have_their_size_and_stay_apart() {
        let keys =
            KeySpace { prefix: "/registry/pods/{namespace}/".to_owned(), size: 64, ..KeySpace::default() };
        let mut all = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let mut key = Vec::new();
            keys.put(number, &mut key);
            assert_eq!(key.len(), 64);
            assert!(key.starts_with(keys.common_prefix().as_bytes()));
            all.insert(key);
        }
        assert_eq!(all.len(), 1000);
        assert_eq!(KeySpace::end("a/"), b"a0");
    }
}
