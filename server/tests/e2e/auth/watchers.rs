//! Watches of users whose rights come and go, at revd and at etcd: both are told the same. revd
//! ends a watch with the right to it, and etcd does not (docs/COMPAT.md, 30): after each change of
//! users etcd is asked whether it would let the same user make that watch again.

use std::time::Duration;

use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse};
use revd_proto::mvccpb::Event;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Streaming};

use super::generator::Actor;
use crate::harness::{Client, request_as};

/// Watches that are kept open; the oldest makes room.
const OPEN_MAX: usize = 6;
/// A watch that owes an answer is asked again so often.
const WAIT: Duration = Duration::from_millis(100);
const WAITS_MAX: u32 = 300;

/// A watch with one watcher.
pub(super) struct Watch {
    pub(super) requests: UnboundedSender<WatchRequest>,
    pub(super) replies: Streaming<WatchResponse>,
    pub(super) told: Vec<Event>,
    /// The reason of its end.
    ended: Option<String>,
}

/// Makes a watch.
///
/// # Errors
/// The code and text of the call, or of the watcher's end with the code OK.
pub(super) async fn open(
    client: &Client,
    create: &WatchCreateRequest,
    token: Option<&str>,
) -> Result<Watch, (Code, String)> {
    let (requests, receiver) = unbounded_channel();
    let create = RequestUnion::CreateRequest(create.clone());
    let _ = requests.send(WatchRequest { request_union: Some(create) });
    let request = request_as(UnboundedReceiverStream::new(receiver), token);
    let refused = |status: tonic::Status| (status.code(), status.message().to_owned());
    let mut replies = client.watch.clone().watch(request).await.map_err(refused)?.into_inner();
    match replies.message().await.map_err(refused)? {
        Some(first) if first.canceled => Err((Code::Ok, first.cancel_reason)),
        Some(_) => Ok(Watch { requests, replies, told: Vec::new(), ended: None }),
        None => Err((Code::Ok, "the stream ended".to_owned())),
    }
}

impl Watch {
    /// Reads until it has ended, or has told all up to a revision.
    pub(super) async fn read_to(&mut self, revision: i64) {
        for _ in 0..WAITS_MAX {
            if self.ended.is_some() {
                return;
            }
            let ask = RequestUnion::ProgressRequest(WatchProgressRequest {});
            let _ = self.requests.send(WatchRequest { request_union: Some(ask) });
            while let Ok(reply) = tokio::time::timeout(WAIT, self.replies.message()).await {
                let reply = reply.unwrap().expect("a stream goes on when its watcher has ended");
                if reply.canceled {
                    self.ended = Some(reply.cancel_reason);
                    return;
                }
                let shown = reply.header.map_or(0, |header| header.revision);
                let is_progress = reply.events.is_empty();
                self.told.extend(reply.events);
                if is_progress && shown >= revision {
                    return;
                }
            }
        }
        panic!("a watch does not get to revision {revision}, told {:?}", self.told);
    }

    /// Reads until it ends; the reason.
    async fn end(&mut self) -> String {
        for _ in 0..WAITS_MAX {
            self.read_to(0).await;
            if let Some(reason) = &self.ended {
                return reason.clone();
            }
        }
        panic!("it goes on without a right");
    }
}

/// The same watch at both.
struct Pair {
    actor: Actor,
    create: WatchCreateRequest,
    member: usize,
    ours: Watch,
    theirs: Watch,
    /// Its user may have been without a right meanwhile.
    may_end: bool,
}

impl Pair {
    /// Both have told the same; one of ours that has ended, the beginning of it. False when it has.
    async fn is_alike(&mut self, revision: i64) -> bool {
        self.ours.read_to(revision).await;
        self.theirs.read_to(revision).await;
        let (ours, theirs) = (std::mem::take(&mut self.ours.told), std::mem::take(&mut self.theirs.told));
        let ended = &self.ours.ended;
        assert_eq!(self.theirs.ended, None, "etcd ends no watch: {:?} {:?}", self.actor, self.create);
        let is_equal = if ended.is_some() { theirs.starts_with(&ours) } else { ours == theirs };
        assert!(is_equal, "{:?} {:?}:\nrevd {ours:?}\netcd {theirs:?}", self.actor, self.create);
        let (actor, create) = (self.actor, &self.create);
        assert!(ended.is_none() || self.may_end, "{actor:?} has its right: {create:?} {ended:?}");
        ended.is_none()
    }
}

/// All that are open.
#[derive(Default)]
pub(super) struct Watchers {
    open: Vec<Pair>,
    pub(super) ended: u32,
}

impl Watchers {
    pub(super) fn add(
        &mut self,
        (actor, create, member): (Actor, WatchCreateRequest, usize),
        ours: Watch,
        theirs: Watch,
    ) {
        if self.open.len() >= OPEN_MAX {
            self.open.remove(0);
        }
        self.open.push(Pair { actor, create, member, ours, theirs, may_end: false });
    }

    /// Compares events up to this revision.
    pub(super) async fn look(&mut self, revision: i64) {
        for mut pair in std::mem::take(&mut self.open) {
            if pair.is_alike(revision).await {
                self.open.push(pair);
            } else {
                self.ended += 1;
            }
        }
    }

    /// After a change of users: those without a right have ended, in the words in which etcd
    /// refuses them. `token` is the one that the actor has at etcd.
    pub(super) async fn judge(
        &mut self,
        revision: i64,
        etcd: &[Client],
        token: impl Fn(Actor) -> Option<String>,
    ) {
        for pair in &mut self.open {
            // Another member of etcd may not know of the change.
            if etcd.len() > 1 {
                pair.may_end = true;
                continue;
            }
            let create = WatchCreateRequest { start_revision: 0, ..pair.create.clone() };
            let opened = open(&etcd[pair.member], &create, token(pair.actor).as_deref()).await;
            let Err((_, why)) = opened else { continue };
            pair.may_end = true;
            // Other words are about the token, and a watch outlives that.
            if why.ends_with("permission denied") {
                assert_eq!(pair.ours.end().await, why, "{:?} {:?}", pair.actor, pair.create);
            }
        }
        self.look(revision).await;
    }
}
