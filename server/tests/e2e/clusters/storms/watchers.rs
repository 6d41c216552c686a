//! Watchers of a storm: an auditor who knows every change, and on each seat one watcher of
//! everything and one of a part. One whose watch ends goes on from there, on the member that is in
//! the seat then.

use std::rc::Rc;
use std::time::Duration;

use revd_checker::{Transcript, Watch};
use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchProgressRequest};
use tokio::task::spawn_local;

use super::clients::Clients;
use super::record::Known;

const PAUSE: Duration = Duration::from_millis(50);
/// How long a watcher waits for a word before it asks how far it is.
const SILENCE: Duration = Duration::from_secs(1);
/// Words without which a watch is given up, as by a client that pings.
const SILENCES_MAX: usize = 4;

/// A watcher.
struct Watcher {
    all: Rc<Clients>,
    seat: usize,
    request: WatchCreateRequest,
    is_auditor: bool,
    /// All changes before this revision are known to it.
    next: i64,
}

fn everything() -> WatchCreateRequest {
    WatchCreateRequest { key: "\0".into(), range_end: "\0".into(), ..WatchCreateRequest::default() }
}

/// Deletions, or puts with the values before, of a part of the keys.
fn a_part(seat: usize) -> WatchCreateRequest {
    let (key, range_end) = if seat.is_multiple_of(2) { ("reg/", "reg0") } else { ("lease/", "lock0") };
    let filters = if seat % 3 == 1 { vec![FilterType::Noput as i32] } else { Vec::new() };
    let (key, range_end) = (key.into(), range_end.into());
    WatchCreateRequest { key, range_end, filters, prev_kv: true, ..WatchCreateRequest::default() }
}

/// The watchers of all seats and the auditor begin; `direct` knows the members without proxies.
pub fn begin(all: &Rc<Clients>, direct: &Rc<std::cell::RefCell<Vec<Known>>>) {
    let seats = all.known.borrow().len();
    let watcher =
        |seat, request, is_auditor| Watcher { all: Rc::clone(all), seat, request, is_auditor, next: 2 };
    let mut watchers = vec![watcher(0, everything(), true)];
    for seat in 0..seats {
        watchers.push(watcher(seat, everything(), false));
        watchers.push(watcher(seat, a_part(seat), false));
    }
    for watcher in watchers {
        let (guard, direct) = (all.works(), Rc::clone(direct));
        spawn_local(async move {
            watcher.watch(&direct).await;
            drop(guard);
        });
    }
}

impl Watcher {
    async fn watch(mut self, direct: &std::cell::RefCell<Vec<Known>>) {
        loop {
            let to = if self.is_auditor {
                let direct = direct.borrow();
                direct[self.seat % direct.len()].clone()
            } else {
                self.all.known(self.seat)
            };
            if self.one(&to).await {
                return;
            }
            self.seat += usize::from(self.is_auditor);
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One watch, until it ends or all is known; whether it is.
    async fn one(&mut self, to: &Known) -> bool {
        let request = WatchCreateRequest { start_revision: self.next, ..self.request.clone() };
        let mut transcript = Transcript::new(request.clone());
        let (mut times, mut silences) = (Vec::new(), 0);
        let mut stream = to.client.open_watch();
        stream.ask(RequestUnion::CreateRequest(request));
        let is_complete = loop {
            if self.all.last.get().is_some_and(|last| self.next > last) {
                break true;
            }
            let response = match stream.next_within(SILENCE).await {
                None if stream.is_over() || silences == SILENCES_MAX => break false,
                None => {
                    silences += 1;
                    stream.ask(RequestUnion::ProgressRequest(WatchProgressRequest {}));
                    continue;
                }
                Some(Err(status)) => {
                    self.all.recorder.failed(&status);
                    break false;
                }
                Some(Ok(response)) => response,
            };
            silences = 0;
            let header = response.header.as_ref().map_or(0, |header| header.revision);
            let is_progress = response.events.is_empty() && !response.created && !response.canceled;
            let newest = response.events.last().and_then(|event| event.kv.as_ref());
            // Half of a revision may have come.
            let known = newest.filter(|_| !response.fragment).map(|kv| kv.mod_revision);
            let known = known.or(is_progress.then_some(header)).unwrap_or(0);
            self.next = self.next.max(known + 1).max(response.compact_revision);
            let ends = response.canceled;
            transcript.responses.push(response);
            times.push(self.all.recorder.now());
            if self.is_auditor {
                self.all.audited.set(self.next - 1);
            }
            if ends {
                break false;
            }
        };
        transcript.complete_to = is_complete.then_some(self.next - 1);
        let client = self.all.name();
        let Known { member, life, .. } = *to;
        let watch = Watch { client, member, life, transcript, times };
        self.all.recorder.history.borrow_mut().watches.push(watch);
        is_complete
    }
}
