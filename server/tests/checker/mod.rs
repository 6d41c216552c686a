//! The watch checker: what watchers were told, held against what happened.
//!
//! From etcd's promises: a watch is ordered, unique, reliable (no gap), atomic (whole revisions),
//! its filters and previous values are right, and a progress reply never overtakes an event.

#![allow(unreachable_pub, reason = "shared by several test programs")]
#![allow(dead_code, reason = "not every one of them uses everything")]

use std::collections::BTreeMap;

use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

/// Everything that happened, in order.
#[derive(Debug, Default)]
pub struct History {
    /// As events without previous values; a deletion has its key and revision only.
    events: Vec<Event>,
    /// Each key's states, by the revision they began at.
    states: BTreeMap<Vec<u8>, BTreeMap<i64, Option<KeyValue>>>,
    /// Everything below this revision may be gone.
    pub compacted: i64,
}

impl History {
    /// The next change; changes come in revision order.
    pub fn push(&mut self, event: Event) {
        let kv = event.kv.clone().unwrap();
        assert!(self.events.last().is_none_or(|last| mod_revision(last) <= kv.mod_revision));
        let state = (event.r#type == EventType::Put as i32).then(|| kv.clone());
        self.states.entry(kv.key.to_vec()).or_default().insert(kv.mod_revision, state);
        self.events.push(event);
    }

    /// All of them.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The revision of the newest change.
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
#[derive(Debug, Clone)]
pub struct Transcript {
    pub request: WatchCreateRequest,
    pub responses: Vec<WatchResponse>,
    /// If it was still watching at the end: it must have been told of
    /// everything up to this revision.
    pub complete_to: Option<i64>,
}

fn key(event: &Event) -> &[u8] {
    &event.kv.as_ref().unwrap().key
}

fn mod_revision(event: &Event) -> i64 {
    event.kv.as_ref().unwrap().mod_revision
}

impl Transcript {
    pub fn new(request: WatchCreateRequest) -> Self {
        Self { request, responses: Vec::new(), complete_to: None }
    }

    fn wants(&self, event: &Event) -> bool {
        let WatchCreateRequest { key: start, range_end, filters, .. } = &self.request;
        let start = if start.is_empty() { &b"\0"[..] } else { start };
        let key = key(event);
        let in_range = match &range_end[..] {
            [] => key == start,
            [0] => key >= start,
            end => key >= start && key < end,
        };
        let filter =
            if event.r#type == EventType::Put as i32 { FilterType::Noput } else { FilterType::Nodelete };
        in_range && !filters.contains(&(filter as i32))
    }

    /// Holds it against what happened.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self, history: &History) -> Result<usize, String> {
        let Some(created) = self.responses.first() else { return Ok(0) };
        if !created.created {
            return Err(format!("the first response is not the creation: {created:?}"));
        }
        if created.canceled {
            return if self.responses.len() == 1 { Ok(0) } else { Err("more after a refusal".to_owned()) };
        }
        let header = |response: &WatchResponse| response.header.as_ref().map_or(0, |header| header.revision);
        let start =
            if self.request.start_revision > 0 { self.request.start_revision } else { header(created) + 1 };
        let expected = (0..history.events.len()).filter(|at| {
            let event = &history.events[*at];
            mod_revision(event) >= start && self.wants(event)
        });
        let mut expected = expected.peekable();
        let mut told = 0;
        let mut open_revision = None; // of a fragment: more of it must follow
        for response in &self.responses[1..] {
            for event in &response.events {
                while expected
                    .next_if(|at| !same(event, &history.events[*at]) && history.may_be_gone(*at))
                    .is_some()
                {}
                let Some(at) = expected.next() else { return Err(format!("an event too many: {event:?}")) };
                if !same(event, &history.events[at]) {
                    return Err(format!("told {event:?}, expected {:?}", history.events[at]));
                }
                self.check_previous(event, history)?;
                if mod_revision(event) > header(response) {
                    return Err(format!("the header says {}, an event {event:?}", header(response)));
                }
                open_revision = Some(mod_revision(event));
                told += 1;
            }
            if response.compact_revision != 0 {
                let next = expected.peek().map(|at| mod_revision(&history.events[*at]));
                let justified = response.compact_revision <= history.compacted
                    && next.is_none_or(|next| {
                        next < response.compact_revision || start < response.compact_revision
                    });
                return if justified {
                    Ok(told)
                } else {
                    Err(format!("canceled without need: {response:?}"))
                };
            }
            let next = expected.peek().map(|at| mod_revision(&history.events[*at]));
            if response.events.is_empty() {
                let overtakes = next.is_some_and(|next| next <= header(response));
                if !response.canceled && overtakes {
                    return Err(format!("progress {} overtakes the event of {next:?}", header(response)));
                }
            } else if !response.fragment && open_revision.is_some() && next == open_revision {
                return Err(format!("only half of revision {next:?}"));
            }
        }
        let next = expected.peek().map(|at| &history.events[*at]);
        match (self.complete_to, next) {
            (Some(end), Some(missing)) if mod_revision(missing) <= end => {
                Err(format!("never told of {missing:?}"))
            }
            _ => Ok(told),
        }
    }

    fn check_previous(&self, event: &Event, history: &History) -> Result<(), String> {
        let kv = event.kv.as_ref().unwrap();
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

fn same(told: &Event, happened: &Event) -> bool {
    told.r#type == happened.r#type && told.kv == happened.kv
}

/// Spoils a transcript in one way; none if it has nothing to spoil.
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
        early.header.as_mut().unwrap().revision = progress_to;
        responses.insert(first, early);
    });
    mutant("a value changed", &|responses| {
        responses[first].events[0].kv.as_mut().unwrap().version += 1;
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
            rest.events = responses[at].events.split_off(cut.unwrap());
            responses.insert(at + 1, rest);
        });
    }
    mutants
}
