//! Watchers by the hundred thousand, progress, history, and events that are not read.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_http2::raw::{call_block, frame};
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    PutRequest, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
};

use super::attack::{Attack, AttackTarget};
use super::store::{PUT, everything, fill, revisions};
use crate::caller::{Caller, PATIENCE, call_all, framed};
use crate::clock;
use crate::keys::value;

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// A cancel of a watcher should not take longer.
const SOON: u64 = 1_000_000_000;

pub(super) const ATTACKS: &[Attack] = &[
    Attack::new("5,000 progress requests, 100,000 watchers", 15, progress),
    Attack::new("100,000 watchers from revision 1", 16, from_one)
        .after(|target| revisions(target, 5_000, 100)),
    Attack::new("a cancel behind all history", 17, cancel)
        .after(|target| fill(target, target.size(300_000, 500_000), 100, 0))
        .told("in time")
        .never("late"),
    Attack::new("51 creates from revision 2 over 6 MB", 17, creates)
        .after(|target| revisions(target, 6_000, 1_000))
        .told("in time")
        .never("late"),
    Attack::new("1,000 watch streams that are not read", 20, unread),
    Attack::new("600 watch streams of history that are not read", 20, untaken)
        .after(|target| fill(target, 20, 100_000, 0)),
];

fn encoded(request: RequestUnion) -> Vec<u8> {
    WatchRequest { request_union: Some(request) }.encode_to_vec()
}

fn create(key: &'static str, start_revision: i64) -> RequestUnion {
    let request = WatchCreateRequest { key: key.into(), start_revision, ..WatchCreateRequest::default() };
    RequestUnion::CreateRequest(request)
}

/// All that attacks write, from a revision on.
fn create_all(start_revision: i64) -> RequestUnion {
    let (key, range_end) = (everything().key, everything().range_end);
    RequestUnion::CreateRequest(WatchCreateRequest {
        key,
        range_end,
        start_revision,
        ..WatchCreateRequest::default()
    })
}

/// Opens a stream with one watcher of a key: stream and token.
pub(super) fn watch(caller: &mut Caller, key: &'static str, revision: i64) -> anyhow::Result<(u32, u32)> {
    let (stream, token) = caller.open(WATCH).context("no more streams")?;
    caller.client.send_message(stream, &encoded(create(key, revision)));
    Ok((stream, token))
}

/// Says the same thing many times.
fn repeat(caller: &mut Caller, stream: u32, request: RequestUnion, times: usize) {
    let one = framed(0, &encoded(request));
    for at in (0..times).step_by(1_000) {
        caller.client.send(stream, one.repeat(1_000.min(times - at)));
    }
}

fn progress(target: &AttackTarget) -> anyhow::Result<()> {
    let watchers = target.size(100_000, 100_000);
    let mut caller = target.caller()?.discarding();
    let (stream, _) = watch(&mut caller, "attacker", 0)?;
    repeat(&mut caller, stream, create("attacker", 0), watchers);
    // A server that looks at one watcher after the other to see whether all are synced finds this
    // one last.
    caller.client.send_message(stream, &encoded(create("attacker", 1 << 40)));
    let created = |heard: &mut crate::caller::HeardReplies| heard.count > watchers as u64 || target.is_over();
    anyhow::ensure!(caller.until(PATIENCE, created)?, "watchers are not created");
    repeat(&mut caller, stream, RequestUnion::ProgressRequest(WatchProgressRequest {}), 5_000);
    caller.listen(Duration::from_secs(2))?;
    target.tally.ends(caller.heard.ended.values());
    Ok(())
}

fn from_one(target: &AttackTarget) -> anyhow::Result<()> {
    let watchers = target.size(20_000, 100_000);
    let mut caller = target.caller()?.discarding();
    let (stream, _) = watch(&mut caller, "attacker", 1)?;
    repeat(&mut caller, stream, create("attacker", 1), watchers);
    let is_done = |heard: &mut crate::caller::HeardReplies| heard.count > watchers as u64 || target.is_over();
    let is_done = caller.until(PATIENCE, is_done)?;
    target.tally.told(if is_done { "all created" } else { "not all created" });
    target.tally.ends(caller.heard.ended.values());
    Ok(())
}

/// The responses of a watch stream.
fn responses(caller: &Caller) -> impl Iterator<Item = WatchResponse> {
    caller.heard.messages.iter().filter_map(|(_, body)| WatchResponse::decode(&body[..]).ok())
}

fn judge(target: &AttackTarget, since: u64) {
    let took = clock::nanos() - since;
    target.tally.told(if took < SOON { "in time" } else { "late, more than 1 s" });
}

/// A watcher that is told everything is cancelled while it is; how long that takes. Each response
/// is as long as the store.
fn cancel(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let (stream, _) = caller.open(WATCH).context("no more streams")?;
    caller.client.send_message(stream, &encoded(create_all(1)));
    anyhow::ensure!(caller.until(PATIENCE, |heard| heard.messages.len() > 1)?, "no events");
    let since = clock::nanos();
    caller
        .client
        .send_message(stream, &encoded(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 0 })));
    let is_over = caller.until(PATIENCE, |heard| {
        let last = heard.messages.last().and_then(|(_, body)| WatchResponse::decode(&body[..]).ok());
        last.is_some_and(|response| response.canceled)
    })?;
    anyhow::ensure!(is_over, "the cancel is not answered");
    judge(target, since);
    Ok(())
}

fn creates(target: &AttackTarget) -> anyhow::Result<()> {
    let mut caller = target.caller()?;
    let (stream, _) = caller.open(WATCH).context("no more streams")?;
    let since = clock::nanos();
    for _ in 0..51 {
        caller.client.send_message(stream, &encoded(create_all(2)));
    }
    let mut created = 0;
    while created < 51 {
        anyhow::ensure!(caller.until(PATIENCE, |heard| !heard.messages.is_empty())?, "not created");
        created += responses(&caller).filter(|response| response.created).count();
        caller.heard.messages.clear();
    }
    judge(target, since);
    Ok(())
}

/// Streams with one watcher each on one connection that is never read, and thousands of events for
/// all.
fn unread(target: &AttackTarget) -> anyhow::Result<()> {
    let mut watching = target.caller()?;
    for _ in 0..1_000 {
        watch(&mut watching, "attacker", 0)?;
    }
    watching.send_all(Duration::from_secs(2))?;
    let mut writing = target.caller()?;
    let put = PutRequest { key: "attacker".into(), value: value(1_000, 1), ..PutRequest::default() };
    for _ in 0..30 {
        call_all(&mut writing, PUT, std::iter::repeat_n(put.encode_to_vec(), 100))?;
        target.tally.told_times("ok", 100);
        if target.is_over() {
            break;
        }
    }
    Ok(())
}

/// Streams that may be sent nothing, each of which begins to read history alone, so that it shares
/// no events with others.
fn untaken(target: &AttackTarget) -> anyhow::Result<()> {
    let mut connections = Vec::new();
    for at in 0..600 {
        if at % 150 == 0 {
            let mut stream = target.raw()?;
            stream.write_all(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]))?;
            connections.push(stream);
        }
        let id = 1 + 2 * (at % 150);
        let call =
            [frame(1, 4, id, &call_block(WATCH)), frame(0, 0, id, &framed(0, &encoded(create_all(1))))];
        // A connection that was ended is what should happen.
        if let Some(stream) = connections.last_mut() {
            let _ = stream.write_all(&call.concat());
        }
        target.linger(Duration::from_millis(10));
        if target.is_over() {
            break;
        }
    }
    target.linger(Duration::from_secs(2));
    Ok(())
}
