//! Flags about the cluster: its first members, where they are reached, how they change.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use revd_member::urls::{self, UrlError};

use crate::config::discovery::Discovery;
use crate::config::error::ConfigError;
use crate::config::listening::{ListenAddress, ListenPlace, Listened, Served, listened};
use crate::config::sources::Settings;
use crate::config::values::{bad, duration, list, number, switch, text};
use crate::resolve;

/// etcd's name for a member that is given none.
const NAME_DEFAULT: &str = "default";

/// The part of a member in its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Where other members connect.
    pub peer_addresses: Vec<ListenAddress>,
    /// The peer URLs that other members are told.
    pub advertise_peer_urls: Vec<String>,
    /// Peer URLs of the first members, by name.
    pub initial: BTreeMap<String, Vec<String>>,
    /// Where the first members are found otherwise; `initial` names this one alone then.
    pub discovery: Discovery,
    /// Part of the cluster's identity.
    pub token: String,
    /// Begin a new cluster if there is no data; else join one.
    pub is_new: bool,
    /// Begin a cluster of this member alone with the data that it has.
    pub force_new: bool,
    /// Refuse changes of members that would cost the cluster its quorum.
    pub strict_reconfig: bool,
    /// Members that learn and have no vote.
    pub learners_max: u32,
    /// As a learner, this member answers all that reads.
    pub learner_reads: bool,
    /// Applied entries after which the log is cut.
    pub snapshot_count: u64,
    /// Entries that are kept then, for members that are behind.
    pub snapshot_catchup_entries: u64,
    /// How often it is looked whether a downgrade is over; zero never.
    pub downgrade_interval: Duration,
    /// Ask before an election whether it can be won.
    pub pre_vote: bool,
    /// A start waits no whole election timeout for a leader.
    pub advance_election_ticks: bool,
}

impl ClusterConfig {
    /// The meaning of the settings, of the member with this name.
    pub(super) fn resolve(settings: &Settings, name: &str) -> Result<Self, ConfigError> {
        let state = text(settings, "initial-cluster-state");
        if state != "new" && state != "existing" {
            return Err(bad(settings, "initial-cluster-state", "must be new or existing".to_owned()));
        }
        let advertise_peer_urls = peer_urls(settings, "initial-advertise-peer-urls")?;
        let discovery = Discovery::resolve(settings)?;
        // As etcd: the name of the cluster with the service takes the token's place.
        let token = match &discovery {
            Discovery::Service(service) => service.token.clone(),
            Discovery::None | Discovery::Srv { .. } => text(settings, "initial-cluster-token"),
        };
        Ok(Self {
            discovery,
            peer_addresses: peer_addresses(settings)?,
            initial: initial(settings, name, &advertise_peer_urls)?,
            advertise_peer_urls,
            token,
            is_new: state == "new",
            force_new: switch(settings, "force-new-cluster")?,
            strict_reconfig: switch(settings, "strict-reconfig-check")?,
            learners_max: number(settings, "max-learners")?,
            learner_reads: switch(settings, "learner-reads")?,
            snapshot_count: number(settings, "snapshot-count")?,
            snapshot_catchup_entries: number(settings, "snapshot-catchup-entries")?,
            downgrade_interval: duration(settings, "downgrade-check-time")?,
            pre_vote: switch(settings, "pre-vote")?,
            advance_election_ticks: switch(settings, "initial-election-tick-advance")?,
        })
    }
}

/// An empty text is taken for the default, as etcd takes it.
fn peer_urls(settings: &Settings, flag: &'static str) -> Result<Vec<String>, ConfigError> {
    let given = list(&text(settings, flag));
    let urls = if given.is_empty() { list(&text(&Settings::new(), flag)) } else { given };
    checked(settings, flag, &urls)
}

fn checked(settings: &Settings, flag: &'static str, texts: &[String]) -> Result<Vec<String>, ConfigError> {
    urls::parse(texts).map_err(|error: UrlError| bad(settings, flag, error.to_string()))
}

/// As etcd binds: addresses and `localhost`, no other names.
fn peer_addresses(settings: &Settings) -> Result<Vec<ListenAddress>, ConfigError> {
    let flag = "listen-peer-urls";
    let mut addresses = Vec::new();
    for url in peer_urls(settings, flag)? {
        let (host, is_secure) = match listened(&url) {
            Some((Listened::Host(_), is_secure)) => (urls::authority(&url), is_secure),
            Some((Listened::File(path), is_secure)) => {
                let place = ListenPlace::Unix(path.into());
                ListenAddress::add(&mut addresses, place, is_secure, Served::All);
                continue;
            }
            None => return Err(bad(settings, flag, format!("{url} names no file"))),
        };
        if !host.starts_with("localhost:") && host.parse::<SocketAddr>().is_err() {
            return Err(bad(settings, flag, format!("expected IP in URL for binding ({url})")));
        }
        // As Go does: a name that stands for several addresses means its IPv4 one.
        let resolved =
            resolve::addresses(host).map_err(|error| bad(settings, flag, format!("{host}: {error}")))?;
        if let Some(address) = resolved.first() {
            ListenAddress::add(&mut addresses, ListenPlace::Tcp(*address), is_secure, Served::All);
        }
    }
    Ok(addresses)
}

