//! The ledger of many runs: seeds, simulated time, faults by kind, places that were reached.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::faults::FaultKind;
use crate::marks::{Mark, Marks, Reached};
use crate::time::{Micros, SECOND};

/// A run, or the sum of many.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Runs.
    pub seeds: u64,
    /// Virtual time of all of them.
    pub simulated: Micros,
    /// Events.
    pub events: u64,
    /// Faults that were drawn, by kind; some have met nothing.
    pub drawn: BTreeMap<FaultKind, u64>,
    /// Faults that have happened, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// The fewest faults that have happened in a run that has not failed.
    pub fewest_faults: Option<u64>,
    /// Places that were reached.
    pub marks: Marks,
    /// Leaders that were elected.
    pub elections: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// Puts and reads of the probe that were answered.
    pub probes: (u64, u64),
    /// Time of sparse storms in which nothing was wrong, and leases had to end.
    pub calm: Micros,
    /// Leases that ended by themselves, and whose keys a read then asked for in a calm time.
    pub leases_ended: u64,
    /// Answers in calm times that said how long a lease has left.
    pub lease_times: u64,
    /// Seeds that have failed.
    pub failed: BTreeSet<u64>,
}

/// The number behind these words.
fn number_behind(text: &str, words: &str) -> Option<u64> {
    let rest = &text[text.find(words)? + words.len()..];
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

impl Ledger {
    /// As it was written.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |words| number_behind(text, words);
        let (faults, marks) = text.split_once("places reached:")?;
        let mut ledger = Self {
            seeds: number("seeds: ")?,
            simulated: number("simulated: ")? * SECOND,
            events: number("events: ")?,
            elections: number("leaders elected: ")?,
            entries: number("entries committed: ")?,
            probes: (number("probe: ")?, number_behind(text, "puts, ")?),
            fewest_faults: number("at least "),
            calm: number("calm: ").unwrap_or(0) * SECOND,
            leases_ended: number("leases judged at their end: ").unwrap_or(0),
            lease_times: number("their times: ").unwrap_or(0),
            ..Self::default()
        };
        for kind in FaultKind::ALL {
            let line = faults.lines().find_map(|line| line.strip_prefix(&format!("  {kind:?}: ")));
            let count = |words| line.and_then(|line| number_behind(line, words)).filter(|count| *count > 0);
            ledger.drawn.extend(count("").map(|count| (*kind, count)));
            ledger.faults.extend(count("drawn, ").map(|count| (*kind, count)));
        }
        for mark in Mark::ALL {
            let line = marks.lines().find_map(|line| line.strip_prefix(&format!("  {mark:?}: ")));
            ledger.marks.reach_often(*mark, line.and_then(Reached::parse).unwrap_or_default());
        }
        let failed = text.lines().find_map(|line| line.strip_prefix("failed:"))?;
        ledger.failed = failed.split_whitespace().filter_map(|seed| seed.parse().ok()).collect();
        Some(ledger)
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.fewest_faults = [self.fewest_faults, other.fewest_faults].into_iter().flatten().min();
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        self.events += other.events;
        self.calm += other.calm;
        self.leases_ended += other.leases_ended;
        self.lease_times += other.lease_times;
        let faults = [(&mut self.drawn, &other.drawn), (&mut self.faults, &other.faults)];
        for (own, others) in faults {
            for (kind, count) in others {
                *own.entry(*kind).or_default() += count;
            }
        }
        self.marks.add(&other.marks);
        self.elections += other.elections;
        self.entries += other.entries;
        self.probes = (self.probes.0 + other.probes.0, self.probes.1 + other.probes.1);
        self.failed.extend(&other.failed);
    }

    /// Whether enough seeds have run for every place and kind of fault to be met.
    #[must_use]
    pub fn is_long(&self) -> bool {
        self.seeds >= 1_000
    }

    /// Places that were never reached, and kinds of faults that never happened.
    #[must_use]
    pub fn never_met(&self) -> (Vec<Mark>, Vec<FaultKind>) {
        let faults = FaultKind::ALL.iter().copied().filter(|kind| !self.faults.contains_key(kind));
        (self.marks.missing(), faults.collect())
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (drawn, happened): (u64, u64) = (self.drawn.values().sum(), self.faults.values().sum());
        let hours = self.simulated / SECOND / 3_600;
        writeln!(out, "seeds: {}", self.seeds)?;
        writeln!(out, "simulated: {} s ({hours} h)", self.simulated / SECOND)?;
        writeln!(out, "events: {}", self.events)?;
        write!(out, "calm: {} s, leases judged at their end: {}", self.calm / SECOND, self.leases_ended)?;
        writeln!(out, ", answers about their times: {}", self.lease_times)?;
        writeln!(out, "leaders elected: {}, entries committed: {}", self.elections, self.entries)?;
        writeln!(out, "probe: {} puts, {} reads", self.probes.0, self.probes.1)?;
        write!(out, "faults: {drawn} drawn, {happened} happened")?;
        match self.fewest_faults {
            Some(fewest) => writeln!(out, ", at least {fewest} of them in each run that has not failed")?,
            None => writeln!(out)?,
        }
        for kind in FaultKind::ALL {
            let count = |faults: &BTreeMap<FaultKind, u64>| faults.get(kind).copied().unwrap_or(0);
            writeln!(out, "  {kind:?}: {} drawn, {} happened", count(&self.drawn), count(&self.faults))?;
        }
        writeln!(out, "places reached:")?;
        for mark in Mark::ALL {
            writeln!(out, "  {mark:?}: {}", self.marks.count(*mark))?;
        }
        let failed: Vec<String> = self.failed.iter().map(|seed| format!(" {seed}")).collect();
        writeln!(out, "failed:{}", failed.concat())
    }
}

