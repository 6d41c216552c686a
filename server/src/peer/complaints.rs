//! Log lines about connections that others open, which whoever reaches the port can cause.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::limits;
use crate::observe::log;
use crate::observe::seldom::Seldom;

/// Log core view: lines of which there is one a second.
#[derive(Debug, Default)]
pub(super) struct Complaints(Seldom);

impl Complaints {
    /// Logs that a connection is of no use, unless a line was written in the last second.
    pub(super) fn refused(&self, now: u64, from: &str, why: &str) {
        if let Some(untold) = self.may_tell(now) {
            log::warn("refused a connection to the peer port", fields(from, why, untold));
        }
    }

    /// Logs that a state of another member does not come, unless a line was written in the last
    /// second.
    pub(super) fn given_up(&self, now: u64, from: &str, why: &str) {
        if let Some(untold) = self.may_tell(now) {
            let fields = json!({"peer-id": from, "error": why, "others-since-the-last-line": untold});
            log::warn("a state that another member was sending is given up", fields);
        }
    }

    /// Whether a line may be written now, and how many were not since the last one.
    pub(super) fn may_tell(&self, now: u64) -> Option<u64> {
        self.0.may_tell(now, limits::PEER_COMPLAINT_INTERVAL)
    }
}

/// Log core view: what was told of the URLs of a member, of which none answers.
#[derive(Debug, Default)]
pub(super) struct Unreachable {
    told: BTreeMap<String, String>,
}

impl Unreachable {
    /// Another error than the one that was told of this URL last.
    pub(super) fn is_news(&self, url: &str, error: &str) -> bool {
        self.told.get(url).is_none_or(|told| told != error)
    }

    /// An error of this URL is told.
    pub(super) fn tell(&mut self, url: String, error: String) {
        if self.told.len() >= URLS_MAX {
            self.told.clear(); // a member that moves all the time
        }
        self.told.insert(url, error);
    }
}

/// URLs of one member whose errors are remembered.
const URLS_MAX: usize = 100;

fn fields(from: &str, why: &str, untold: u64) -> Value {
    json!({"remote-addr": from, "error": why, "others-since-the-last-line": untold})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_url_is_told_of_once_until_its_error_changes() {
        let mut unreachable = Unreachable::default();
        let mut tell = |url: &str, error: &str| {
            let is_news = unreachable.is_news(url, error);
            if is_news {
                unreachable.tell(url.to_owned(), error.to_owned());
            }
            is_news
        };
        assert!(tell("a", "refused") && tell("b", "no address"));
        assert!(!tell("a", "refused") && !tell("b", "no address"), "not in turn for ever");
        assert!(tell("a", "no address") && !tell("a", "no address"));
    }
}
