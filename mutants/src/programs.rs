//! The test programs: how they are built, and what they say.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

/// Simulations and models come before unit tests and scripts, which hold small parts against what
/// they do today; quick ones before slow ones.
const ORDER: &[&str] = &[
    "tree_model",
    "index_model",
    "store_model",
    "transfer",
    "watch_sim",
    "crash_sim",
    "install_crash",
    "cluster_sim",
    "runs",
];

/// The packages that are built together: the simulator of clusters stands alone, for it would be
/// slow with the checks that the tests of the engine turn on in the engine.
const BUILDS: &[&[&str]] = &[
    &["-p", "revd-engine", "-p", "revd-member", "--features", "revd-engine/mutants,revd-member/mutants"],
    &["-p", "revd-sim", "--test", "runs", "--features", "mutants"],
];
/// Seeds of the simulator of clusters, until one has failed.
const CLUSTER_SEEDS: &str = "60";

/// A compiled test program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    path: PathBuf,
    /// It has no member in it.
    pub(crate) is_of_engine: bool,
    /// Its package's folder.
    folder: PathBuf,
}

/// The end of a run.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Every test has passed.
    Passed,
    Found(Found),
    /// It had not ended in time. That is no finding: the machine may have been busy.
    Late,
}

/// A test that has failed.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) test: String,
    /// The first words of what was wrong.
    pub(crate) why: String,
    /// Seeds that were tried, the last of which failed, if the test has seeds.
    pub(crate) seeds: Option<u64>,
    pub(crate) seconds: u64,
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, why, seeds, seconds } = self;
        write!(out, "{test}, seeds {seeds:?}, {seconds} s: {why}")
    }
}

/// Builds the tests of engine, member and simulator with the feature.
pub(crate) fn build(root: &Path, is_release: bool) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for packages in BUILDS {
        programs.extend(built(root, packages, is_release)?);
    }
    // Both packages have such a program.
    for program in &mut programs {
        if program.name == "scripts" && program.is_of_engine {
            program.name = "engine_scripts".to_owned();
        }
    }
    let place = |program: &Program| ORDER.iter().position(|name| *name == program.name);
    programs.sort_by_key(|program| (place(program).unwrap_or(ORDER.len()), program.name.clone()));
    ensure!(ORDER.iter().all(|name| programs.iter().any(|program| program.name == *name)), "{programs:?}");
    Ok(programs)
}

/// The test programs of these packages.
fn built(root: &Path, packages: &[&str], is_release: bool) -> Result<Vec<Program>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut build = Command::new(cargo);
    build.current_dir(root).args(["test", "--no-run", "--message-format=json-render-diagnostics"]);
    build.args(packages).args(is_release.then_some("--release"));
    let output = build.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the tests cannot be built");
    let mut programs = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let said: serde_json::Value = serde_json::from_str(line)?;
        let Some(path) = said["executable"].as_str() else { continue };
        let manifest = Path::new(said["manifest_path"].as_str().context("a program without a package")?);
        let name = said["target"]["name"].as_str().context("a program without a name")?.to_owned();
        let folder = manifest.parent().context("a package without a folder")?.to_owned();
        let is_of_engine = folder.ends_with("engine");
        programs.push(Program { name, path: path.into(), is_of_engine, folder });
    }
    Ok(programs)
}

