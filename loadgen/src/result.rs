//! The result of a run, as it is kept in JSON. Times are microseconds unless a name says otherwise.

use std::collections::BTreeMap;

use anyhow::Context as _;
use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::calm::CalmResult;
use crate::cost::Cost;
use crate::plan::Plan;
use crate::record::OpRecord;

/// Changes when the meaning of a field does.
pub const SCHEMA: u32 = 1;

/// A run, perhaps of several rounds.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunResult {
    /// [`SCHEMA`]
    pub schema: u32,
    /// The plan.
    pub plan: Plan,
    /// The server: its own name and version.
    pub server: String,
    /// Where, in words: processor, cores, memory, kernel.
    pub machine: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// Why it ended early; none if it did not.
    pub stopped: Option<String>,
    /// Warnings that belong to the figures.
    pub warnings: Vec<String>,
    /// Violations of the server.
    pub violations: Vec<String>,
    /// Each a whole measurement.
    pub rounds: Vec<RoundResult>,
}

/// One measurement.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RoundResult {
    /// Seconds that were measured.
    pub seconds: f64,
    /// Kinds of operations, those that were seen.
    pub ops: Vec<OpResult>,
    /// Events that watchers got, and those they should have got.
    pub events: Option<EventCounts>,
    /// The cost for the server, if that is known.
    pub cost: Option<Cost>,
    /// The cost for the generator.
    pub generator: GeneratorCost,
    /// The servers, about each second; empty where nothing is known of their processes.
    #[serde(default)]
    pub samples: Vec<ServerSample>,
    /// Second by second, as those of operations: the slowest fdatasync of 4 KiB beside the server's
    /// data (plan: `disk-probe`). One that took several seconds counts in each of them.
    #[serde(default)]
    pub disk_probe: Vec<f64>,
    /// Compactions (plan: `compact-every`); their latencies are those of the operation `compact`.
    #[serde(default)]
    pub compactions: Vec<CompactionMark>,
}

/// The servers at one moment, all members together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServerSample {
    /// Seconds since the end of the warm-up.
    pub at: f64,
    /// Cores that were busy since the sample before.
    pub cores: f64,
    /// Bytes of memory that no file backs (`RssAnon`).
    pub memory_bytes: u64,
    /// Bytes written to disks since the end of the warm-up.
    pub written_bytes: u64,
    /// Bytes that all files of the data directories take on the disk, if it is known where they
    /// are.
    pub data_bytes: Option<u64>,
    /// Bytes in the longest of these files: the tree file of revd, the database of etcd.
    pub longest_file_bytes: Option<u64>,
}

/// A compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CompactionMark {
    /// When it was asked for: seconds since the end of the warm-up.
    pub at: f64,
    /// The revision.
    pub revision: i64,
    /// How long the reply took.
    pub took: f64,
    /// Why it failed; none if it did not.
    pub error: Option<String>,
}

/// Events counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct EventCounts {
    /// Came.
    pub delivered: u64,
    /// Should have come.
    pub expected: u64,
    /// May have come besides: of calls whose outcome is not known.
    pub uncertain: u64,
}

/// The generator's own part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GeneratorCost {
    /// CPU seconds.
    pub cpu_seconds: f64,
    /// The share of its time in which the busiest thread had work.
    pub busy: f64,
    /// How late calls of an open loop were sent for which a caller was free, in microseconds, 99 of
    /// 100; where the plan has `turn_every` the wait for a look is in it.
    pub late_p99: f64,
    /// Calls of an open loop that were meant to begin and never did: all callers were waiting.
    #[serde(default)]
    pub unsent: u64,
}

/// One kind of operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OpResult {
    /// Its name.
    pub name: String,
    /// How many ended well.
    pub count: u64,
    /// A second.
    pub rate: f64,
    /// Failures by error message.
    pub errors: BTreeMap<String, u64>,
    /// Compare and swap conflicts, tried again.
    pub conflicts: u64,
    /// From when each was meant to begin.
    pub latency: LatencySummary,
    /// From when each was sent; in an open loop only.
    pub service: Option<LatencySummary>,
    /// Second by second.
    pub seconds: Vec<SecondResult>,
    /// Those outside the stalls of the disk, in a run with a probe of it.
    #[serde(default)]
    pub calm: Option<CalmResult>,
}

/// Latencies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LatencySummary {
    /// The average.
    pub mean: f64,
    /// How far from it, commonly.
    pub stddev: f64,
    /// The fastest.
    pub min: f64,
    /// Half are faster.
    pub p50: f64,
    /// 75 of 100 are faster.
    pub p75: f64,
    /// 90 of 100.
    pub p90: f64,
    /// 95 of 100.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1000.
    pub p999: f64,
    /// 9,999 of 10,000.
    pub p9999: f64,
    /// 99,999 of 100,000.
    pub p99999: f64,
    /// The slowest.
    pub max: f64,
    /// All of them: an `HdrHistogram` in nanoseconds, V2, compressed, base64.
    pub histogram: String,
}

/// One second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SecondResult {
    /// Ended well.
    pub count: u64,
    /// Failed.
    pub errors: u64,
    /// Half were faster.
    pub p50: f64,
    /// 99 of 100 were faster.
    pub p99: f64,
    /// 999 of 1000 were faster.
    #[serde(default)]
    pub p999: f64,
    /// The slowest.
    pub max: f64,
}

fn us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

