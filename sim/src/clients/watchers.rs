//! Clients that watch: a stream with a few watchers that stalls, is closed, cancels, asks for
//! progress, and goes on behind what it was told, elsewhere.

use revd_checker::{History, Transcript, Watch};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchResponse};

use super::shared::{Shared, life, place};
use crate::calls::{Door, StreamId};
use crate::time::{MILLISECOND, Micros, SECOND};

/// A watcher on a stream: its id there, its place in the history, and where it goes on.
#[derive(Debug)]
struct Watching {
    id: i64,
    place: usize,
    request: WatchCreateRequest,
    is_created: bool,
    /// The client has asked for its end.
    is_to_end: bool,
    is_over: bool,
    /// It was told of everything before this revision; 0 if it does not know where it begins.
    next: i64,
}

/// A client with one stream.
#[derive(Debug)]
pub(super) struct Watcher {
    is_auditor: bool,
    stream: Option<StreamId>,
    /// The process that it is told by.
    life: u32,
    watching: Vec<Watching>,
    /// Watchers that a compaction has ended go on behind it ...
    again: Vec<WatchCreateRequest>,
    /// ... and are canceled, as etcd's client does: until then the stream is told of no progress.
    compacted: Vec<i64>,
    ids: i64,
    is_stalled: bool,
    /// Everything up to here was told on the stream, or by a watcher before it.
    heard: i64,
}

/// Every key.
fn everything(start_revision: i64) -> WatchCreateRequest {
    let (key, range_end) = ("\0".into(), "\0".into());
    WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() }
}

fn any(shared: &Shared, random: &mut Random) -> WatchCreateRequest {
    let newest = shared.newest;
    let start_revision = match random.below(5) {
        0 => 0,
        // The first revision that a compaction leaves.
        4 => shared.compacted.max(1),
        1 => newest + i64::try_from(random.below(20)).expect("a small number"),
        _ => (newest - i64::try_from(random.below(200)).expect("a small number")).max(1),
    };
    let mut request = everything(start_revision);
    match random.below(4) {
        0 => {}
        1 => (request.key, request.range_end) = ("key/".into(), "key0".into()),
        2 => (request.key, request.range_end) = (shared.key(random), shared.key(random)),
        _ => (request.key, request.range_end) = (shared.key(random), bytes::Bytes::new()),
    }
    if request.range_end.len() > 1 && request.range_end <= request.key {
        request.range_end = bytes::Bytes::new();
    }
    request.prev_kv = random.one_in(2);
    request.fragment = random.one_in(2);
    request.progress_notify = random.one_in(2);
    if random.one_in(4) {
        request.filters = vec![random.pick(&[FilterType::Noput, FilterType::Nodelete]) as i32];
    }
    request
}

