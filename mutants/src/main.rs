//! Plants each mutant of engine and member in turn, runs the simulations and tests against it, and
//! says which one found it, after how many seeds and how much time.
//!
//! ```text
//! cargo run -p revd-mutants                        all of them
//! cargo run -p revd-mutants -- LogReleasedByApplied --first crash_sim
//! cargo run -p revd-mutants -- --write             and puts the table into docs/TESTING.md
//! ```
//!
//! `--first` names the program to begin with; else that is the one that the table names already.
//! `--only` runs no other. `--release` builds with optimisation. A mutant that no test finds shows
//! a missing check: the program ends with an error then.

mod table;

mod programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::programs::{Found, Program, Verdict};
use crate::table::Row;

/// A test that takes so many times as long as without a mutant does not end.
const TIMES_AS_LONG: u32 = 5;
/// And at least this long.
const LIMIT_MIN: Duration = Duration::from_mins(2);

/// The command line.
#[derive(Debug, Default)]
struct Options {
    names: Vec<String>,
    first: Option<String>,
    only: Option<String>,
    writes: bool,
    is_release: bool,
    /// The programs are known to pass without a mutant: each has this time.
    limit: Option<Duration>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--write" => options.writes = true,
                "--release" => options.is_release = true,
                "--first" => options.first = words.next(),
                "--only" => options.only = words.next(),
                "--seconds" => {
                    let seconds = words.next().unwrap_or_default().parse()?;
                    options.limit = Some(Duration::from_secs(seconds));
                }
                name if all().any(|(known, _)| known == name) => options.names.push(word),
                other => bail!("there is neither an option nor a mutant {other}"),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|wanted| wanted == name)
    }
}

/// All mutants: name, and what it does.
fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    revd_engine::mutants::ALL.iter().chain(revd_member::mutants::ALL).copied()
}

fn main() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = root.join("docs/TESTING.md");
    let mut programs = programs::build(&root, options.is_release)?;
    if let Some(only) = &options.only {
        programs.retain(|program| program.name == *only);
    }
    let limits = limits(&programs, &options)?;
    let mut unfound = Vec::new();
    for (name, sentence) in all().filter(|(name, _)| options.wants(name)) {
        let known = table::read(&page)?.get(name).and_then(Row::program);
        let order = ordered(&programs, name, options.first.as_deref().or(known.as_deref()));
        let found = find(&order, name, &limits);
        match &found {
            Some((program, found)) => println!("{name}: {program}, {found}"),
            None => {
                println!("{name}: NOT FOUND");
                unfound.push(name);
            }
        }
        if options.writes {
            let mut rows = table::read(&page)?;
            rows.insert(name.to_owned(), Row::new(sentence, found.as_ref()));
            table::write(&page, &rows, &all().collect::<Vec<_>>())?;
        }
    }
    if unfound.is_empty() { Ok(()) } else { bail!("no test has found {unfound:?}") }
}

/// How long each program may take: it has to pass without a mutant.
fn limits(programs: &[Program], options: &Options) -> Result<BTreeMap<String, Duration>> {
    let mut limits = BTreeMap::new();
    for program in programs {
        let limit = match options.limit {
            Some(limit) => limit,
            None => match program.run(None, Duration::MAX) {
                (Verdict::Passed, took) => LIMIT_MIN.max(took * TIMES_AS_LONG),
                (Verdict::Late, _) => bail!("{} does not end", program.name),
                (Verdict::Found(found), _) => bail!("{} fails without a mutant: {found}", program.name),
            },
        };
        println!("{}: at most {} s", program.name, limit.as_secs());
        limits.insert(program.name.clone(), limit);
    }
    Ok(limits)
}

/// Programs that have this mutant in them: this one first, then quick ones before slow ones.
fn ordered<'p>(programs: &'p [Program], mutant: &str, first: Option<&str>) -> Vec<&'p Program> {
    let is_of_engine = revd_engine::mutants::ALL.iter().any(|(name, _)| *name == mutant);
    let has_it = |program: &&Program| is_of_engine || !program.is_of_engine;
    let mut order: Vec<&Program> = programs.iter().filter(has_it).collect();
    order.sort_by_key(|program| Some(program.name.as_str()) != first);
    order
}

/// The first program that finds a mutant, and how.
fn find(programs: &[&Program], mutant: &str, limits: &BTreeMap<String, Duration>) -> Option<(String, Found)> {
    programs.iter().find_map(|program| match program.run(Some(mutant), limits[&program.name]) {
        (Verdict::Found(found), _) => Some((program.name.clone(), found)),
        (Verdict::Late, took) => {
            println!("{mutant}: {} has not ended after {} s", program.name, took.as_secs());
            None
        }
        (Verdict::Passed, _) => None,
    })
}
