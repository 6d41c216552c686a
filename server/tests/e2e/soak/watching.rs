//! Honest watchers: each of their transcripts is held against what an auditor was told from the
//! beginning, and that against what was acknowledged.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{CompactionRequest, WatchCreateRequest, WatchProgressRequest};
use revd_proto::mvccpb::event::EventType;

use super::honest::{Shared, Written};
use crate::harness::{Random, connect};
use revd_checker::{Changes, Transcript};

/// Events that watchers were told of.
#[derive(Default)]
pub struct Watched {
    history: RefCell<Changes>,
    /// The auditor was told of everything up to here.
    audited: Cell<i64>,
    transcripts: RefCell<Vec<Transcript>>,
    pub told: Cell<usize>,
}

fn everything(start_revision: i64) -> WatchCreateRequest {
    WatchCreateRequest {
        key: "soak/".into(),
        range_end: "soak0".into(),
        start_revision,
        ..WatchCreateRequest::default()
    }
}

/// Watches all that writers write, through all restarts.
pub async fn audit(shared: Rc<Shared>, watched: Rc<Watched>) {
    let client = connect(&shared.endpoint).await;
    loop {
        let kills = shared.kills.get();
        let mut stream = client.open_watch();
        stream.ask(RequestUnion::CreateRequest(everything(watched.audited.get() + 1)));
        loop {
            stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
            match stream.next_within(Duration::from_millis(500)).await {
                Some(Ok(response)) => {
                    if response.compact_revision > 0 || response.canceled {
                        shared.find(&format!("the auditor is cancelled: {:.300}", format!("{response:?}")));
                    }
                    let revision = response.header.as_ref().unwrap().revision;
                    for event in response.events {
                        watched.audited.set(event.kv.as_ref().unwrap().mod_revision);
                        watched.history.borrow_mut().push(event);
                    }
                    if response.watch_id == -1 {
                        watched.audited.set(watched.audited.get().max(revision));
                    }
                }
                Some(Err(status)) => {
                    if !shared.excuses(kills, &status) {
                        shared.find(&format!("the auditor's watch ended: {status}"));
                    }
                    break;
                }
                None if shared.is_down.get() || shared.kills.get() != kills => break,
                None => {}
            }
            if shared.is_quiet.get() && watched.audited.get() >= shared.revision.get() {
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Opens a watch, listens for some time, and hears the rest by a progress reply; again and again.
pub async fn watch(shared: Rc<Shared>, watched: Rc<Watched>, seed: u64) {
    let mut random = Random::new(seed);
    let client = connect(&shared.endpoint).await;
    while !shared.over.get() {
        let start = if random.one_in(2) {
            0
        } else {
            (watched.audited.get() - 50).max(watched.history.borrow().compacted) + 1
        };
        let prefix = format!("soak/{}/", random.below(super::honest::WRITERS));
        let request = WatchCreateRequest {
            key: prefix.clone().into(),
            range_end: (prefix[..prefix.len() - 1].to_owned() + "0").into(),
            prev_kv: random.one_in(3),
            ..everything(start)
        };
        let transcript = listen(&shared, &client, request, 20 + random.below(200)).await;
        watched.transcripts.borrow_mut().push(transcript);
    }
}

async fn listen(
    shared: &Shared,
    client: &crate::harness::Client,
    request: WatchCreateRequest,
    times: u64,
) -> Transcript {
    let kills = shared.kills.get();
    let mut stream = client.open_watch();
    stream.ask(RequestUnion::CreateRequest(request.clone()));
    let mut transcript = Transcript::new(request);
    let mut end = None;
    for heard in 0.. {
        if heard >= times || shared.over.get() {
            end.get_or_insert(shared.revision.get());
            stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
        }
        match stream.next_within(Duration::from_millis(100)).await {
            Some(Ok(response)) => {
                let (id, ends) = (response.watch_id, response.canceled);
                let revision = response.header.as_ref().unwrap().revision;
                transcript.responses.push(response);
                if end.is_some_and(|end| id == -1 && revision >= end) {
                    transcript.complete_to = end;
                    return transcript;
                }
                if ends {
                    return transcript;
                }
            }
            Some(Err(status)) => {
                if !shared.excuses(kills, &status) {
                    shared.find(&format!("a watch ended: {status}"));
                }
                return transcript;
            }
            None if shared.was_killed_since(kills) => return transcript,
            None if heard > times + 600 => {
                shared.find("a watch is never up to date, for a minute");
                return transcript;
            }
            None => {}
        }
    }
    transcript
}

/// Holds all transcripts so far against the history; the auditor must know what they know.
pub async fn check(shared: &Shared, watched: &Watched) {
    let end = shared.revision.get();
    let kills = shared.kills.get();
    for _ in 0..600 {
        if watched.audited.get() >= end {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    if watched.audited.get() < end && !shared.was_killed_since(kills) {
        shared.find(&format!("the auditor knows {} of {end}, after a minute", watched.audited.get()));
    }
    let history = watched.history.borrow();
    let known = watched.audited.get();
    let newest = |transcript: &Transcript| {
        let of = |response: &revd_proto::etcdserverpb::WatchResponse| {
            response.header.as_ref().map_or(0, |it| it.revision)
        };
        transcript.responses.iter().map(of).max().unwrap_or(0)
    };
    let all = watched.transcripts.take();
    let (checked, later) = all.into_iter().partition::<Vec<_>, _>(|transcript| newest(transcript) <= known);
    watched.transcripts.borrow_mut().extend(later);
    for transcript in checked {
        match transcript.check(&history) {
            Ok(told) => watched.told.set(watched.told.get() + told),
            Err(problem) => shared.find(&format!("{:?}: {problem:.1000}", transcript.request)),
        }
    }
}

/// Compacts what the auditor knows.
pub async fn compact(shared: &Shared, watched: &Watched) {
    let client = connect(&shared.endpoint).await;
    let revision = watched.audited.get() - 200;
    if revision > watched.history.borrow().compacted {
        watched.history.borrow_mut().compacted = revision;
        let request = CompactionRequest { revision, physical: false };
        shared.call("compact", client.kv.clone().compact(request)).await;
    }
}

/// Every acknowledged write is in the history.
pub fn check_acknowledged(shared: &Shared, watched: &Watched, written: &Written) {
    let history = watched.history.borrow();
    let told: std::collections::BTreeMap<i64, _> = history
        .events()
        .iter()
        .filter(|event| event.r#type == EventType::Put as i32)
        .filter_map(|event| event.kv.as_ref())
        .map(|kv| (kv.mod_revision, kv))
        .collect();
    for (key, value, revision) in &written.all {
        let found = told.get(revision);
        if found.is_none_or(|kv| kv.key != key.as_bytes() || kv.value != value.as_bytes()) {
            shared.find(&format!(
                "{key} = {value} was acknowledged at {revision}, the auditor was told {found:?}"
            ));
        }
    }
}
