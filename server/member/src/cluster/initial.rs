//! The members that a cluster begins with, as `--initial-cluster` names them, and what etcd refuses
//! there.

use std::collections::{BTreeMap, BTreeSet};

use revd_proto::etcdserverpb::Member;

use crate::cluster;
use crate::urls;

/// The `--initial-*` flags of this member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InitialCluster {
    /// This member's name.
    pub name: String,
    /// Peer URLs by name, those of this member among them; sorted.
    pub members: BTreeMap<String, Vec<String>>,
    /// The peer URLs that this member tells others; sorted.
    pub advertised: Vec<String>,
    /// Part of the identity of a new cluster.
    pub token: String,
    /// The members were found without names: those of the others are made up, by each member in its
    /// way.
    pub names_are_made_up: bool,
}

/// Why no member can be begun with these flags; in etcd's words, where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitialError {
    /// Which of them is this member?
    #[error("couldn't find local name {0:?} in the initial cluster configuration")]
    NoLocalName(String),
    /// Two members at one place.
    #[error("initial cluster {0} has duplicate url")]
    DuplicateUrl(String),
    /// Others are told of a URL that this member does not tell.
    #[error(
        "--initial-cluster has {missing} but missing from --initial-advertise-peer-urls={advertised} ({difference})"
    )]
    NotAdvertised {
        /// Of `--initial-cluster`.
        missing: String,
        /// The other flag's value.
        advertised: String,
        /// How the two differ.
        difference: String,
    },
    /// This member tells a URL that others are not told of.
    #[error("--initial-advertise-peer-urls has {missing} but missing from --initial-cluster={cluster}")]
    NotInCluster {
        /// Of `--initial-advertise-peer-urls`.
        missing: String,
        /// This member's part of the other flag's value.
        cluster: String,
    },
    /// One of the flags has a URL twice.
    #[error("failed to resolve {advertised} to match --initial-cluster={cluster} ({difference})")]
    NotResolved {
        /// The value of `--initial-advertise-peer-urls`.
        advertised: String,
        /// This member's part of that of `--initial-cluster`.
        cluster: String,
        /// How the two differ.
        difference: String,
    },
    /// Two members whose ids are equal, or an id that raft has another use for.
    #[error("member exists with identical ID {0:x}: choose other peer URLs")]
    BadId(u64),
}

impl InitialCluster {
    /// A member alone, with this one peer URL.
    #[must_use]
    pub fn alone(name: &str, url: &str, token: &str) -> Self {
        let urls = vec![url.to_owned()];
        Self {
            name: name.to_owned(),
            members: BTreeMap::from([(name.to_owned(), urls.clone())]),
            advertised: urls,
            token: token.to_owned(),
            names_are_made_up: false,
        }
    }

    /// The id of this member in a new cluster.
    #[must_use]
    pub fn own_id(&self) -> u64 {
        let urls = self.members.get(&self.name).map_or(&[][..], |urls| urls);
        cluster::member_id(urls, &self.token)
    }

    /// The peer URLs of the others.
    pub fn urls_of_others(&self) -> impl Iterator<Item = &str> {
        let others = self.members.iter().filter(|(name, _)| **name != self.name);
        others.flat_map(|(_, urls)| urls.iter().map(String::as_str))
    }

    /// The rows of a new cluster's members: each member makes the same ones by itself.
    ///
    /// # Errors
    /// [`InitialError`]
    pub fn begin(
        &self,
        resolve: &mut dyn FnMut(&str) -> Option<String>,
    ) -> Result<Vec<Member>, InitialError> {
        self.advertised_match(resolve)?;
        self.has_no_duplicates()?;
        let rows = self.members.iter().map(|(name, urls)| Member {
            id: cluster::member_id(urls, &self.token),
            // A member without a name gets it when it says that it serves.
            name: if self.names_are_made_up { String::new() } else { name.clone() },
            peer_ur_ls: urls.clone(),
            ..Member::default()
        });
        let mut ids = BTreeSet::from([0]);
        rows.map(|row| if ids.insert(row.id) { Ok(row) } else { Err(InitialError::BadId(row.id)) }).collect()
    }

    /// This member tells others the URLs that `--initial-cluster` has for it.
    fn advertised_match(&self, resolve: &mut dyn FnMut(&str) -> Option<String>) -> Result<(), InitialError> {
        let own = self.local()?;
        let Err(difference) = urls::are_same(&self.advertised, own, resolve) else { return Ok(()) };
        let missing = |left: &[String], right: &[String]| -> Vec<String> {
            left.iter().filter(|url| !right.contains(url)).cloned().collect()
        };
        let pairs = |urls: &[String]| {
            let pairs: Vec<String> = urls.iter().map(|url| format!("{}={url}", self.name)).collect();
            pairs.join(",")
        };
        let (advertised, cluster) = (self.advertised.join(","), pairs(&self.advertised));
        let not_advertised = missing(own, &self.advertised);
        if !not_advertised.is_empty() {
            return Err(InitialError::NotAdvertised {
                missing: pairs(&not_advertised),
                advertised,
                difference,
            });
        }
        let not_in_cluster = missing(&self.advertised, own);
        if !not_in_cluster.is_empty() {
            return Err(InitialError::NotInCluster { missing: not_in_cluster.join(","), cluster });
        }
        Err(InitialError::NotResolved { advertised, cluster, difference })
    }

