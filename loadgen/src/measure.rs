//! From a plan to a result: rounds, progress, where and when.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::clock;
use crate::cost::CostSource;
use crate::disk;
use crate::plan::Plan;
use crate::probe;
use crate::result::{RunResult, SCHEMA};
use crate::run::{self, Progress, Surroundings};
use crate::servers;
use crate::started;

/// Around all runs of a program.
#[derive(Debug, Clone)]
pub struct Session {
    /// No progress line.
    pub is_quiet: bool,
    /// Set by Ctrl-C: measurements until then are kept. The second one ends the program at once.
    pub interrupted: Arc<AtomicBool>,
}

impl Session {
    /// Listens for Ctrl-C and the request to end.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(is_quiet: bool) -> anyhow::Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        started::keep_results(&interrupted)?;
        Ok(Self { is_quiet, interrupted })
    }

    /// Whether the run was interrupted.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// An empty result for a plan.
    ///
    /// # Errors
    /// When the plan makes no sense, or the server does not answer.
    pub fn begin(&self, plan: &Plan) -> anyhow::Result<RunResult> {
        plan.check()?;
        let version = run::greet(plan)?;
        let started = humantime::format_rfc3339_seconds(clock::wall()).to_string();
        Ok(RunResult {
            schema: SCHEMA,
            plan: plan.clone(),
            server: version,
            machine: machine(),
            started,
            stopped: None,
            warnings: Vec::new(),
            violations: Vec::new(),
            rounds: Vec::new(),
        })
    }

    /// One more round of a run; the first prepares the store.
    ///
    /// # Errors
    /// When it cannot begin.
    pub fn round(&self, run: &mut RunResult, source: &CostSource) -> anyhow::Result<()> {
        let bar = self.bar();
        let mut show = |what: &str, progress: Progress| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
            bar.set_position((progress.share * 1000.0).round() as u64);
            let rate = progress.done as f64 / progress.seconds.max(1e-3);
            let failed =
                if progress.failed > 0 { format!(", {} failed", progress.failed) } else { String::new() };
            let events =
                if progress.events > 0 { format!(", {} events", progress.events) } else { String::new() };
            bar.set_message(format!("{what}: {} done, {rate:.0}/s{failed}{events}", progress.done));
        };
        let mut around = Surroundings {
            source: source.clone(),
            interrupted: Arc::clone(&self.interrupted),
            progress: &mut show,
        };
        // Watchers that catch up need their history again each time; for others one preparation is
        // enough.
        let mut plan = run.plan.clone();
        if !run.rounds.is_empty() && !run.plan.catches_up() {
            plan.preload = false;
        }
        let revision = run::preload(&plan, &mut around).context("preparing the store")?;
        if let (Some(_), Some(folder)) = (plan.disk_probe, &source.data_folder) {
            // The run's own stalls are looked for, not those of what was written before it.
            if !disk::settle(folder)?.is_quick {
                run.warnings.push("the disk was not at rest when the round began".to_owned());
            }
        } else if plan.disk_probe.is_some() {
            run.warnings.push("the disk was not probed: it is not known where the data is".to_owned());
        }
        let outcome = run::round(&run.plan, revision, &mut around)?;
        bar.finish_and_clear();
        run.rounds.push(outcome.round);
        for warning in outcome.warnings {
            if !run.warnings.contains(&warning) {
                run.warnings.push(warning);
            }
        }
        run.violations.extend(outcome.violations);
        run.stopped = run.stopped.take().or(outcome.stopped);
        Ok(())
    }

    /// All rounds of a plan.
    ///
    /// # Errors
    /// When it cannot begin.
    pub fn run(&self, plan: &Plan, rounds: usize, source: &CostSource) -> anyhow::Result<RunResult> {
        let mut run = self.begin(plan)?;
        for _ in 0..rounds.max(1) {
            if run.stopped.is_none() && !self.is_interrupted() {
                self.round(&mut run, source)?;
            }
        }
        if run.stopped.is_none() {
            match differing_members(&plan.endpoints) {
                Ok(differ) => run.violations.extend(differ),
                Err(why) => run.warnings.push(why),
            }
        }
        Ok(run)
    }

    fn bar(&self) -> ProgressBar {
        if self.is_quiet {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(1000);
        let style = ProgressStyle::with_template("{spinner} [{bar:30}] {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// Members must hold the same keys in the end; some may need a moment to get there.
///
/// # Errors
/// When this user may not look.
fn differing_members(endpoints: &[String]) -> Result<Option<String>, String> {
    let mut hashes = Vec::new();
    for _ in 0..if endpoints.len() > 1 { 50 } else { 0 } {
        let said: Vec<_> = endpoints.iter().map(|endpoint| probe::hash_kv(endpoint)).collect();
        let is_denied = |error: &anyhow::Error| error.to_string().contains("permission denied");
        if said.iter().flat_map(|said| said.as_ref().err()).any(is_denied) {
            return Err("members were not compared: HashKV is root's alone".to_owned());
        }
        hashes = said.into_iter().map(Result::ok).collect();
        if hashes.iter().all(|hash| hash.is_some() && *hash == hashes[0]) {
            return Ok(None);
        }
        clock::rest(Duration::from_millis(100));
    }
    let differ = !hashes.is_empty();
    Ok(differ.then(|| format!("members hold different keys: HashKV of {endpoints:?} is {hashes:?}")))
}

/// Processor, cores, memory and kernel, in words.
#[must_use]
pub fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, word: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(word))?.to_owned();
        Some(line.trim_start_matches([':', ' ', '\t']).trim().to_owned())
    };
    let processor =
        value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "processor unknown".to_owned());
    let cores = servers::cores();
    let memory = value(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<f64>().ok())
        .unwrap_or(0.0);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{processor}, {cores} cores, {:.0} GiB, Linux {}", memory / 1048576.0, kernel.trim())
}
