//! One connection to one other member: dialed at each of its URLs in turn until one answers, and
//! again when it is lost.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use glommio::Task;
use revd_member::cluster::version::ClusterVersion;
use revd_member::peer::hello::{Answer, Purpose};
use serde_json::json;

use crate::limits;
use crate::observe::log;
use crate::peer::caller::is_removal;
use crate::peer::complaints::Unreachable;
use crate::peer::link::Link;
use crate::peer::outbox::Outbox;
use crate::peer::pulse::Silence;
use crate::peer::shared::{PeerEvent, Shared};
use crate::peer::transport;
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

/// Keeps a connection to a member for as long as the task lives.
pub(super) fn start(outbox: Rc<Outbox>, shared: &Rc<Shared>) -> Task<()> {
    glommio::spawn_local(run(outbox, Rc::clone(shared)))
}

async fn run(outbox: Rc<Outbox>, shared: Rc<Shared>) {
    let mut pause = limits::PEER_DIAL_INTERVAL_MIN;
    let mut told = Unreachable::default();
    // The URL that answered last: the one of the row may be that of a place that the member left.
    let mut answered = None;
    loop {
        let mut urls = outbox.urls();
        if let Some(at) = urls.iter().position(|url| answered.as_ref() == Some(url)) {
            urls[..=at].rotate_right(1);
        }
        for url in urls {
            let is_agreed = outbox.is_agreed(&url);
            let error = match shared.caller.dial(&url, is_agreed, outbox.peer, Purpose::Messages).await {
                Ok((stream, answer)) => {
                    told = Unreachable::default();
                    answered = Some(url.clone());
                    tell_connected(&outbox, &url, &answer, &shared);
                    outbox.set_version(ClusterVersion::parse(&answer.version));
                    if let Some(version) = outbox.version().filter(|_| shared.is_known(outbox.peer)) {
                        (shared.emit)(PeerEvent::Version(outbox.peer, version));
                    }
                    let began = shared.clock.milliseconds();
                    let error = converse(stream, &outbox, &shared).await;
                    let lasted = Duration::from_millis(shared.clock.milliseconds() - began);
                    // A peer that closes each connection again is not dialed without a pause.
                    if lasted >= limits::PEER_DIAL_INTERVAL_MAX {
                        pause = limits::PEER_DIAL_INTERVAL_MIN;
                    }
                    tell_lost(&outbox, &url, &error, &shared);
                    break;
                }
                Err(error) => {
                    if is_removal(&error) && is_agreed {
                        (shared.emit)(PeerEvent::Removed(outbox.peer));
                    }
                    error.to_string()
                }
            };
            // Once until it changes: a member may be away for days.
            let now = shared.clock.milliseconds();
            let lines = if shared.is_known(outbox.peer) { &shared.unreachable } else { &shared.complaints };
            if told.is_news(&url, &error)
                && let Some(untold) = lines.may_tell(now)
            {
                let fields = json!({
                    "peer-id": hex(outbox.peer), "url": url, "error": error, "others-since-the-last-line": untold,
                });
                log::warn("cannot reach a peer", fields);
                told.tell(url, error);
            }
        }
        sleep(limits::PEER_DIAL_INTERVAL_MIN).await;
        futures_lite::future::or(sleep(pause), outbox.hinted()).await;
        pause = (pause * 2).min(limits::PEER_DIAL_INTERVAL_MAX);
    }
}

/// Sends what waits until the connection ends; why it did.
async fn converse(stream: Link, outbox: &Outbox, shared: &Shared) -> io::Error {
    outbox.open();
    (shared.emit)(PeerEvent::Connected(outbox.peer));
    let silence = Silence::default();
    let (reading, writing) = futures_lite::io::split(stream);
    let ended = futures_lite::future::or(send(writing, outbox), hear(reading, &silence));
    let error = futures_lite::future::or(ended, silence.watch(|| outbox.pulse())).await;
    if outbox.close() {
        (shared.emit)(PeerEvent::Lost(outbox.peer));
    }
    error
}

async fn send(mut stream: impl AsyncWrite + Unpin, outbox: &Outbox) -> io::Error {
    loop {
        let bytes = outbox.next().await;
        if let Err(error) = transport::write(&mut stream, &bytes).await {
            return error;
        }
        outbox.done(bytes.len());
    }
}

/// Hears pulses; a listener says nothing else.
async fn hear(mut stream: impl AsyncRead + Unpin, silence: &Silence) -> io::Error {
    let mut pulses = [0; 64];
    loop {
        match stream.read(&mut pulses).await {
            Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
            Ok(_) => silence.broken(),
            Err(error) => return error,
        }
        give_way().await;
    }
}

fn hex(id: u64) -> String {
    format!("{id:x}")
}

/// Whether a line may be written: any program can have a guest dialed.
fn may_tell(outbox: &Outbox, shared: &Shared) -> bool {
    shared.is_known(outbox.peer) || shared.complaints.may_tell(shared.clock.milliseconds()).is_some()
}

fn tell_connected(outbox: &Outbox, url: &str, answer: &Answer, shared: &Shared) {
    if !may_tell(outbox, shared) {
        return;
    }
    let fields = json!({"peer-id": hex(outbox.peer), "url": url, "peer-version": answer.version});
    log::info("connected to a peer", fields);
}

fn tell_lost(outbox: &Outbox, url: &str, error: &io::Error, shared: &Shared) {
    if !may_tell(outbox, shared) {
        return;
    }
    let fields = json!({"peer-id": hex(outbox.peer), "url": url, "error": error.to_string()});
    log::warn("lost the connection to a peer", fields);
}