/// The first members; without the flag, this one alone.
fn initial(
    settings: &Settings,
    name: &str,
    advertised: &[String],
) -> Result<BTreeMap<String, Vec<String>>, ConfigError> {
    let flag = "initial-cluster";
    let is_given = |flag: &'static str| !text(settings, flag).is_empty();
    // A service names the members; until it has, there is this one.
    if is_given("discovery-endpoints") {
        return Ok(BTreeMap::from([(name.to_owned(), advertised.to_vec())]));
    }
    // As in etcd, a name of records has no members without a domain that has the records.
    if !settings.contains_key(flag) && is_given("discovery-srv-name") && !is_given("discovery-srv") {
        return Ok(BTreeMap::new());
    }
    let is_default = settings.get(flag).is_none_or(|cluster| *cluster == text(&Settings::new(), flag));
    if is_default && (name != NAME_DEFAULT || !settings.contains_key(flag)) {
        return Ok(BTreeMap::from([(name.to_owned(), advertised.to_vec())]));
    }
    let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for member in list(&text(settings, flag)) {
        let (member, url) = member.split_once('=').unwrap_or((&member, ""));
        members.entry(member.to_owned()).or_default().push(url.to_owned());
    }
    for member in members.values_mut() {
        *member = checked(settings, flag, member)?;
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sources;

    fn cluster(line: &str) -> Result<ClusterConfig, ConfigError> {
        let gathered = sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap();
        assert!(gathered.warnings.is_empty(), "{:?}", gathered.warnings);
        let name = text(&gathered.settings, "name");
        ClusterConfig::resolve(&gathered.settings, &name)
    }

    #[test]
    fn defaults_are_those_of_etcd() {
        let config = cluster("").unwrap();
        let address = "127.0.0.1:2380".parse().unwrap();
        assert_eq!(config.peer_addresses, [ListenAddress::plain(address)]);
        assert_eq!(config.advertise_peer_urls, ["http://localhost:2380"]);
        assert_eq!(config.initial["default"], ["http://localhost:2380"]);
        assert!(config.is_new && config.strict_reconfig && config.pre_vote && config.advance_election_ticks);
        assert!(!config.force_new);
        assert_eq!(config.learners_max, 1);
        assert_eq!((config.snapshot_count, config.snapshot_catchup_entries), (10_000, 5_000));
    }

    #[test]
    fn a_member_alone_needs_no_initial_cluster() {
        let config = cluster("--name b --initial-advertise-peer-urls http://h:1").unwrap();
        assert_eq!(config.initial, BTreeMap::from([("b".to_owned(), vec!["http://h:1".to_owned()])]));
        let config = cluster("--name b --initial-cluster default=http://localhost:2380").unwrap();
        assert_eq!(config.initial["b"], ["http://localhost:2380"]);
    }

    /// Other flags may be given without a meaning, by templates.
    #[test]
    fn a_member_registers_with_its_urls() {
        for other in ["", "--initial-cluster=", "--discovery-srv-name x"] {
            let line = format!("--name m --discovery-token t --discovery-endpoints h:1 {other}");
            let config = cluster(&line).unwrap();
            let own = BTreeMap::from([("m".to_owned(), config.advertise_peer_urls.clone())]);
            assert_eq!(config.initial, own, "{other}");
        }
    }

    #[test]
    fn an_initial_cluster_has_members_with_several_urls() {
        let config = cluster("--initial-cluster a=http://h:2,b=http://h:3,a=http://h:1").unwrap();
        assert_eq!(config.initial["a"], ["http://h:1", "http://h:2"]);
        assert_eq!(config.initial["b"], ["http://h:3"]);
        let config = cluster("--max-learners 5 --strict-reconfig-check=false --force-new-cluster").unwrap();
        assert_eq!((config.learners_max, config.strict_reconfig, config.force_new), (5, false, true));
        assert!(!config.learner_reads && cluster("--learner-reads").unwrap().learner_reads);
        assert_eq!(cluster("--experimental-max-learners 3").unwrap().learners_max, 3);
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_value() {
        for (line, part) in [
            (
                "--listen-peer-urls http://example.com:2380",
                "expected IP in URL for binding (http://example.com:2380)",
            ),
            ("--listen-peer-urls unix://", "names no file"),
            ("--listen-peer-urls http://127.0.0.1", "URL address does not have the form \"host:port\""),
            ("--initial-advertise-peer-urls foo", "URL scheme must be http, https, unix, or unixs: foo"),
            ("--initial-cluster a", "URL scheme must be http, https, unix, or unixs: "),
            ("--initial-cluster-state old", "must be new or existing"),
            ("--max-learners x", "whole number"),
            ("--strict-reconfig-check=maybe", "true or false"),
        ] {
            let error = cluster(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
