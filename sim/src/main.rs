//! The simulator as a program: runs seeds, prints their ledger, and cuts down what fails.
//!
//! ```text
//! revd-sim [--seeds N] [--first N] [--seconds N] [--threads N] [--ledger FILE] [--faults N,N,...]
//!     [--sparse] [--shrink]
//! ```
//!
//! `--seconds` ends it after that time, `--threads` says how many runs there are at a time, as many
//! as there are CPUs if it is not given. `--ledger` adds the runs to those in the file, by commit.
//! `--sparse` runs hours with as many faults, and keeps books of their own.
//! Also `--faults` keeps some of the faults of one seed, `--shrink`
//! looks for the fewest faults with which a seed fails. A place that no seed has reached, or a
//! fault that has happened in none, fails a run of 1,000 seeds or more.

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use revd_sim::faults::{Pace, storm};
use revd_sim::ledger::{Book, Ledger};
use revd_sim::runs::{self, Failure};

/// Runs allocate all the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Faults that happen in each run at least.
const FEWEST_FAULTS: u64 = 20;

struct Arguments {
    seeds: u64,
    first: u64,
    seconds: Option<u64>,
    threads: usize,
    ledger: Option<String>,
    faults: Option<BTreeSet<usize>>,
    pace: Pace,
    shrinks: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        seeds: 100,
        first: 0,
        seconds: None,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        ledger: None,
        faults: None,
        pace: Pace::Dense,
        shrinks: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        let number = |text: String| text.parse().map_err(|_| format!("{text} is no number"));
        match word.as_str() {
            "--seeds" => found.seeds = number(value()?)?,
            "--first" => found.first = number(value()?)?,
            "--seconds" => found.seconds = Some(number(value()?)?),
            "--threads" => found.threads = value()?.parse().map_err(|_| "how many threads?")?,
            "--ledger" => found.ledger = Some(value()?),
            "--sparse" => found.pace = Pace::Sparse,
            "--shrink" => found.shrinks = true,
            "--faults" => {
                let kept: Result<BTreeSet<usize>, _> = value()?.split(',').map(str::parse).collect();
                found.faults = Some(kept.map_err(|error| error.to_string())?);
            }
            _ => return Err(format!("{word} is not known")),
        }
    }
    Ok(found)
}

/// The commit of the tree that this program was started in.
fn commit() -> String {
    let git = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let text = git.ok().filter(|git| git.status.success()).and_then(|git| String::from_utf8(git.stdout).ok());
    text.map_or_else(|| "no commit".to_owned(), |text| text.trim().to_owned())
}

/// Adds these runs to those that are in the file.
fn keep(file: &str, pace: Pace, ledger: &Ledger) -> std::io::Result<()> {
    let before = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read?,
    };
    let mut book = Book::parse(&before);
    let title = if pace == Pace::Sparse { format!("{}, sparse", commit()) } else { commit() };
    book.add(&title, ledger);
    std::fs::write(file, book.to_string())
}

fn tell(failure: &Failure, shrinks: bool) {
    println!("seed {} fails: {}\n  {}", failure.seed, failure.why, failure.command());
    if shrinks {
        let kept = runs::shrink(failure.seed, failure.pace);
        let names: Vec<String> = kept.iter().map(usize::to_string).collect();
        println!("  with fewer faults: {} --faults {}", failure.command(), names.join(","));
        let all = storm(failure.seed, failure.pace);
        for at in &kept {
            println!("    {:?}", all[*at]);
        }
    }
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    let Arguments { seeds, first, seconds, threads, ledger: file, faults, pace, shrinks } = arguments;
    #[expect(
        clippy::disallowed_methods,
        reason = "the program ends after so much true time; no run reads it"
    )]
    let began = Instant::now();
    let is_over = || seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds));
    let (ledger, failures) = match &faults {
        Some(kept) => match runs::run(first, pace, Some(kept)) {
            Ok(ledger) => (ledger, Vec::new()),
            Err(failure) => (Ledger::clone(&failure.ledger), vec![failure]),
        },
        None => runs::run_many((first, seeds), pace, threads, is_over),
    };
    println!("{ledger}");
    failures.iter().for_each(|failure| tell(failure, shrinks));
    if let Some(file) = file
        && let Err(error) = keep(&file, pace, &ledger)
    {
        eprintln!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    if let Some(fewest) = ledger.fewest_faults.filter(|fewest| *fewest < FEWEST_FAULTS) {
        println!("{fewest} faults have happened in a run, {FEWEST_FAULTS} are wanted");
        return ExitCode::FAILURE;
    }
    let is_judged = ledger.leases_ended > 0 && ledger.lease_times > 0;
    if pace == Pace::Sparse && ledger.seeds >= 10 && !is_judged {
        println!("nobody looked for a lease beyond its end, or asked how long one has left, in a calm time");
        return ExitCode::FAILURE;
    }
    let missing = ledger.never_met();
    // Sparse storms seldom have two faults at a time.
    if pace == Pace::Dense && ledger.is_long() && missing != (Vec::new(), Vec::new()) {
        println!("never met: {missing:?}");
        return ExitCode::FAILURE;
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
