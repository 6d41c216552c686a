//! The clients' record of a cluster under faults, and what is checked in it.
//!
//! - A write that was acknowledged is in the history, at its revision, with its value, once; also
//!   one without an answer is there at most once, and nothing is there that nobody wrote.
//! - A compare and swap that was acknowledged followed the change that it named.
//! - A reply of a member never shows an older revision than an earlier reply of that member.
//! - A write or a linearizable read never shows an older revision than one that was acknowledged
//!   anywhere before it began.
//! - A read shows the key as it was at the revision of its header.
//! - Each watcher on each member is told of everything, once, in order: of one same history.

use std::collections::BTreeMap;
use std::io::Write as _;

use revd_proto::etcdserverpb::WatchResponse;
use revd_proto::mvccpb::KeyValue;
use revd_proto::mvccpb::event::EventType;

use crate::harness::failure;
use revd_checker::{Changes, Transcript};

/// A write that was sent: by which writer, and its number, which its value begins with.
pub type Written = (u64, u64);

/// A write that was acknowledged.
#[derive(Debug)]
pub struct Acknowledged {
    pub member: usize,
    pub written: Written,
    pub revision: i64,
    /// The change that the key had to have before.
    pub follows: Option<i64>,
}

/// A read that was answered.
#[derive(Debug)]
pub struct Read {
    pub member: usize,
    pub key: Vec<u8>,
    pub revision: i64,
    pub found: Option<KeyValue>,
}

/// The revision that a call must not be behind.
#[derive(Clone, Copy, Debug)]
pub struct Floor(i64);

/// etcd's answers to calls that a fault has met; a client of a cluster has to expect no others.
const ERRORS: [&str; 6] = [
    "(transport)",
    "etcdserver: leader changed",
    "etcdserver: no leader",
    "etcdserver: request timed out",
    "etcdserver: request timed out, possibly due to connection lost",
    "etcdserver: request timed out, possibly due to previous leader failure",
];

/// All that the clients were told.
#[derive(Debug, Default)]
pub struct Record {
    /// An event is told only when reads show it too; etcd may tell it a moment earlier.
    tells_what_reads_show: bool,
    first: i64,
    /// The newest revision that each member has shown.
    shown: BTreeMap<usize, i64>,
    /// The newest revision that was acknowledged or read linearizably.
    agreed: i64,
    sent: BTreeMap<u64, u64>,
    pub acknowledged: Vec<Acknowledged>,
    pub reads: Vec<Read>,
    pub transcripts: Vec<Transcript>,
    /// Errors by code and text.
    pub errors: BTreeMap<String, u64>,
    /// Faults that were seen at once.
    wrong: Vec<String>,
    /// The history has changes of other clients too.
    pub has_others: bool,
}

pub fn key(writer: u64) -> Vec<u8> {
    format!("writer/{writer:03}").into_bytes()
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.split_once(' ')?.0.parse().ok()
}

impl Record {
    /// An empty one, of a history behind this revision.
    pub fn of(tells_what_reads_show: bool, first: i64) -> Self {
        Self { tells_what_reads_show, first, ..Self::default() }
    }

    /// A call to a member begins.
    pub fn begins(&self, member: usize, is_linearizable: bool) -> Floor {
        let shown = self.shown.get(&member).copied().unwrap_or(0);
        Floor(if is_linearizable { shown.max(self.agreed) } else { shown })
    }

    /// The reply to it shows this revision.
    pub fn shows(&mut self, member: usize, is_linearizable: bool, floor: Floor, revision: i64, what: &str) {
        if revision < floor.0 {
            let Floor(floor) = floor;
            self.wrong.push(format!("member {member} shows {revision} after {floor} was shown: {what}"));
        }
        let shown = self.shown.entry(member).or_insert(0);
        *shown = revision.max(*shown);
        if is_linearizable {
            self.agreed = self.agreed.max(revision);
        }
    }

    /// A watcher on a member is told of a change at this revision. It may be behind what the member
    /// has shown to others.
    pub fn tells(&mut self, member: usize, revision: i64) {
        if self.tells_what_reads_show {
            let shown = self.shown.entry(member).or_insert(0);
            *shown = revision.max(*shown);
        }
    }

    /// The next number of a writer.
    pub fn next(&mut self, writer: u64) -> u64 {
        let sent = self.sent.entry(writer).or_insert(0);
        *sent += 1;
        *sent
    }

