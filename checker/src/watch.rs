//! Watchers: what they were told, held against what happened.
//!
//! From etcd's promises: a watch is ordered, unique, reliable (no gap), atomic (whole revisions),
//! its filters and previous values are right, and a progress reply never overtakes an event.

use std::collections::BTreeMap;

use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use crate::range::is_in_range;

/// Everything that happened, in order.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    /// As events without previous values; a deletion has its key and revision only.
    events: Vec<Event>,
    /// Each key's states, by the revision they began at.
    states: BTreeMap<Vec<u8>, BTreeMap<i64, Option<KeyValue>>>,
    /// Everything below this revision may be gone.
    pub compacted: i64,
}

impl Changes {
    /// The next change; changes come in revision order.
    ///
    /// # Panics
    /// If it does not.
    pub fn push(&mut self, event: Event) {
        let kv = event.kv.clone().expect("an event has a key");
        assert!(self.events.last().is_none_or(|last| mod_revision(last) <= kv.mod_revision));
        let state = (event.r#type == EventType::Put as i32).then(|| kv.clone());
        self.states.entry(kv.key.to_vec()).or_default().insert(kv.mod_revision, state);
        self.events.push(event);
    }

    /// All of them.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The revision of the newest change.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.events.last().map_or(1, mod_revision)
    }

    fn before(&self, key: &[u8], revision: i64) -> Option<&KeyValue> {
        self.states.get(key)?.range(..revision).next_back()?.1.as_ref()
    }

    /// A compaction at its revision keeps only the last change of each key.
    fn may_be_gone(&self, at: usize) -> bool {
        let (event, revision) = (&self.events[at], mod_revision(&self.events[at]));
        let same_revision = self.events[at + 1..].iter().take_while(|later| mod_revision(later) == revision);
        revision <= self.compacted && same_revision.map(key).any(|later| later == key(event))
    }
}

/// Requests of one watcher, and the replies to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// As it was asked for.
    pub request: WatchCreateRequest,
    /// The first one says that it is created; those of the whole stream (id -1) are among them.
    pub responses: Vec<WatchResponse>,
    /// If it was still watching at the end: it must have been told of
    /// everything up to this revision.
    pub complete_to: Option<i64>,
}

fn key(event: &Event) -> &[u8] {
    &event.kv.as_ref().expect("an event has a key").key
}

fn mod_revision(event: &Event) -> i64 {
    event.kv.as_ref().expect("an event has a key").mod_revision
}

impl Transcript {
    /// A watcher that was asked for, and told nothing yet.
    #[must_use]
    pub fn new(request: WatchCreateRequest) -> Self {
        Self { request, responses: Vec::new(), complete_to: None }
    }

    fn wants(&self, event: &Event) -> bool {
        let WatchCreateRequest { key: start, range_end, filters, .. } = &self.request;
        let start = if start.is_empty() { &b"\0"[..] } else { start };
        let key = key(event);
        let in_range = is_in_range(key, start, range_end);
        let filter =
            if event.r#type == EventType::Put as i32 { FilterType::Noput } else { FilterType::Nodelete };
        in_range && !filters.contains(&(filter as i32))
    }

    /// Holds it against what happened; how many events it was told of.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, history: &Changes) -> Result<usize, String> {
        let Some(created) = self.responses.first() else { return Ok(0) };
        if !created.created {
            return Err(format!("the first response is not the creation: {created:?}"));
        }
        if created.canceled {
            return if self.responses.len() == 1 { Ok(0) } else { Err("more after a refusal".to_owned()) };
        }
        let start =
            if self.request.start_revision > 0 { self.request.start_revision } else { header(created) + 1 };
        let first = history.events.partition_point(|event| mod_revision(event) < start);
        let mut reading =
            Reading { transcript: self, history, start, at: first, told: 0, reached: 0, open: None };
        for (number, response) in self.responses.iter().enumerate().skip(1) {
            reading.hears(response)?;
            if response.canceled {
                let is_last = number + 1 == self.responses.len();
                return if is_last { Ok(reading.told) } else { Err("told more after its end".to_owned()) };
            }
        }
        let next = reading.next().map(|at| &history.events[at]);
        match (self.complete_to, next) {
            (Some(end), Some(missing)) if mod_revision(missing) <= end => {
                Err(format!("never told of {missing:?}"))
            }
            _ => Ok(reading.told),
        }
    }

    fn check_previous(&self, event: &Event, history: &Changes) -> Result<(), String> {
        let kv = event.kv.as_ref().expect("an event has a key");
        let is_create = kv.create_revision == kv.mod_revision;
        let expected =
            if self.request.prev_kv && !is_create { history.before(&kv.key, kv.mod_revision) } else { None };
        let may_be_gone = kv.mod_revision <= history.compacted;
        if event.prev_kv.as_ref() == expected || (may_be_gone && event.prev_kv.is_none()) {
            return Ok(());
        }
        Err(format!("previous value {:?} of {kv:?}, expected {expected:?}", event.prev_kv))
    }
}