impl LatencySummary {
    /// Of a histogram in nanoseconds.
    #[must_use]
    pub fn of(all: &Histogram<u64>) -> Self {
        let at = |percentile: f64| us(all.value_at_percentile(percentile));
        let mut bytes = Vec::new();
        // Writing to memory fails only for histograms that are too large for the format, which
        // these are not.
        let _ = V2DeflateSerializer::new().serialize(all, &mut bytes);
        Self {
            mean: all.mean() / 1e3,
            stddev: all.stdev() / 1e3,
            min: us(all.min()),
            p50: at(50.0),
            p75: at(75.0),
            p90: at(90.0),
            p95: at(95.0),
            p99: at(99.0),
            p999: at(99.9),
            p9999: at(99.99),
            p99999: at(99.999),
            max: us(all.max()),
            histogram: base64::engine::general_purpose::STANDARD.encode(bytes),
        }
    }

    /// All samples again.
    ///
    /// # Errors
    /// When the text is no histogram.
    pub fn samples(&self) -> anyhow::Result<Histogram<u64>> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(&self.histogram);
        let bytes = bytes.context("a histogram is not in base64")?;
        let read = Deserializer::new().deserialize(&mut &bytes[..]);
        read.map_err(|error| anyhow::anyhow!("a histogram cannot be read: {error}"))
    }

    /// A figure by its name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<f64> {
        Some(match name {
            "mean" => self.mean,
            "min" => self.min,
            "p50" => self.p50,
            "p75" => self.p75,
            "p90" => self.p90,
            "p95" => self.p95,
            "p99" => self.p99,
            "p99.9" | "p999" => self.p999,
            "p99.99" | "p9999" => self.p9999,
            "p99.999" | "p99999" => self.p99999,
            "max" => self.max,
            _ => return None,
        })
    }
}

impl OpResult {
    /// The result of a record of so many seconds.
    #[must_use]
    pub fn of(record: &OpRecord, seconds: f64, is_open: bool) -> Self {
        let count = record.latency.len();
        let rows = record.seconds.iter().map(|second| SecondResult {
            count: second.latency.len(),
            errors: second.errors,
            p50: us(second.latency.value_at_percentile(50.0)),
            p99: us(second.latency.value_at_percentile(99.0)),
            p999: us(second.latency.value_at_percentile(99.9)),
            max: us(second.latency.max()),
        });
        Self {
            name: record.name.clone(),
            count,
            rate: count as f64 / seconds.max(1e-9),
            errors: record.errors.clone(),
            conflicts: record.conflicts,
            latency: LatencySummary::of(&record.latency),
            service: is_open.then(|| LatencySummary::of(&record.service)),
            seconds: rows.collect(),
            calm: None,
        }
    }
}

impl RunResult {
    /// Whether the run was complete, without violations of the server.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.stopped.is_none() && self.violations.is_empty()
    }

    /// Kinds of operations, in order.
    #[must_use]
    pub fn op_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for op in self.rounds.iter().flat_map(|round| &round.ops) {
            if !names.contains(&op.name.as_str()) {
                names.push(&op.name);
            }
        }
        names
    }

    /// One kind of operation, in each round that has it.
    pub fn op<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r OpResult> {
        self.rounds.iter().filter_map(move |round| round.ops.iter().find(|op| op.name == name))
    }

    /// Reads kept results.
    ///
    /// # Errors
    /// With the file's name in it.
    pub fn read(path: &std::path::Path) -> anyhow::Result<Vec<Self>> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum File {
            Many(Vec<RunResult>),
            One(Box<RunResult>),
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let file = serde_json::from_str(&text);
        let runs = match file.with_context(|| format!("{} is no result of loadgen", path.display()))? {
            File::Many(runs) => runs,
            File::One(run) => vec![*run],
        };
        for run in &runs {
            anyhow::ensure!(
                run.schema == SCHEMA,
                "{} has schema {}, this loadgen reads {SCHEMA}",
                path.display(),
                run.schema
            );
        }
        Ok(runs)
    }
}

/// The median of some figures; 0 of none.
#[must_use]
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

#[cfg(test)]
impl RunResult {
    /// A run of puts with these rounds.
    pub(crate) fn of_rounds(rounds: Vec<RoundResult>) -> Self {
        Self {
            schema: SCHEMA,
            plan: Plan { name: "put".to_owned(), ..Plan::default() },
            server: String::new(),
            machine: String::new(),
            started: String::new(),
            stopped: None,
            warnings: Vec::new(),
            violations: Vec::new(),
            rounds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_the_file() {
        let mut record = OpRecord::new("put");
        for at in 1..=1000_u64 {
            record.add(at * 1000, at * 1000, at * 5_000_000);
        }
        let op = OpResult::of(&record, 5.0, true);
        assert_eq!((op.count, op.seconds.len()), (1000, 6));
        assert!((op.latency.p50 - 500.0).abs() < 1.0, "{}", op.latency.p50);
        let text = serde_json::to_string(&op).unwrap();
        let again: OpResult = serde_json::from_str(&text).unwrap();
        assert_eq!(again.latency, op.latency);
        assert_eq!(again.latency.samples().unwrap(), record.latency);
    }

    #[test]
    fn the_middle_is_found() {
        assert_eq!(
            (median([]), median([3.0]), median([4.0, 1.0]), median([5.0, 1.0, 2.0])),
            (0.0, 3.0, 2.5, 2.0)
        );
    }
}
