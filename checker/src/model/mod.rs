//! etcd's key space as a map: every version of every key, and the changes in their order. It is
//! slow, small, and shares nothing with the store that is checked.

mod attempt;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use bytes::Bytes;
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use crate::range;

pub use attempt::Attempt;
pub(crate) use attempt::without_headers;

/// A state of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The revision that it began at.
    pub main: i64,
    /// Its place among the changes of that revision.
    pub sub: i64,
    /// None: the key was deleted.
    pub kv: Option<KeyValue>,
}

/// The key space of a cluster at every revision.
#[derive(Debug, Clone, Default)]
pub struct Model {
    first: i64,
    revision: i64,
    keys: BTreeMap<Bytes, Vec<Version>>,
    attached: BTreeMap<i64, BTreeSet<Bytes>>,
    changes: Vec<Event>,
}

impl Model {
    /// Begins at a revision with these keys.
    #[must_use]
    pub fn new(first: i64, found: &[KeyValue]) -> Self {
        let mut model = Self { first, revision: first, ..Self::default() };
        for kv in found {
            let version = Version { main: kv.mod_revision, sub: 0, kv: Some(kv.clone()) };
            model.keys.entry(kv.key.clone()).or_default().push(version);
            if kv.lease != 0 {
                model.attached.entry(kv.lease).or_default().insert(kv.key.clone());
            }
        }
        model
    }

    /// The revision that it began at.
    #[must_use]
    pub fn first(&self) -> i64 {
        self.first
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// All changes since the first revision, without previous values.
    #[must_use]
    pub fn changes(&self) -> &[Event] {
        &self.changes
    }

    /// The next revision changes this much.
    pub fn push(&mut self, changes: Vec<Event>) {
        self.revision += 1;
        for (sub, event) in (0..).zip(changes) {
            let kv = event.kv.clone().unwrap_or_default();
            let key = kv.key.clone();
            let before = self.get(&key, self.revision).map_or(0, |before| before.lease);
            if let Some(keys) = self.attached.get_mut(&before) {
                keys.remove(&key);
            }
            let kv = (event.r#type == EventType::Put as i32).then_some(kv);
            if let Some(lease) = kv.as_ref().map(|kv| kv.lease).filter(|lease| *lease != 0) {
                self.attached.entry(lease).or_default().insert(key.clone());
            }
            self.keys.entry(key).or_default().push(Version { main: self.revision, sub, kv });
            self.changes.push(event);
        }
    }

    /// A key as it was at a revision.
    #[must_use]
    pub fn get(&self, key: &[u8], at: i64) -> Option<&KeyValue> {
        let versions = self.keys.get(key)?;
        let later = versions.partition_point(|version| version.main <= at);
        versions[..later].last()?.kv.as_ref()
    }

    /// All versions of all keys.
    pub fn versions(&self) -> impl Iterator<Item = (&Bytes, &[Version])> {
        self.keys.iter().map(|(key, versions)| (key, &versions[..]))
    }

    /// The keys of a range as they were at a revision, in order.
    #[must_use]
    pub fn range(&self, start: &Bytes, end: &Bytes, at: i64) -> Vec<&KeyValue> {
        let (start, end) = range::bounds(start, end);
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let keys = self.keys.range((Bound::Included(start), end));
        keys.filter_map(|(key, _)| self.get(key, at)).collect()
    }

    /// The keys that are attached to a lease now.
    #[must_use]
    pub fn attached(&self, lease: i64) -> Option<&BTreeSet<Bytes>> {
        self.attached.get(&lease).filter(|keys| !keys.is_empty())
    }

    /// The changes that revoking a lease makes now.
    #[must_use]
    pub fn revoke(&self, lease: i64) -> Vec<Event> {
        let keys = self.attached(lease).into_iter().flatten();
        keys.map(|key| deletion(key.clone(), self.revision + 1)).collect()
    }
}

/// The event of a deleted key.
pub(crate) fn deletion(key: Bytes, revision: i64) -> Event {
    let kv = KeyValue { key, mod_revision: revision, ..KeyValue::default() };
    Event { r#type: EventType::Delete as i32, kv: Some(kv), prev_kv: None }
}
