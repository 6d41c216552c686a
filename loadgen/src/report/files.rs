//! Results as files: JSON with everything, CSV for spreadsheets, interval logs for HdrHistogram's
//! tools.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::clock;
use crate::result::RunResult;

/// Writes a file whole or not at all.
fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Everything.
///
/// # Errors
/// With the file's name.
pub fn json(path: &Path, runs: &[RunResult]) -> anyhow::Result<()> {
    let mut text = match runs {
        [run] => serde_json::to_vec(run),
        runs => serde_json::to_vec(runs),
    }?;
    text.push(b'\n');
    write(path, &text)
}

/// A line for each operation of each round.
///
/// # Errors
/// With the file's name.
pub fn csv(path: &Path, runs: &[RunResult]) -> anyhow::Result<()> {
    let mut out = csv::Writer::from_writer(Vec::new());
    out.write_record([
        "scenario",
        "server",
        "round",
        "operation",
        "count",
        "failed",
        "per_second",
        "mean_us",
        "p50_us",
        "p90_us",
        "p99_us",
        "p99.9_us",
        "p99.99_us",
        "max_us",
        "server_cpu_us_per_op",
        "server_memory_bytes",
    ])?;
    for run in runs {
        for (number, round) in run.rounds.iter().enumerate() {
            for op in &round.ops {
                let latency = &op.latency;
                let figures = [
                    op.rate,
                    latency.mean,
                    latency.p50,
                    latency.p90,
                    latency.p99,
                    latency.p999,
                    latency.p9999,
                    latency.max,
                ];
                let mut record = vec![run.plan.name.clone(), run.server.clone(), (number + 1).to_string()];
                record.extend([
                    op.name.clone(),
                    op.count.to_string(),
                    op.errors.values().sum::<u64>().to_string(),
                ]);
                record.extend(figures.map(|figure| format!("{figure:.3}")));
                let cost = round.cost.as_ref();
                record.push(cost.map_or(String::new(), |cost| format!("{:.3}", cost.cpu_us_per_op)));
                record.push(cost.map_or(String::new(), |cost| cost.memory_bytes.to_string()));
                out.write_record(record)?;
            }
        }
    }
    write(path, &out.into_inner().context("writing CSV")?)
}

/// An interval for each round and operation, in nanoseconds, as HdrHistogram's log tools read them.
///
/// # Errors
/// With the file's name.
pub fn hlog(path: &Path, runs: &[RunResult]) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
    let mut file = BufWriter::new(file);
    {
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        builder.add_comment("loadgen; values are nanoseconds");
        builder.with_start_time(clock::wall());
        let mut log = builder.begin_log_with(&mut file, &mut serializer).context("beginning the log")?;
        for run in runs {
            let mut start = Duration::ZERO;
            for round in &run.rounds {
                let length = Duration::from_secs_f64(round.seconds.max(0.0));
                for op in &round.ops {
                    let samples = op.latency.samples()?;
                    // A tag must hold neither a comma nor a blank.
                    let name = format!("{}/{}", run.plan.name, op.name).replace([' ', ',', '\n', '\r'], "_");
                    let tag = hdrhistogram::serialization::interval_log::Tag::new(&name);
                    log.write_histogram(&samples, start, length, tag)
                        .map_err(|error| anyhow::anyhow!("writing {}: {error:?}", path.display()))?;
                }
                start += length;
            }
        }
    }
    file.flush().with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::record::OpRecord;
    use crate::result::{GeneratorCost, OpResult, RoundResult, SCHEMA};

    fn run() -> RunResult {
        let mut record = OpRecord::new("put, twice");
        (1..=100_u64).for_each(|at| record.add(at * 1000, at * 1000, at * 20_000_000));
        RunResult {
            schema: SCHEMA,
            plan: Plan { name: "a \"plan\"".to_owned(), ..Plan::default() },
            server: "3.7.1".to_owned(),
            machine: String::new(),
            started: String::new(),
            stopped: None,
            warnings: Vec::new(),
            violations: Vec::new(),
            rounds: vec![RoundResult {
                seconds: 2.0,
                ops: vec![OpResult::of(&record, 2.0, false)],
                events: None,
                cost: None,
                generator: GeneratorCost::default(),
                samples: Vec::new(),
                disk_probe: Vec::new(),
                compactions: Vec::new(),
            }],
        }
    }

    #[test]
    fn files_hold_what_was_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        json(&path("a.json"), &[run()]).unwrap();
        let again = RunResult::read(&path("a.json")).unwrap();
        assert_eq!(again[0].rounds[0].ops[0].count, 100);
        json(&path("b.json"), &[run(), run()]).unwrap();
        assert_eq!(RunResult::read(&path("b.json")).unwrap().len(), 2);
        std::fs::write(path("c.json"), "{}").unwrap();
        assert!(RunResult::read(&path("c.json")).unwrap_err().to_string().contains("c.json"));

        csv(&path("a.csv"), &[run()]).unwrap();
        let mut reader = csv::Reader::from_path(path("a.csv")).unwrap();
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!((rows.len(), &rows[0][3], &rows[0][4]), (1, "put, twice", "100"));

        hlog(&path("a.hlog"), &[run()]).unwrap();
        let text = std::fs::read_to_string(path("a.hlog")).unwrap();
        assert!(text.contains("Tag=a_\"plan\"/put__twice,0.000,2.000,"), "{text}");
    }
}
