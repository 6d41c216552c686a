//! The members that a cluster begins with, as they register with a discovery service
//! (`--discovery-endpoints`), by etcd's rules, with its rows and in its words.
//!
//! ```text
//! /_etcd/registry/TOKEN/_config/size      how many members the cluster begins with
//! /_etcd/registry/TOKEN/members/ID        NAME=URL,NAME=URL ... of one of them
//! ```
//!
//! The service is any server of etcd's API. An operator writes the size; each member writes its own
//! row and waits until there are so many. The first of them, by the revision that made their rows,
//! are the cluster: all members come to the same ones, and the others are told that it is full.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::limits;
use crate::urls;

/// Where the rows of all clusters are.
const PREFIX: &str = "/_etcd/registry";

/// The flags that count here.
#[derive(Debug, Clone, Copy)]
pub struct Registration<'a> {
    /// Names the cluster; also a part of its identity.
    pub token: &'a str,
    /// The id of this member.
    pub id: u64,
    /// Its name.
    pub name: &'a str,
    /// The peer URLs that it tells others; sorted.
    pub advertised: &'a [String],
    /// It begins a new cluster, and joins none.
    pub begins_cluster: bool,
}

/// A row of the service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The revision that made it.
    pub created: i64,
}

/// Why a member does not come into its cluster so, in etcd's words, where it has any.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// A running cluster is joined without it.
    #[error("discovery URL should not be set when joining existing initial cluster")]
    Joins,
    /// The size is not written.
    #[error("failed to join discovery cluster (discovery: size key not found)")]
    NoSize,
    /// The size is no number of members.
    #[error("failed to join discovery cluster (discovery: size key is bad)")]
    BadSize,
    /// As many others have come before.
    #[error("failed to join discovery cluster (discovery: cluster is full)")]
    Full,
    /// A row that is no member.
    #[error("failed to join discovery cluster (discovery: invalid peer URL)")]
    BadUrl,
    /// Two members at one place.
    #[error("discovery cluster {0} has duplicate url")]
    DuplicateUrl(String),
    /// Two rows of one name: each would take the other for itself.
    #[error(
        "discovery cluster {cluster} has two members with the name {name:?}: choose another --name, and a new \
         --discovery-token"
    )]
    DuplicateName {
        /// All members.
        cluster: String,
        /// The name.
        name: String,
    },
}