impl Program {
    /// Runs it, with this mutant planted, until a test fails or the time is over; how long that
    /// took.
    pub(crate) fn run(&self, mutant: Option<&str>, limit: Duration) -> (Verdict, Duration) {
        let began = now();
        let mut run = Command::new(&self.path);
        run.current_dir(&self.folder).arg("--nocapture").env_remove("REVD_MUTANT");
        run.envs(mutant.map(|name| ("REVD_MUTANT", name))).env("RUST_BACKTRACE", "0");
        run.env("REVD_SIM_SEEDS", CLUSTER_SEEDS).env("REVD_SIM_UNTIL", "failure");
        let mut child = match run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => panic!("{} cannot be run: {error}", self.name),
        };
        let end = watch(&mut child, limit);
        let _ = child.kill();
        let is_success = child.wait().is_ok_and(|status| status.success());
        let took = began.elapsed();
        let seconds = took.as_secs();
        let verdict = match end {
            End::Failed { test, why } => {
                let seeds = seeds_in(&why).or_else(|| seeds_in(&test));
                Verdict::Found(Found { test, why, seeds, seconds })
            }
            End::Over { .. } if is_success => Verdict::Passed,
            End::Over { why } => {
                Verdict::Found(Found { test: "(the program ends)".to_owned(), why, seeds: None, seconds })
            }
            End::Late => Verdict::Late,
        };
        (verdict, took)
    }
}

#[expect(clippy::disallowed_methods, reason = "a duration that is printed, and a limit of time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

enum End {
    /// This test has failed, after this panic.
    Failed {
        test: String,
        why: String,
    },
    /// The program is over.
    Over {
        why: String,
    },
    Late,
}

/// A line that the program has printed.
enum Line {
    Out(String),
    Error(String),
}

fn watch(child: &mut Child, limit: Duration) -> End {
    let (lines, printed) = channel();
    let errors = lines.clone();
    let out = child.stdout.take().expect("it is piped");
    let error = child.stderr.take().expect("it is piped");
    std::thread::spawn(move || pass_on(out, &lines, Line::Out));
    std::thread::spawn(move || pass_on(error, &errors, Line::Error));
    listen(&printed, limit)
}

fn pass_on(from: impl Read, to: &Sender<Line>, kind: fn(String) -> Line) {
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if to.send(kind(line)).is_err() {
            return;
        }
    }
}

fn listen(printed: &Receiver<Line>, limit: Duration) -> End {
    let began = now();
    let (mut why, mut is_panic, mut seeds) = (String::new(), false, None);
    loop {
        let Some(left) = limit.checked_sub(began.elapsed()) else { return End::Late };
        match printed.recv_timeout(left) {
            Ok(Line::Error(line)) => {
                let names_seeds = line.contains("seeds [");
                if names_seeds && seeds.is_none() {
                    seeds = Some(line.clone());
                }
                if is_panic && why.is_empty() && !line.is_empty() {
                    why = line;
                } else {
                    is_panic |= line.contains("panicked at");
                }
            }
            Ok(Line::Out(line)) => {
                if let Some(test) = failed_test(&line) {
                    if let Some(seeds) = seeds.filter(|seeds| *seeds != why) {
                        why = format!("{why} ({seeds})");
                    }
                    return End::Failed { test, why };
                }
            }
            Err(RecvTimeoutError::Timeout) => return End::Late,
            Err(RecvTimeoutError::Disconnected) => return End::Over { why },
        }
    }
}

/// `test NAME ... FAILED`, perhaps behind other words.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_suffix(" ... FAILED")?;
    Some(name.rsplit("test ").next()?.rsplit("::").next()?.to_owned())
}

/// The number of seeds up to the first one that is named.
fn seeds_in(text: &str) -> Option<u64> {
    let behind = text.split("seeds [").nth(1).or_else(|| text.split("seed ").nth(1))?;
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().ok().map(|seed| seed + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_program_says_is_understood() {
        assert_eq!(failed_test("test a_b_c ... FAILED").as_deref(), Some("a_b_c"));
        assert_eq!(failed_test("test raft::lost::tests::a_b ... FAILED").as_deref(), Some("a_b"));
        assert_eq!(failed_test("test a_b_c ... ok"), None);
        assert_eq!(seeds_in("seeds [3, 7]"), Some(4));
        assert_eq!(seeds_in("seed 11: lost"), Some(12));
        assert_eq!(seeds_in("nothing"), None);
    }
}
