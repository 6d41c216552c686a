//! Memory of idle watchers and streams; the cost of catching up over a long history.

use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::{PutRequest, WatchCreateRequest};

use crate::caller::{Caller, call_all};
use crate::clock;
use crate::figures::table::{Compared, Labels};
use crate::figures::watchers::{Fleet, Spread};
use crate::keys::value;
use crate::servers::Servers;
use crate::units::{amount, bytes, time};
use crate::wire::RpcMethod;

/// Revisions that are caught up over, and by how many watchers.
const REVISIONS: u64 = 200_000;
const READERS: usize = 10;
/// Until memory has settled.
const SETTLE: Duration = Duration::from_secs(3);

struct Figures {
    watcher_bytes: f64,
    stream_bytes: f64,
    catch_up_cpu: f64,
    catch_up_rate: f64,
    catch_up_bytes: f64,
}

/// Measures both.
pub(super) fn table(both: &[Servers; 2], labels: &Labels) -> anyhow::Result<String> {
    let [a, b] = both;
    let figures = [measure(a).with_context(|| a.name.clone())?, measure(b).with_context(|| b.name.clone())?];
    let row = |label: &str, of: fn(&Figures) -> f64, show| {
        Compared::new(label, [of(&figures[0]), of(&figures[1])], show)
    };
    let rows = [
        row("idle watcher, 1,000 on a stream", |it| it.watcher_bytes, bytes),
        row("idle stream of one watcher, 50 on a connection", |it| it.stream_bytes, bytes),
        row("10 watchers catch up over 200,000 revisions: CPU for each event", |it| it.catch_up_cpu, time),
        row("the same: events a second", |it| it.catch_up_rate, amount),
        row("the same: memory", |it| it.catch_up_bytes, bytes),
    ];
    Ok(labels.table("watchers", &rows))
}

fn measure(server: &Servers) -> anyhow::Result<Figures> {
    let watchers = Spread { connections: 10, streams_each: 10, watchers_each: 1_000 };
    let watcher_bytes = idle(server, watchers).context("idle watchers")?;
    let streams = Spread { connections: 100, streams_each: 50, watchers_each: 1 };
    let stream_bytes = idle(server, streams).context("idle streams")?;
    load(server).context("writing a long history")?;
    clock::rest(SETTLE);
    let (before, start) = (server.usage(), clock::nanos());
    let readers = Spread { connections: READERS, streams_each: 1, watchers_each: 1 };
    let request =
        WatchCreateRequest { key: "past".into(), start_revision: 2, ..WatchCreateRequest::default() };
    let fleet = Fleet::open(server.endpoint(), readers, 0, |_| request.clone())?;
    let events = REVISIONS * READERS as u64;
    let mut most = before.memory;
    fleet.wait_watching(events, || most = most.max(server.usage().memory))?;
    let seconds = (clock::nanos() - start) as f64 / 1e9;
    let cpu = server.usage().cpu - before.cpu;
    fleet.end()?;
    Ok(Figures {
        watcher_bytes,
        stream_bytes,
        catch_up_cpu: cpu as f64 / 1e3 / events as f64,
        catch_up_rate: events as f64 / seconds,
        catch_up_bytes: (most - before.memory) as f64,
    })
}

/// Bytes for each watcher of streams without events.
fn idle(server: &Servers, spread: Spread) -> anyhow::Result<f64> {
    clock::rest(SETTLE);
    let before = server.usage().memory;
    let request = WatchCreateRequest { key: "idle".into(), ..WatchCreateRequest::default() };
    let fleet = Fleet::open(server.endpoint(), spread, 0, |_| request.clone())?;
    clock::rest(SETTLE);
    let grown = server.usage().memory.saturating_sub(before);
    fleet.end()?;
    Ok(grown as f64 / spread.watchers() as f64)
}

/// Writes a long history of one key.
fn load(server: &Servers) -> anyhow::Result<()> {
    let mut caller = Caller::connect(server.endpoint())?.discarding();
    let put = |seed| PutRequest { key: "past".into(), value: value(256, seed), ..PutRequest::default() };
    call_all(&mut caller, RpcMethod::Put.path(), (0..REVISIONS).map(|seed| put(seed).encode_to_vec()))
}