/// A step on the way, for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// The service has not answered; it is asked again after this time.
    Retry {
        /// The purpose of the question.
        step: &'static str,
        /// Why it has not.
        problem: &'a str,
        /// The time.
        pause: Duration,
    },
    /// The row of this member is there.
    Registered(&'a Row),
    /// A row of a member that was not there before.
    Found(&'a Row),
    /// A row that is none, in etcd's words.
    PassedOver(&'a Row, &'static str),
    /// Others are not there yet.
    Waiting {
        /// Members that are there.
        found: usize,
        /// Members that there will be.
        size: usize,
    },
    /// All are there.
    Complete {
        /// Members of the cluster.
        size: usize,
    },
}

/// Questions to the service, and time. A question is over within a bounded time.
pub trait RegistryEffects {
    /// The row with this key.
    ///
    /// # Errors
    /// Why there is no answer, in words.
    fn row(&mut self, key: &str) -> Result<Option<Row>, String>;
    /// The rows whose keys begin so.
    ///
    /// # Errors
    /// Why there is no answer, in words.
    fn rows(&mut self, prefix: &str) -> Result<Vec<Row>, String>;
    /// Writes a row.
    ///
    /// # Errors
    /// Why there is no answer, in words. It may be written all the same.
    fn put(&mut self, key: &str, value: &str) -> Result<(), String>;
    /// Waits.
    fn wait(&mut self, pause: Duration);
    /// Tells the operator.
    fn tell(&mut self, progress: Progress<'_>);
}

/// Registers this member and waits for the others: peer URLs by name, those of this member among
/// them.
///
/// # Errors
/// [`RegistryError`]
pub fn join(
    own: Registration<'_>,
    effects: &mut impl RegistryEffects,
) -> Result<BTreeMap<String, Vec<String>>, RegistryError> {
    if !own.begins_cluster {
        return Err(RegistryError::Joins);
    }
    let mut registry = Registry { own, effects, retries: 0, told: BTreeSet::new() };
    registry.look()?;
    registry.register();
    let (size, mut members) = registry.look()?;
    let mut found = None;
    while members.len() < size {
        if found.replace(members.len()) != Some(members.len()) {
            registry.effects.tell(Progress::Waiting { found: members.len(), size });
        }
        registry.effects.wait(limits::REGISTRY_INTERVAL);
        members = registry.members(size)?;
    }
    registry.effects.tell(Progress::Complete { size });
    cluster(&members[..size])
}

/// The rows of one cluster, asked for until the service answers.
struct Registry<'a, F> {
    own: Registration<'a>,
    effects: &'a mut F,
    /// Questions without an answer, since the last one with one.
    retries: u32,
    /// Keys that the operator was told of.
    told: BTreeSet<String>,
}

impl<F: RegistryEffects> Registry<'_, F> {
    fn key(&self, rest: &str) -> String {
        format!("{PREFIX}/{}/{rest}", self.own.token)
    }

    fn own_key(&self) -> String {
        self.key(&format!("members/{:x}", self.own.id))
    }

    /// The size of the cluster, and the members that are there.
    fn look(&mut self) -> Result<(usize, Vec<Row>), RegistryError> {
        let key = self.key("_config/size");
        let row =
            self.ask("cluster status check", |effects| effects.row(&key)).ok_or(RegistryError::NoSize)?;
        let size = row.value.parse::<i64>().ok().and_then(|size| usize::try_from(size).ok());
        let size = size.filter(|size| *size > 0).ok_or(RegistryError::BadSize)?;
        Ok((size, self.members(size)?))
    }

    /// The members that are there, the first ones first. This one is among the first `size`, or
    /// there are fewer.
    fn members(&mut self, size: usize) -> Result<Vec<Row>, RegistryError> {
        let prefix = self.key("members");
        let rows = self.ask("cluster status check", |effects| effects.rows(&prefix));
        let mut members = Vec::new();
        for mut row in rows {
            row.value = row.value.trim().to_owned();
            let is_new = self.told.insert(row.key.clone());
            let is_member = row.value.contains('=');
            match (is_new, is_member) {
                (true, true) => self.effects.tell(Progress::Found(&row)),
                (true, false) => {
                    let problem = "invalid peer info returned from discovery service";
                    self.effects.tell(Progress::PassedOver(&row, problem));
                }
                (false, _) => {}
            }
            members.extend(is_member.then_some(row));
        }
        members.sort_by_key(|row| row.created);
        let own = self.own_key();
        let is_full = members.len() >= size && members[..size].iter().all(|row| row.key != own);
        if is_full { Err(RegistryError::Full) } else { Ok(members) }
    }

    /// Writes this member's row; once more does no harm.
    fn register(&mut self) {
        let pairs: Vec<String> =
            self.own.advertised.iter().map(|url| format!("{}={url}", self.own.name)).collect();
        let row = Row { key: self.own_key(), value: pairs.join(","), created: 0 };
        self.ask("register member itself", |effects| effects.put(&row.key, &row.value));
        self.effects.tell(Progress::Registered(&row));
    }

    /// Asks until there is an answer: a service may be up later than its members.
    fn ask<T>(&mut self, step: &'static str, mut question: impl FnMut(&mut F) -> Result<T, String>) -> T {
        loop {
            match question(self.effects) {
                Ok(answer) => {
                    self.retries = 0;
                    return answer;
                }
                Err(problem) => {
                    self.retries = (self.retries + 1).min(limits::REGISTRY_DOUBLINGS_MAX);
                    let pause = Duration::from_secs(1 << self.retries);
                    self.effects.tell(Progress::Retry { step, problem: &problem, pause });
                    self.effects.wait(pause);
                }
            }
        }
    }
}

