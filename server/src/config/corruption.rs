//! Flags about etcd's checks for corruption: the feature gates, and how often.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::{bad, duration, list, switch, text};

/// The feature gates of etcd 3.7, and whether they are in an early state, so that `AllAlpha` sets
/// them.
const GATES: &[(&str, bool)] = &[
    ("AllAlpha", false),
    ("AllBeta", false),
    (COMPACT_HASH_CHECK, true),
    ("FastLeaseKeepAlive", false),
    (INITIAL_CORRUPT_CHECK, true),
    ("LeaseCheckpoint", true),
    ("LeaseCheckpointPersist", true),
    ("PriorityRequest", true),
    ("SetMemberLocalAddr", true),
    ("StopGRPCServiceOnDefrag", true),
    ("TxnModeWriteWithSharedBuffer", false),
];
const COMPACT_HASH_CHECK: &str = "CompactHashCheck";
const INITIAL_CORRUPT_CHECK: &str = "InitialCorruptCheck";

/// When members are compared by HashKV.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorruptionChecks {
    /// Before a member serves.
    pub at_start: bool,
    /// How often while it leads; zero never.
    pub interval: Duration,
    /// How often by the hashes of compactions while it leads.
    pub compaction_interval: Option<Duration>,
}

impl CorruptionChecks {
    /// The meaning of the settings.
    pub(super) fn resolve(settings: &Settings, warnings: &mut Vec<String>) -> Result<Self, ConfigError> {
        let gates = Gates::of(settings, warnings)?;
        let older = |flag| switch(settings, flag);
        let of_compactions =
            gates.is_on(COMPACT_HASH_CHECK) || older("experimental-compact-hash-check-enabled")?;
        let compaction_interval = duration(settings, "compact-hash-check-time")?;
        if compaction_interval.is_zero() {
            let problem = "must be more than 0".to_owned();
            return Err(bad(settings, "compact-hash-check-time", problem));
        }
        Ok(Self {
            at_start: gates.is_on(INITIAL_CORRUPT_CHECK) || older("experimental-initial-corrupt-check")?,
            interval: duration(settings, "corrupt-check-time")?,
            compaction_interval: of_compactions.then_some(compaction_interval),
        })
    }
}

/// The gates that `--feature-gates` sets.
struct Gates(Vec<(String, bool)>);

impl Gates {
    fn of(settings: &Settings, warnings: &mut Vec<String>) -> Result<Self, ConfigError> {
        let flag = "feature-gates";
        let mut gates = Vec::new();
        for part in list(&text(settings, flag)) {
            let wrong = |problem: String| bad(settings, flag, problem);
            let (name, value) =
                part.split_once('=').ok_or_else(|| wrong(format!("missing bool value for {part}")))?;
            if !GATES.iter().any(|(known, _)| *known == name) {
                return Err(wrong(format!("unrecognized feature gate: {name}")));
            }
            let is_on = match value {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                _ => return Err(wrong(format!("invalid value of {name}={value}"))),
            };
            if is_on && ![COMPACT_HASH_CHECK, INITIAL_CORRUPT_CHECK, "AllAlpha", "AllBeta"].contains(&name) {
                warnings.push(format!("the feature {name} has no effect in this version"));
            }
            gates.push((name.to_owned(), is_on));
        }
        Ok(Self(gates))
    }

    /// A gate that is named itself is not set by `AllAlpha`.
    fn is_on(&self, gate: &str) -> bool {
        let named =
            |name: &str| self.0.iter().rev().find(|(known, _)| known == name).map(|(_, is_on)| *is_on);
        let is_alpha = GATES.iter().any(|(known, is_alpha)| *known == gate && *is_alpha);
        named(gate).or_else(|| named("AllAlpha").filter(|_| is_alpha)).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sources;

    fn checks(line: &str) -> Result<(CorruptionChecks, Vec<String>), ConfigError> {
        let gathered = sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap();
        let mut warnings = gathered.warnings;
        CorruptionChecks::resolve(&gathered.settings, &mut warnings).map(|checks| (checks, warnings))
    }

    #[test]
    fn checks_are_those_that_flags_and_gates_ask_for() {
        let none = CorruptionChecks { at_start: false, interval: Duration::ZERO, compaction_interval: None };
        let at_start = CorruptionChecks { at_start: true, ..none };
        let often = |seconds| Some(Duration::from_secs(seconds));
        for (line, expected) in [
            ("", none),
            ("--feature-gates=InitialCorruptCheck=true", at_start),
            ("--feature-gates InitialCorruptCheck=true,InitialCorruptCheck=false", none),
            ("--experimental-initial-corrupt-check", at_start),
            (
                "--feature-gates CompactHashCheck=true",
                CorruptionChecks { compaction_interval: often(60), ..none },
            ),
            (
                "--experimental-compact-hash-check-enabled --experimental-compact-hash-check-time 5s",
                CorruptionChecks { compaction_interval: often(5), ..none },
            ),
            (
                "--feature-gates AllAlpha=true,CompactHashCheck=false --corrupt-check-time 2m",
                CorruptionChecks { interval: Duration::from_secs(120), ..at_start },
            ),
            (
                "--experimental-corrupt-check-time 1s",
                CorruptionChecks { interval: Duration::from_secs(1), ..none },
            ),
        ] {
            assert_eq!(checks(line).unwrap(), (expected, vec![]), "{line}");
        }
        assert_eq!(checks("--feature-gates LeaseCheckpoint=true").unwrap().1.len(), 1);
    }

    #[test]
    fn gates_that_there_are_not_are_refused() {
        for (line, part) in [
            ("--feature-gates Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("--feature-gates InitialCorruptCheck", "missing bool value for InitialCorruptCheck"),
            ("--feature-gates InitialCorruptCheck=maybe", "invalid value of InitialCorruptCheck=maybe"),
            ("--compact-hash-check-time 0s", "more than 0"),
            ("--corrupt-check-time soon", "duration"),
        ] {
            let error = checks(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