impl Watcher {
    pub(super) fn new(is_auditor: bool) -> Self {
        let (watching, again, compacted) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            is_auditor,
            stream: None,
            life: 0,
            watching,
            again,
            compacted,
            ids: 0,
            is_stalled: false,
            heard: 0,
        }
    }

    pub(super) fn is_auditor(&self) -> bool {
        self.is_auditor
    }

    pub(super) fn is_on(&self, stream: StreamId) -> bool {
        self.stream == Some(stream)
    }

    /// The auditor was told of everything up to here.
    pub(super) fn told_to(&self) -> i64 {
        self.watching.first().map_or(0, |watching| watching.next - 1)
    }

    /// Does something; when it does the next. At the end, all want to know this revision.
    pub(super) fn act(
        &mut self,
        number: usize,
        newest: Option<i64>,
        shared: &Shared,
        history: &mut History,
        random: &mut Random,
        door: &mut impl Door,
    ) -> Micros {
        let Some(stream) = self.stream else {
            self.open(number, shared, history, random, door);
            return 50 * MILLISECOND + random.below(300 * MILLISECOND);
        };
        if self.is_stalled {
            self.is_stalled = false;
            door.stall(stream, false);
        }
        for watch_id in std::mem::take(&mut self.compacted) {
            door.request_watch(stream, RequestUnion::CancelRequest(WatchCancelRequest { watch_id }));
        }
        for request in std::mem::take(&mut self.again) {
            let member = history.watches[self.watching.last().map_or(0, |last| last.place)].member;
            self.create(number, member, request, history, door);
        }
        if let Some(newest) = newest {
            if !self.has_heard(newest) {
                // One that begins later keeps the stream from being told how far it is. The auditor
                // is never canceled: it has heard what there is before it begins.
                let late = |it: &Watching| !it.is_over && it.request.start_revision > newest;
                let is_auditor = self.is_auditor;
                for watching in self.watching.iter_mut().filter(|it| late(it) && !is_auditor) {
                    watching.cancel(stream, door);
                }
                door.request_watch(stream, RequestUnion::ProgressRequest(WatchProgressRequest {}));
            }
            return 200 * MILLISECOND;
        }
        match random.below(12) {
            0 => {
                self.is_stalled = true;
                door.stall(stream, true);
                return random.below(3 * SECOND);
            }
            1 if random.one_in(3) => {
                door.close_stream(stream);
                self.ends();
            }
            2..5 if !self.is_auditor => {
                if let Some(watching) = self.watching.iter_mut().find(|watching| !watching.is_over) {
                    watching.cancel(stream, door);
                }
                let member = history.watches[self.watching.last().map_or(0, |last| last.place)].member;
                self.create(number, member, any(shared, random), history, door);
            }
            _ => door.request_watch(stream, RequestUnion::ProgressRequest(WatchProgressRequest {})),
        }
        100 * MILLISECOND + random.below(SECOND)
    }

    /// On some member; watchers that had begun go on there.
    fn open(
        &mut self,
        number: usize,
        shared: &Shared,
        history: &mut History,
        random: &mut Random,
        door: &mut impl Door,
    ) {
        let members = door.members();
        if members.is_empty() {
            return;
        }
        let member = random.pick(&members);
        let Some(stream) = door.open_stream(member) else { return };
        (self.stream, self.life) = (Some(stream), life(door, member));
        self.is_stalled = false;
        let place = place(door.member_id(member));
        let before = std::mem::take(&mut self.watching);
        for watching in before.into_iter().filter(|watching| !watching.is_over && watching.next > 0) {
            let request = WatchCreateRequest { start_revision: watching.next, ..watching.request };
            self.create(number, place, request, history, door);
        }
        if self.watching.is_empty() {
            let request = if self.is_auditor { everything(2) } else { any(shared, random) };
            self.create(number, place, request, history, door);
        }
    }

    fn create(
        &mut self,
        number: usize,
        member: u32,
        request: WatchCreateRequest,
        history: &mut History,
        door: &mut impl Door,
    ) {
        let Some(stream) = self.stream else { return };
        (self.ids, self.heard) = (self.ids + 1, 0);
        let request = WatchCreateRequest { watch_id: self.ids, ..request };
        door.request_watch(stream, RequestUnion::CreateRequest(request.clone()));
        let client = u32::try_from(number).expect("few clients");
        let transcript = Transcript::new(request.clone());
        let place = history.watches.len();
        history.watches.push(Watch { client, member, life: self.life, transcript, times: Vec::new() });
        let next = request.start_revision;
        self.watching.push(Watching {
            id: self.ids,
            place,
            request,
            is_created: false,
            is_to_end: false,
            is_over: false,
            next,
        });
    }

    /// A response; the newest revision that it shows.
    pub(super) fn hears(&mut self, response: &WatchResponse, now: Micros, history: &mut History) -> i64 {
        let shown = response.header.as_ref().map_or(0, |header| header.revision);
        let is_for_all = response.watch_id == -1 && !response.created;
        if is_for_all {
            self.heard = self.heard.max(shown);
        }
        // Watchers are created, or refused, in the order in which they were asked for.
        let is_refused = response.created && response.canceled;
        let mut unborn = self.watching.iter().filter(|it| !it.is_over && !it.is_created);
        let refused = unborn.next().filter(|_| is_refused).map(|watching| watching.id);
        for watching in self.watching.iter_mut().filter(|watching| !watching.is_over) {
            let is_own = if is_refused {
                refused == Some(watching.id)
            } else {
                watching.id == response.watch_id || (is_for_all && watching.is_created)
            };
            if !is_own {
                continue;
            }
            let watch = &mut history.watches[watching.place];
            watch.times.push(now);
            watch.transcript.responses.push(response.clone());
            watching.hears(response, shown);
            if response.compact_revision > 0 {
                let start_revision = watching.next.max(response.compact_revision);
                self.again.push(WatchCreateRequest { start_revision, ..watching.request.clone() });
                self.compacted.push(watching.id);
            }
        }
        shown
    }

    /// The stream is gone.
    pub(super) fn ends(&mut self) {
        self.stream = None;
        self.compacted.clear(); // their ids were of that stream
        self.ids = 0;
        self.heard = 0;
    }

    /// Every watcher was told of everything up to here, begins behind it, or is over.
    pub(super) fn has_heard(&self, newest: i64) -> bool {
        let may_be_over = !self.is_auditor;
        let has_heard = |it: &Watching| {
            let is_told = it.is_created && (self.heard >= newest || it.next > newest);
            if it.is_over { may_be_over } else { is_told }
        };
        let all_have = self.watching.iter().all(has_heard);
        self.stream.is_some() && self.again.is_empty() && all_have
    }

    /// The run is over.
    pub(super) fn completes(&mut self, newest: i64, history: &mut History) {
        let is_whole = self.has_heard(newest);
        for watching in self.watching.iter().filter(|watching| is_whole && !watching.is_over) {
            history.watches[watching.place].transcript.complete_to = Some(newest);
        }
    }
}