/// The members that these rows name.
fn cluster(rows: &[Row]) -> Result<BTreeMap<String, Vec<String>>, RegistryError> {
    let (mut members, mut row_of) = (BTreeMap::<String, Vec<String>>::new(), BTreeMap::new());
    let mut shared = None;
    for row in rows {
        for pair in row.value.split(',') {
            let (name, url) = pair.split_once('=').ok_or(RegistryError::BadUrl)?;
            members.entry(name.to_owned()).or_default().push(url.to_owned());
            if row_of.insert(name.to_owned(), &row.key).is_some_and(|other| *other != row.key) {
                shared = Some(name.to_owned());
            }
        }
    }
    let mut pairs = Vec::new();
    for (name, texts) in &mut members {
        *texts = urls::parse(texts).map_err(|_| RegistryError::BadUrl)?;
        pairs.extend(texts.iter().map(|url| format!("{name}={url}")));
    }
    pairs.sort();
    let mut seen = BTreeSet::new();
    if !members.values().flatten().all(|url| seen.insert(url)) {
        return Err(RegistryError::DuplicateUrl(pairs.join(",")));
    }
    match shared {
        Some(name) => Err(RegistryError::DuplicateName { cluster: pairs.join(","), name }),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service; what is done at it is written down.
    #[derive(Default)]
    struct Service {
        rows: Vec<Row>,
        /// Rows that others write, one with each wait.
        later: Vec<(&'static str, &'static str)>,
        /// Questions that it does not answer.
        silent: usize,
        said: Vec<String>,
    }

    impl Service {
        fn of(rows: &[(&str, &str)]) -> Self {
            let mut service = Self::default();
            rows.iter().for_each(|(key, value)| service.write(key, value));
            service
        }

        fn write(&mut self, key: &str, value: &str) {
            let key = if key.starts_with('/') { key.to_owned() } else { format!("{PREFIX}/t/{key}") };
            match self.rows.iter_mut().find(|row| row.key == key) {
                Some(row) => value.clone_into(&mut row.value),
                None => {
                    let created = self.rows.len() as i64 + 2;
                    // Keys stand in order, as a service sends them.
                    self.rows.push(Row { key, value: value.to_owned(), created });
                    self.rows.sort_by(|left, right| left.key.cmp(&right.key));
                }
            }
        }

        fn answers(&mut self) -> Result<(), String> {
            if self.silent == 0 {
                return Ok(());
            }
            self.silent -= 1;
            Err("connection refused".to_owned())
        }
    }

    impl RegistryEffects for Service {
        fn row(&mut self, key: &str) -> Result<Option<Row>, String> {
            self.answers()?;
            Ok(self.rows.iter().find(|row| row.key == key).cloned())
        }

        fn rows(&mut self, prefix: &str) -> Result<Vec<Row>, String> {
            self.answers()?;
            Ok(self.rows.iter().filter(|row| row.key.starts_with(prefix)).cloned().collect())
        }

        fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
            self.answers()?;
            self.write(key, value);
            Ok(())
        }

        fn wait(&mut self, pause: Duration) {
            self.said.push(format!("wait {pause:?}"));
            if self.silent == 0 {
                let (key, value) = self.later.remove(0);
                self.write(key, value);
            }
        }

        fn tell(&mut self, progress: Progress<'_>) {
            let last = |row: &Row| row.key.rsplit('/').next().unwrap().to_owned();
            self.said.push(match progress {
                Progress::Retry { step, problem, pause } => format!("{step}: {problem}, again in {pause:?}"),
                Progress::Registered(row) => format!("registered {} {}", row.key, row.value),
                Progress::Found(row) => format!("found {}", last(row)),
                Progress::PassedOver(row, problem) => format!("{}: {problem}", last(row)),
                Progress::Waiting { found, size } => format!("{found} of {size}"),
                Progress::Complete { size } => format!("all {size}"),
            });
        }
    }

    const OWN: &str = "members/b";
    const SIZE: (&str, &str) = ("_config/size", "3");
    const A: (&str, &str) = ("members/a", "a=http://a:1");
    const C: (&str, &str) = ("members/c", "c=http://c:1");
    const D: (&str, &str) = ("members/d", "d=http://d:1");

    fn joined(service: &mut Service) -> Result<String, String> {
        let advertised = ["http://b:1".to_owned(), "http://b:2".to_owned()];
        let own =
            Registration { token: "t", id: 0xb, name: "b", advertised: &advertised, begins_cluster: true };
        let members = join(own, service).map_err(|error| error.to_string())?;
        let pairs = members.iter().map(|(name, urls)| format!("{name}={}", urls.join("+")));
        Ok(pairs.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn a_member_registers_and_waits_for_the_others() {
        let mut service = Service::of(&[C, SIZE]);
        service.later = vec![("members/odd", "no member"), A];
        assert_eq!(joined(&mut service).unwrap(), "a=http://a:1,b=http://b:1+http://b:2,c=http://c:1");
        assert_eq!(
            service.said,
            [
                "found c",
                "registered /_etcd/registry/t/members/b b=http://b:1,b=http://b:2",
                "found b",
                "2 of 3",
                "wait 1s",
                "odd: invalid peer info returned from discovery service",
                "wait 1s",
                "found a",
                "all 3",
            ]
        );
    }

    #[test]
    fn the_first_rows_by_revision_are_the_cluster_and_others_are_told_that_it_is_full() {
        let full = "failed to join discovery cluster (discovery: cluster is full)";
        let mut service = Service::of(&[D, SIZE, C, A]);
        assert_eq!(joined(&mut service).unwrap_err(), full);
        assert!(service.rows.iter().all(|row| !row.key.ends_with(OWN)), "it has registered");

        // Another one has registered between the look and the row of this one.
        let mut service = Service::of(&[SIZE, D, A]);
        service.later = vec![];
        let own = Row { key: format!("{PREFIX}/t/{OWN}"), value: "b=http://b:1".to_owned(), created: 90 };
        service.rows.push(own);
        service.write(C.0, C.1);
        assert_eq!(joined(&mut service).unwrap_err(), full);

        // One that comes too late does not put a member out that has been there before.
        let mut service = Service::of(&[SIZE, D, (OWN, "b=http://b:1"), C, A]);
        assert_eq!(joined(&mut service).unwrap(), "b=http://b:1+http://b:2,c=http://c:1,d=http://d:1");
    }

    #[test]
    fn a_service_that_does_not_answer_is_asked_again_more_and_more_seldom() {
        let mut service = Service::of(&[("_config/size", "1")]);
        service.silent = 6;
        service.later = vec![D];
        // The row of another one that comes meanwhile, and the cluster is full.
        assert!(joined(&mut service).unwrap_err().contains("full"));
        let waits: Vec<&str> = service.said.iter().filter_map(|said| said.strip_prefix("wait ")).collect();
        assert_eq!(waits, ["2s", "4s", "8s", "16s", "16s", "16s"]);
        assert_eq!(service.said[0], "cluster status check: connection refused, again in 2s");
    }

    /// The texts of an etcd 3.7.1 beside a service with such rows, but for the last one, with which
    /// it begins a cluster of one member where two were wanted.
    #[test]
    fn rows_that_make_no_cluster_are_refused_in_the_words_of_etcd() {
        let join = |what: &str| format!("failed to join discovery cluster (discovery: {what})");
        let two = ("_config/size", "2");
        for (rows, problem) in [
            (&[A][..], join("size key not found")),
            (&[("_config/size", "x")], join("size key is bad")),
            (&[("_config/size", "0")], join("size key is bad")),
            (&[two, ("members/1", "x=foo")], join("invalid peer URL")),
            (
                &[two, ("members/1", "x=http://b:1")],
                "discovery cluster b=http://b:1,b=http://b:2,x=http://b:1 has duplicate url".to_owned(),
            ),
            (
                &[two, ("members/1", "b=http://x:1")],
                "discovery cluster b=http://b:1,b=http://b:2,b=http://x:1 has two members with the name \"b\": choose \
                 another --name, and a new --discovery-token"
                    .to_owned(),
            ),
        ] {
            assert_eq!(joined(&mut Service::of(rows)).unwrap_err(), problem);
        }
        let joins = Registration { token: "t", id: 1, name: "b", advertised: &[], begins_cluster: false };
        let refused = super::join(joins, &mut Service::default()).unwrap_err().to_string();
        assert_eq!(refused, "discovery URL should not be set when joining existing initial cluster");
    }
}