/// The ledgers of a file, each with its title: the program and its settings.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Book(Vec<(String, Ledger)>);

const TITLE: &str = "== ";

impl Book {
    /// As it was written.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let parts = text.split(TITLE).filter_map(|part| part.split_once('\n'));
        let whole = parts.filter_map(|(title, rest)| Some((title.to_owned(), Ledger::parse(rest)?)));
        Self(whole.collect())
    }

    /// Adds more runs under a title.
    pub fn add(&mut self, title: &str, more: &Ledger) {
        match self.0.iter_mut().find(|(of, _)| of == title) {
            Some((_, ledger)) => ledger.add(more),
            None => self.0.push((title.to_owned(), more.clone())),
        }
    }
}

impl fmt::Display for Book {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(title, ledger)| write!(out, "{TITLE}{title}\n{ledger}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_book_goes_on_where_it_ended() {
        let mut run = Ledger { seeds: 3, simulated: 7 * SECOND, events: 12, ..Ledger::default() };
        (run.elections, run.entries, run.probes, run.fewest_faults) = (4, 5, (6, 7), Some(21));
        (run.calm, run.leases_ended, run.lease_times) = (8 * SECOND, 2, 3);
        run.drawn.insert(FaultKind::Kill, 9);
        run.faults.insert(FaultKind::Kill, 8);
        run.marks.reach(Mark::Elected);
        run.failed.insert(17);
        let mut book = Book::default();
        book.add("one", &run);
        assert_eq!(Book::parse(&book.to_string()), book);
        let mut again = Book::parse(&book.to_string());
        again.add("one", &Ledger { fewest_faults: Some(20), ..run.clone() });
        again.add("two", &run);
        let sum = &again.0[0].1;
        assert_eq!((sum.seeds, sum.simulated, sum.fewest_faults), (6, 14 * SECOND, Some(20)));
        assert_eq!(sum.faults[&FaultKind::Kill], 16);
        assert_eq!(sum.marks.count(Mark::Elected), Reached { times: 2, runs: 2 });
        assert_eq!(again.0[1], ("two".to_owned(), run));
    }

    #[test]
    fn a_failed_run_says_nothing_about_the_fewest_faults() {
        let mut sum = Ledger { seeds: 1, failed: BTreeSet::from([5]), ..Ledger::default() };
        assert_eq!(Ledger::parse(&sum.to_string()), Some(sum.clone()));
        sum.add(&Ledger { seeds: 1, fewest_faults: Some(30), ..Ledger::default() });
        sum.add(&Ledger { seeds: 1, failed: BTreeSet::from([6]), ..Ledger::default() });
        assert_eq!((sum.seeds, sum.fewest_faults), (3, Some(30)));
    }

    #[test]
    fn a_ledger_of_before_runs_were_counted_is_read() {
        let mut run = Ledger { seeds: 1, fewest_faults: Some(20), ..Ledger::default() };
        run.marks.reach(Mark::Elected);
        let before = run.to_string().replace("1 in 1 runs", "1");
        let read = Ledger::parse(&before).expect("a ledger");
        assert_eq!(read.marks.count(Mark::Elected), Reached { times: 1, runs: 0 });
    }
}