    /// The newest revision that anybody was told of.
    pub fn newest(&self) -> i64 {
        self.shown.values().copied().max().unwrap_or(1).max(self.agreed)
    }

    /// Counts an error by its code and text.
    pub fn failed(&mut self, status: &tonic::Status) {
        // The client's own words for a connection that is lost differ by where it noticed.
        let is_transport = std::error::Error::source(status).is_some();
        let text = if is_transport { "(transport)" } else { status.message() };
        if !ERRORS.contains(&text) {
            self.wrong.push(format!("no error of a cluster: {status:?}"));
        }
        *self.errors.entry(format!("{:?}: {text}", status.code())).or_insert(0) += 1;
    }

    /// Holds the record against the history.
    ///
    /// # Errors
    /// The first faults, in words.
    pub fn check(&self, history: &Changes) -> Result<(), String> {
        let mut wrong = self.wrong.clone();
        wrong.extend(dense(history, self.first + 1).filter(|_| !self.has_others));
        let keys = by_key(history);
        for told in &self.acknowledged {
            wrong.extend(self.written_once(told, &keys).err());
        }
        for (key, changes) in &keys {
            wrong.extend(self.nothing_else(key, changes).err());
        }
        for read in &self.reads {
            let changes = keys.get(&read.key).map_or(&[][..], Vec::as_slice);
            let later = changes.partition_point(|change| change.mod_revision <= read.revision);
            let then = later.checked_sub(1).map(|at| &changes[at]);
            if then != read.found.as_ref() {
                let Read { member, key, revision, found } = read;
                let key = String::from_utf8_lossy(key);
                wrong.push(format!(
                    "member {member} read {key} at revision {revision}: {found:?}, but it was {then:?}"
                ));
            }
        }
        for transcript in &self.transcripts {
            wrong.extend(transcript.check(history).err());
        }
        wrong.truncate(10);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    /// Leaves all of it, and the history that it is held against, in files of the failed test.
    pub fn leave(&self, history: &Changes) {
        let Some(mut file) = failure::file("record.txt") else { return };
        let _ = writeln!(file, "errors {:#?}\nfaults {:#?}", self.errors, self.wrong);
        for told in &self.acknowledged {
            let _ = writeln!(file, "{told:?}");
        }
        for Read { member, key, revision, found } in &self.reads {
            let (key, found) = (String::from_utf8_lossy(key), found.as_ref().map(in_short));
            let _ = writeln!(file, "read on member {member} at {revision}: {key} is {found:?}");
        }
        for Transcript { request, responses, complete_to } in &self.transcripts {
            let _ = writeln!(file, "watch {request:?}, complete to {complete_to:?}");
            for response in responses {
                let events = response.events.iter().filter_map(|event| event.kv.as_ref().map(in_short));
                let events: Vec<_> = events.collect();
                let _ = writeln!(
                    file,
                    "  {:?}: {events:?}",
                    WatchResponse { events: vec![], ..response.clone() }
                );
            }
        }
        let Some(mut file) = failure::file("history.txt") else { return };
        for kv in history.events().iter().filter_map(|event| event.kv.as_ref()) {
            let _ = writeln!(file, "{}", in_short(kv));
        }
    }

    /// An acknowledged write is at its revision, behind the change that it named.
    fn written_once(
        &self,
        told: &Acknowledged,
        keys: &BTreeMap<Vec<u8>, Vec<KeyValue>>,
    ) -> Result<(), String> {
        let changes = keys.get(&key(told.written.0)).map_or(&[][..], Vec::as_slice);
        let at = changes.iter().position(|change| change.mod_revision == told.revision);
        let Some(at) = at.filter(|at| number(&changes[*at].value) == Some(told.written.1)) else {
            let Acknowledged { member, .. } = told;
            return Err(format!("member {member} acknowledged {told:?}, and it is not there"));
        };
        let before = at.checked_sub(1).map_or(0, |before| changes[before].mod_revision);
        if told.follows.is_some_and(|follows| follows != before) {
            return Err(format!("{told:?} follows the change of {before}"));
        }
        Ok(())
    }

    /// Every change of a key was sent, and is there once.
    fn nothing_else(&self, key: &[u8], changes: &[KeyValue]) -> Result<(), String> {
        let text = String::from_utf8_lossy(key);
        let writer = text.strip_prefix("writer/").and_then(|writer| writer.parse().ok());
        let sent = writer.and_then(|writer: u64| self.sent.get(&writer)).copied().unwrap_or(0);
        let mut numbers: Vec<_> = changes.iter().map(|change| number(&change.value)).collect();
        numbers.sort_unstable();
        let is_sent = numbers.iter().all(|number| number.is_some_and(|number| number <= sent));
        if !is_sent || numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("{text} has a change that nobody sent, or one twice: {numbers:?}"));
        }
        Ok(())
    }
}

