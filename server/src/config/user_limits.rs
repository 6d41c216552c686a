//! `--limit-user`: how much users may ask of this member.

use std::collections::BTreeMap;

use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::{bad, text};

const FLAG: &str = "limit-user";

/// The share of one user; 0 is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimit {
    /// Calls a second.
    pub calls: u64,
    /// Bytes a second, of requests and replies.
    pub bytes: u64,
}

/// `name=calls/s,bytes/s`, several of them with semicolons between; `/s` may be left out.
pub(super) fn resolve(settings: &Settings) -> Result<BTreeMap<String, UserLimit>, ConfigError> {
    let text = text(settings, FLAG);
    let limits = text.split(';').filter(|limit| !limit.is_empty());
    limits
        .map(|limit| {
            let wrong = || bad(settings, FLAG, format!("{limit:?} is not name=calls/s,bytes/s"));
            one(limit).ok_or_else(wrong)
        })
        .collect()
}

fn one(limit: &str) -> Option<(String, UserLimit)> {
    let (name, rates) = limit.rsplit_once('=')?;
    let (calls, bytes) = rates.split_once(',')?;
    let rate = |rate: &str| rate.strip_suffix("/s").unwrap_or(rate).parse().ok();
    let limit = UserLimit { calls: rate(calls)?, bytes: rate(bytes)? };
    (!name.is_empty()).then(|| (name.to_owned(), limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sources::from_args;

    fn resolved(args: &[&str]) -> Result<BTreeMap<String, UserLimit>, ConfigError> {
        resolve(&from_args(args.iter().map(|arg| (*arg).to_owned())).unwrap().settings)
    }

    #[test]
    fn limits_add_up_and_bad_ones_are_named() {
        let args = ["--limit-user=ann=100/s,1000000/s", "--limit-user", "a=b=5,0", "--limit-user=bob=0/s,7"];
        let limits = resolved(&args).unwrap();
        let limit = |calls, bytes| UserLimit { calls, bytes };
        let expected = [("a=b", limit(5, 0)), ("ann", limit(100, 1_000_000)), ("bob", limit(0, 7))];
        assert!(limits.iter().map(|(name, limit)| (name.as_str(), *limit)).eq(expected));
        assert!(resolved(&[]).unwrap().is_empty());
        for bad in ["ann", "ann=5", "ann=5,x", "=5,5", "ann=-1,5", "ann=5/m,5"] {
            let error = resolved(&["--limit-user", bad]).unwrap_err().to_string();
            assert!(error.contains("limit-user") && error.contains("calls/s"), "{bad}: {error}");
        }
    }
}