/// A transcript that is read from its beginning.
struct Reading<'c> {
    transcript: &'c Transcript,
    history: &'c Changes,
    start: i64,
    /// Changes before this one are told, or do not concern it.
    at: usize,
    told: usize,
    /// The revision of the newest event or progress.
    reached: i64,
    /// The revision of the newest event: more of it may follow, or must after a fragment.
    open: Option<i64>,
}

impl Reading<'_> {
    /// The next change that it has to be told of.
    fn next(&mut self) -> Option<usize> {
        let events = &self.history.events;
        while self.at < events.len() && !self.transcript.wants(&events[self.at]) {
            self.at += 1;
        }
        (self.at < events.len()).then_some(self.at)
    }

    fn next_revision(&mut self) -> Option<i64> {
        self.next().map(|at| mod_revision(&self.history.events[at]))
    }

    fn hears(&mut self, response: &WatchResponse) -> Result<(), String> {
        for event in &response.events {
            self.is_told(event)?;
            if mod_revision(event) > header(response) {
                return Err(format!("the header says {}, an event {event:?}", header(response)));
            }
        }
        let next = self.next_revision();
        if response.compact_revision == 0 && !response.canceled {
            // Of a response with events more may follow, but none of an older revision.
            let told = response.events.last().map_or(header(response), mod_revision);
            self.reached = self.reached.max(told);
        }
        if response.compact_revision != 0 {
            let may_be = next.is_none_or(|next| next < response.compact_revision)
                || self.start < response.compact_revision;
            let is_behind = may_be && self.reached < response.compact_revision;
            if response.compact_revision > self.history.compacted || !is_behind {
                return Err(format!("canceled without need: {response:?}"));
            }
        } else if response.events.is_empty() {
            let overtakes = next.is_some_and(|next| next <= header(response));
            if !response.canceled && overtakes {
                return Err(format!("progress {} overtakes the event of {next:?}", header(response)));
            }
        } else if !response.fragment && next.is_some() && next == self.open {
            return Err(format!("only half of revision {next:?}"));
        }
        Ok(())
    }

    fn is_told(&mut self, event: &Event) -> Result<(), String> {
        let history = self.history;
        let expected = loop {
            let Some(at) = self.next() else { return Err(format!("an event too many: {event:?}")) };
            self.at += 1;
            if same(event, &history.events[at]) || !history.may_be_gone(at) {
                break &history.events[at];
            }
        };
        if !same(event, expected) {
            return Err(format!("told {event:?}, expected {expected:?}"));
        }
        self.transcript.check_previous(event, history)?;
        self.open = Some(mod_revision(event));
        self.told += 1;
        Ok(())
    }
}

fn header(response: &WatchResponse) -> i64 {
    response.header.as_ref().map_or(0, |header| header.revision)
}

fn same(told: &Event, happened: &Event) -> bool {
    told.r#type == happened.r#type && told.kv == happened.kv
}

/// Transcripts that are spoilt in one way each; none if there is nothing to spoil.
#[must_use]
pub fn mutants(transcript: &Transcript, progress_to: i64) -> Vec<(&'static str, Transcript)> {
    let mut mutants = Vec::new();
    let with_events: Vec<usize> =
        (0..transcript.responses.len()).filter(|at| !transcript.responses[*at].events.is_empty()).collect();
    let Some(first) = with_events.first().copied() else { return mutants };
    let mut mutant = |name, change: &dyn Fn(&mut Vec<WatchResponse>)| {
        let mut spoiled = transcript.clone();
        change(&mut spoiled.responses);
        mutants.push((name, spoiled));
    };
    if with_events.len() > 1 {
        mutant("one event dropped", &|responses| {
            responses[first].events.remove(0);
        });
        mutant("two responses swapped", &|responses| responses.swap(first, with_events[1]));
    }
    mutant("one event doubled", &|responses| {
        let event = responses[first].events[0].clone();
        responses[first].events.insert(0, event);
    });
    mutant("progress too early", &|responses| {
        let mut early = responses[first].clone();
        early.events.clear();
        early.header.get_or_insert_default().revision = progress_to;
        responses.insert(first, early);
    });
    mutant("a value changed", &|responses| {
        if let Some(kv) = responses[first].events[0].kv.as_mut() {
            kv.version += 1;
        }
    });
    let halved = with_events.iter().copied().find(|at| {
        let response = &transcript.responses[*at];
        let revisions: Vec<i64> = response.events.iter().map(mod_revision).collect();
        !response.fragment && revisions.windows(2).any(|pair| pair[0] == pair[1])
    });
    if let Some(at) = halved {
        mutant("half a revision", &|responses| {
            let events = &responses[at].events;
            let cut =
                (1..events.len()).find(|cut| mod_revision(&events[*cut]) == mod_revision(&events[cut - 1]));
            let mut rest = responses[at].clone();
            rest.events = responses[at].events.split_off(cut.expect("a revision with two events"));
            responses.insert(at + 1, rest);
        });
    }
    mutants
}
