//! The ledger of many runs: seeds, simulated time, faults by kind, places that were reached.

use std::collections::BTreeMap;
use std::fmt;

use crate::faults::FaultKind;
use crate::marks::{Mark, Marks};
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
    /// The fewest faults that have happened in a run.
    pub fewest_faults: u64,
    /// Places that were reached.
    pub marks: Marks,
    /// Leaders that were elected.
    pub elections: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// Puts and reads of the probe that were answered.
    pub probes: (u64, u64),
}

impl Ledger {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        self.fewest_faults = match self.seeds {
            0 => other.fewest_faults,
            _ => self.fewest_faults.min(other.fewest_faults),
        };
        self.seeds += other.seeds;
        self.simulated += other.simulated;
        self.events += other.events;
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
        writeln!(out, "leaders elected: {}, entries committed: {}", self.elections, self.entries)?;
        writeln!(out, "probe: {} puts, {} reads", self.probes.0, self.probes.1)?;
        let fewest = self.fewest_faults;
        writeln!(out, "faults: {drawn} drawn, {happened} happened, at least {fewest} of them in each run")?;
        for kind in FaultKind::ALL {
            let count = |faults: &BTreeMap<FaultKind, u64>| faults.get(kind).copied().unwrap_or(0);
            writeln!(out, "  {kind:?}: {} drawn, {} happened", count(&self.drawn), count(&self.faults))?;
        }
        writeln!(out, "places reached:")?;
        for mark in Mark::ALL {
            writeln!(out, "  {mark:?}: {}", self.marks.count(*mark))?;
        }
        Ok(())
    }
}