/// A change without the filler of its value.
fn in_short(kv: &KeyValue) -> String {
    let key = String::from_utf8_lossy(&kv.key);
    let KeyValue { mod_revision, create_revision, version, .. } = kv;
    format!(
        "{key} = {:?} at {mod_revision}, created at {create_revision}, version {version}",
        number(&kv.value)
    )
}

/// Every revision has its change: each command here makes exactly one.
fn dense(history: &Changes, first: i64) -> Option<String> {
    let revisions = history.events().iter().map(|event| event.kv.as_ref().unwrap().mod_revision);
    let gap = revisions.zip(first..).find(|(revision, expected)| revision != expected);
    gap.map(|(revision, expected)| format!("the history has {revision} where {expected} belongs"))
}

fn by_key(history: &Changes) -> BTreeMap<Vec<u8>, Vec<KeyValue>> {
    let mut keys = BTreeMap::<Vec<u8>, Vec<KeyValue>>::new();
    for event in history.events() {
        assert_eq!(event.r#type, EventType::Put as i32, "nobody deletes");
        let kv = event.kv.clone().unwrap();
        keys.entry(kv.key.to_vec()).or_default().push(kv);
    }
    keys
}

#[cfg(test)]
mod tests {
    use revd_proto::mvccpb::Event;

    use super::*;

    fn change(writer: u64, number: u64, revision: i64, version: i64) -> KeyValue {
        KeyValue {
            key: key(writer).into(),
            value: format!("{number} x").into(),
            mod_revision: revision,
            create_revision: revision + 1 - version,
            version,
            ..KeyValue::default()
        }
    }

    fn history(changes: &[KeyValue]) -> Changes {
        let mut history = Changes::default();
        for kv in changes {
            history.push(Event { kv: Some(kv.clone()), ..Event::default() });
        }
        history
    }

    fn acknowledged(writer: u64, number: u64, revision: i64, follows: Option<i64>) -> Acknowledged {
        Acknowledged { member: 0, written: (writer, number), revision, follows }
    }

    /// A record of two writes and a read of the second, and spoiled ones.
    #[test]
    fn each_fault_is_seen() {
        let changes = [change(1, 1, 2, 1), change(1, 2, 3, 2)];
        let record = |told: Vec<Acknowledged>, found: usize| {
            let mut record = Record { acknowledged: told, first: 1, ..Record::default() };
            record.next(1);
            record.next(1);
            let found = Some(changes[found].clone());
            record.reads.push(Read { member: 0, key: key(1), revision: 3, found });
            record
        };
        let good = || vec![acknowledged(1, 1, 2, None), acknowledged(1, 2, 3, Some(2))];
        record(good(), 1).check(&history(&changes)).unwrap();
        let fault = |record: Record, changes: &[KeyValue]| record.check(&history(changes)).unwrap_err();
        assert!(fault(record(good(), 0), &changes).contains("but it was"), "a stale read");
        assert!(fault(record(good(), 1), &changes[..1]).contains("it is not there"), "a lost write");
        let other = vec![acknowledged(1, 2, 3, Some(0))];
        assert!(fault(record(other, 1), &changes).contains("follows"), "a lost update");
        let twice = [changes[0].clone(), changes[1].clone(), change(1, 2, 4, 3)];
        assert!(fault(record(good(), 1), &twice).contains("twice"), "a write twice");
        let gap = [changes[0].clone(), change(1, 2, 4, 2)];
        assert!(fault(record(Vec::new(), 1), &gap).contains("belongs"), "a revision left out");
        let mut back = record(good(), 1);
        let floor = back.begins(0, false);
        back.shows(0, false, floor, 3, "a read");
        back.shows(1, true, floor, 5, "a write");
        assert!(back.begins(0, false).0 == 3 && back.begins(0, true).0 == 5 && back.newest() == 5);
        let floor = back.begins(0, true);
        back.shows(0, true, floor, 4, "a linearizable read");
        assert!(fault(back, &changes).contains("member 0 shows 4 after 5"), "a revision that goes back");
    }
}
