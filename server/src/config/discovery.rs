//! Flags of bootstrap by discovery: where the first members of a cluster are found when no flag
//! names them.

use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::{bad, text};

/// Where the first members of a cluster are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery {
    /// The flags name them.
    None,
    /// SRV records of a domain name them.
    Srv {
        /// The domain.
        domain: String,
        /// Appended to the name of the service; nothing if empty.
        suffix: String,
    },
}

impl Discovery {
    /// The meaning of the settings; etcd's rules of which flags go together, in its order.
    pub(super) fn resolve(settings: &Settings) -> Result<Self, ConfigError> {
        let given = |flag| !text(settings, flag).is_empty();
        let is_named = settings.get("initial-cluster").is_some_and(|cluster| !cluster.is_empty());
        let ways = [is_named, given("discovery-endpoints"), given("discovery-srv")];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            return Err(ConfigError::SeveralBootstraps);
        }
        if given("discovery-token") != given("discovery-endpoints") {
            return Err(ConfigError::HalfADiscovery);
        }
        if given("discovery-endpoints") {
            if text(settings, "discovery-endpoints").split(',').any(|endpoint| endpoint.trim().is_empty()) {
                return Err(ConfigError::EmptyEndpoint);
            }
            let problem = "a discovery service of etcd is not asked by this version: name the members in \
                           --initial-cluster, or find them by --discovery-srv";
            return Err(bad(settings, "discovery-endpoints", problem.to_owned()));
        }
        if !given("discovery-srv") {
            return Ok(Self::None);
        }
        let (domain, suffix) = (text(settings, "discovery-srv"), text(settings, "discovery-srv-name"));
        Ok(Self::Srv { domain, suffix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sources;

    fn discovery(line: &str) -> Result<Discovery, String> {
        let gathered = sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap();
        Discovery::resolve(&gathered.settings).map_err(|error| error.to_string())
    }

    #[test]
    fn records_of_a_domain_name_the_members() {
        let srv = |suffix: &str| Discovery::Srv { domain: "d.test".to_owned(), suffix: suffix.to_owned() };
        assert_eq!(discovery(""), Ok(Discovery::None));
        assert_eq!(discovery("--discovery-srv d.test"), Ok(srv("")));
        assert_eq!(discovery("--discovery-srv d.test --discovery-srv-name x"), Ok(srv("x")));
        assert_eq!(discovery("--discovery-srv d.test --initial-cluster="), Ok(srv("")));
    }

    /// The texts of an etcd 3.7.1 that is started so, but for the last one.
    #[test]
    fn flags_that_exclude_each_other_are_refused_in_the_words_of_etcd() {
        let several = "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
                       \"discovery-endpoints\" or \"discovery-srv\"";
        let half = "both --discovery-token and --discovery-endpoints must be set";
        for (line, problem) in [
            ("--discovery-srv d.test --initial-cluster a=http://h:1", several),
            ("--discovery-srv d.test --discovery-endpoints http://h:1 --discovery-token t", several),
            ("--initial-cluster a=http://h:1 --discovery-endpoints http://h:1", several),
            ("--discovery-endpoints http://h:1", half),
            ("--discovery-token t", half),
            (
                "--discovery-token t --discovery-endpoints http://h:1,",
                "--discovery-endpoints must not contain empty endpoints",
            ),
        ] {
            assert_eq!(discovery(line).unwrap_err(), problem, "{line}");
        }
        let refused = discovery("--discovery-token t --discovery-endpoints http://h:1").unwrap_err();
        assert!(refused.contains("not asked by this version"), "{refused}");
    }
}