impl Watching {
    fn cancel(&mut self, stream: StreamId, door: &mut impl Door) {
        self.is_to_end = true;
        let cancel = WatchCancelRequest { watch_id: self.id };
        door.request_watch(stream, RequestUnion::CancelRequest(cancel));
    }

    fn hears(&mut self, response: &WatchResponse, shown: i64) {
        // Compactions are judged with the history.
        let has_cause = self.is_to_end || response.compact_revision > 0;
        assert!(!response.canceled || has_cause, "{:?} has ended: {response:?}", self.request);
        self.is_created |= response.created;
        if response.created && self.next == 0 {
            self.next = shown + 1;
        }
        let told = response.events.last().and_then(|event| event.kv.as_ref());
        if let Some(kv) = told.filter(|_| !response.fragment) {
            self.next = kv.mod_revision + 1;
        } else if response.events.is_empty() && !response.created && !response.canceled {
            self.next = self.next.max(shown + 1);
        }
        self.is_over |= response.canceled;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use revd_proto::etcdserverpb::ResponseHeader;
    use revd_proto::mvccpb::{Event, KeyValue};

    use super::*;
    use crate::calls::{CallId, Request};

    /// One member; the requests that it was sent on watch streams.
    #[derive(Default)]
    struct Asked(Vec<RequestUnion>);

    impl Door for Asked {
        fn now(&self) -> Micros {
            0
        }
        fn members(&self) -> Vec<usize> {
            vec![0]
        }
        fn member_id(&self, _member: usize) -> u64 {
            1
        }
        fn life(&self, _member: usize) -> u64 {
            1
        }
        fn call(&mut self, _member: usize, _request: Request) -> Option<CallId> {
            None
        }
        fn give_up(&mut self, _call: CallId) {}
        fn open_stream(&mut self, _member: usize) -> Option<StreamId> {
            Some(StreamId(1))
        }
        fn request_watch(&mut self, _stream: StreamId, request: RequestUnion) {
            self.0.push(request);
        }
        fn stall(&mut self, _stream: StreamId, _is_stalled: bool) {}
        fn close_stream(&mut self, _stream: StreamId) {}
        fn wake_after(&mut self, _after: Micros, _number: u64) {}
    }

    fn response(revision: i64) -> WatchResponse {
        let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        WatchResponse { header, watch_id: 1, ..WatchResponse::default() }
    }

    /// It was canceled once, as one that begins late, and the history had no revision behind.
    #[test]
    fn an_auditor_that_knows_more_than_calls_have_shown_goes_on() {
        let (mut random, mut history, mut door) = (Random::new(1), History::default(), Asked::default());
        let shared = Shared::draw(&mut random);
        let mut auditor = Watcher::new(true);
        auditor.act(0, None, &shared, &mut history, &mut random, &mut door);
        auditor.hears(&WatchResponse { created: true, ..response(1) }, 0, &mut history);
        let kv = KeyValue { mod_revision: 9, ..KeyValue::default() };
        let events = vec![Event { kv: Some(kv), ..Event::default() }];
        auditor.hears(&WatchResponse { events, ..response(9) }, 0, &mut history);
        assert!(auditor.has_heard(5) && !auditor.has_heard(10));
        auditor.ends();
        assert!(!auditor.has_heard(5), "it has no stream");
        auditor.act(0, Some(5), &shared, &mut history, &mut random, &mut door);
        assert!(!auditor.has_heard(5), "nobody has said that it watches");
        auditor.act(0, Some(5), &shared, &mut history, &mut random, &mut door);
        assert!(!door.0.iter().any(|asked| matches!(asked, RequestUnion::CancelRequest(_))), "{:?}", door.0);
        auditor.hears(&WatchResponse { created: true, ..response(5) }, 0, &mut history);
        assert!(auditor.has_heard(5));
        let compacted = WatchResponse { canceled: true, compact_revision: 12, ..response(5) };
        auditor.hears(&compacted, 0, &mut history);
        assert!(!auditor.has_heard(5), "a canceled auditor has not heard the rest");
    }

    #[test]
    fn a_watcher_ends_when_its_client_asks_for_it() {
        let (mut random, mut history, mut door) = (Random::new(1), History::default(), Asked::default());
        let shared = Shared::draw(&mut random);
        let canceled = WatchResponse { canceled: true, ..response(5) };
        for asks in [true, false] {
            let mut watcher = Watcher::new(false);
            watcher.act(0, None, &shared, &mut history, &mut random, &mut door);
            watcher.hears(&WatchResponse { created: true, ..response(1) }, 0, &mut history);
            if asks {
                watcher.watching[0].cancel(StreamId(1), &mut door);
            }
            let hears = AssertUnwindSafe(|| watcher.hears(&canceled, 0, &mut history));
            assert_eq!(catch_unwind(hears).is_ok(), asks);
        }
    }
}