    /// Whether a member can join a cluster with these flags.
    ///
    /// # Errors
    /// [`InitialError`]
    pub fn may_join(&self) -> Result<(), InitialError> {
        self.local()?;
        self.has_no_duplicates()
    }

    fn local(&self) -> Result<&[String], InitialError> {
        let own = self.members.get(&self.name).ok_or_else(|| InitialError::NoLocalName(self.name.clone()))?;
        Ok(own)
    }

    fn has_no_duplicates(&self) -> Result<(), InitialError> {
        let mut seen = BTreeSet::new();
        if self.members.values().flatten().all(|url| seen.insert(url)) {
            return Ok(());
        }
        let mut pairs: Vec<String> = Vec::new();
        for (name, urls) in &self.members {
            pairs.extend(urls.iter().map(|url| format!("{name}={url}")));
        }
        pairs.sort();
        Err(InitialError::DuplicateUrl(pairs.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn initial(name: &str, cluster: &str, advertised: &str) -> InitialCluster {
        let mut members: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, url) in cluster.split(',').filter_map(|pair| pair.split_once('=')) {
            members.entry(name.to_owned()).or_default().push(url.to_owned());
        }
        let advertised = advertised.split(',').map(str::to_owned).collect();
        let (name, token) = (name.to_owned(), "etcd-cluster".to_owned());
        InitialCluster { name, members, advertised, token, names_are_made_up: false }
    }

    const THREE: &str = "a=http://127.0.0.1:2380,b=http://127.0.0.1:2480,c=http://127.0.0.1:2580";

    #[test]
    fn members_of_a_cluster_make_the_same_rows() {
        let a = initial("a", THREE, "http://127.0.0.1:2380");
        let b = initial("b", THREE, "http://127.0.0.1:2480");
        assert_eq!(a.begin(&mut |_| None).unwrap(), b.begin(&mut |_| None).unwrap());
        assert_ne!(a.own_id(), b.own_id());
        assert_eq!(a.begin(&mut |_| None).unwrap()[0].id, a.own_id());
        assert_eq!(a.urls_of_others().count(), 2);
    }

    #[test]
    fn members_that_were_discovered_make_the_same_rows() {
        let discovered = |name, members, advertised| {
            let initial = initial(name, members, advertised);
            InitialCluster { names_are_made_up: true, ..initial }.begin(&mut |_| None).map(|mut rows| {
                rows.sort_by_key(|row| row.id);
                rows
            })
        };
        let a = discovered("a", "0=http://h:2,a=http://h:1,1=http://h:3", "http://h:1");
        let b = discovered("b", "1=http://h:1,b=http://h:2,0=http://h:3", "http://h:2");
        assert_eq!(a.unwrap(), b.unwrap());
    }

    /// The texts of an etcd 3.7.1 that is started so.
    #[test]
    fn flags_that_contradict_each_other_are_refused_in_the_words_of_etcd() {
        let one = "a=http://x:1";
        for (name, cluster, advertised, problem) in [
            ("d", one, "http://x:1", "couldn't find local name \"d\" in the initial cluster configuration"),
            (
                "a",
                "a=http://x:1,b=http://x:1",
                "http://x:1",
                "initial cluster a=http://x:1,b=http://x:1 has duplicate url",
            ),
            (
                "a",
                one,
                "http://y:1",
                "--initial-cluster has a=http://x:1 but missing from --initial-advertise-peer-urls=http://y:1 \
                 (resolved urls: \"http://y:1\" != \"http://x:1\")",
            ),
            (
                "a",
                one,
                "http://x:1,http://x:2",
                "--initial-advertise-peer-urls has http://x:2 but missing from \
                 --initial-cluster=a=http://x:1,a=http://x:2",
            ),
        ] {
            let error = initial(name, cluster, advertised).begin(&mut |_| None).unwrap_err();
            assert_eq!(error.to_string(), problem);
        }
        let named = initial("a", one, "http://y:1").begin(&mut |_| Some("10.0.0.1:1".to_owned()));
        assert_eq!(named.unwrap()[0].peer_ur_ls, ["http://x:1"], "the same place by another name");
        assert!(initial("a", one, "http://elsewhere:1").may_join().is_ok());
        assert!(initial("b", one, "http://x:1").may_join().is_err());
    }
}
