//! Runs the scripts in `tests/scripts/watch`: requests of watch calls and changes of the store in,
//! the replies that the hub leaves with each stream out. `UPDATE_GOLDENFILES=1 cargo test -p
//! revd-member --test watch_scripts` writes what it leaves now; read the difference.
//!
//! ```text
//! limits step=WORK fragment=BYTES memory=BYTES       of a hub, before the first stream
//! put k v    put k size=BYTES    put k times=N    del k [end]    txn "put k v" "del k"
//! checkpoint    compact N
//! open s [s ...]    close s                          streams; each has a connection of its own
//! create s k [end] [from=N] [id=N] [prev] [noput] [nodelete] [fragment] [notify]
//! cancel s id    progress s
//! step [N]    settle    tick [N]                     steps of the hub; all there are; of the clock
//! take s [N]                                         replies: N, or all
//! ```

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

mod golden;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use goldenscript::{Argument, Command as Line, Context, Runner};
use prost::Message as _;
use revd_engine::db::DbOptions;
use revd_engine::disk::SimDisk;
use revd_engine::mvcc::{CheckpointKind, KeyRange, Store};
use revd_member::budget::Budget;
use revd_member::limits::WATCH_STEP_WORK;
use revd_member::watch::{Content, Hub, HubLimits, Reply, StreamId};
use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchResponse};
use revd_proto::mvccpb::event::EventType;
use revd_proto::mvccpb::{Event, KeyValue};

use golden::run_all;

/// A line's arguments.
struct Args<'l> {
    plain: Vec<&'l str>,
    named: BTreeMap<&'l str, &'l str>,
}

impl<'l> Args<'l> {
    fn of(line: &'l Line) -> Self {
        let mut args = Self { plain: Vec::new(), named: BTreeMap::new() };
        for argument in &line.args {
            match argument {
                Argument::Positional(word) => args.plain.push(word),
                Argument::KeyValue(name, value) => drop(args.named.insert(name, value)),
                other => panic!("{other} is no argument"),
            }
        }
        args
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.named.get(name).map(|text| text.parse().ok().expect("a number"))
    }

    /// The number at a place, 1 if there is none.
    fn count(&self, at: usize) -> u64 {
        self.plain.get(at).map_or(1, |text| text.parse().expect("a number"))
    }

    fn has(&self, word: &str) -> bool {
        self.plain.contains(&word)
    }
}

/// A change of keys.
enum Change<'a> {
    Put(Vec<u8>),
    /// With all others before this key, if it is not empty.
    Delete(&'a str),
}

/// Long text by its length.
fn text(bytes: &[u8]) -> String {
    if bytes.len() > 40 { format!("({} bytes)", bytes.len()) } else { bytes.escape_ascii().to_string() }
}

fn shown_kv(kv: &KeyValue) -> String {
    format!("{} = {} (version {})", text(&kv.key), text(&kv.value), kv.version)
}

fn shown_event(event: &Event) -> String {
    let kv = event.kv.as_ref().unwrap();
    let is_delete = event.r#type == EventType::Delete as i32;
    let mut shown = if is_delete { format!("delete {}", text(&kv.key)) } else { shown_kv(kv) };
    write!(shown, " at {}", kv.mod_revision).unwrap();
    if let Some(previous) = &event.prev_kv {
        write!(shown, ", before: {}", shown_kv(previous)).unwrap();
    }
    shown
}

fn shown(reply: &Reply) -> String {
    let mut list = Vec::new();
    let content = match &reply.content {
        Content::Created => "created".to_owned(),
        Content::Refused(reason) => format!("refused: {reason}"),
        Content::Revoked(reason) => format!("revoked: {reason}"),
        Content::Canceled => "canceled".to_owned(),
        Content::Compacted(revision) => format!("canceled, compacted at {revision}"),
        Content::Progress => "progress".to_owned(),
        Content::Events { events, fragment } => {
            list = WatchResponse::decode(events.as_ref()).unwrap().events;
            let events = if list.len() == 1 { "event" } else { "events" };
            format!("{} {events}{}", list.len(), if *fragment { ", more follow" } else { "" })
        }
    };
    let mut shown = format!("watcher {}, revision {}: {content}\n", reply.watch_id, reply.revision);
    list.iter().for_each(|event| writeln!(shown, "  {}", shown_event(event)).unwrap());
    shown
}

struct WatchRunner {
    store: Store,
    hub: Hub,
    memory: Budget,
    streams: BTreeMap<String, StreamId>,
    ticks: u64,
}

impl WatchRunner {
    fn new() -> Self {
        Self {
            store: Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap(),
            hub: Hub::new(HubLimits { fragment_bytes: 1 << 20, step_work: WATCH_STEP_WORK }),
            memory: Budget::new(usize::MAX),
            streams: BTreeMap::new(),
            ticks: 0,
        }
    }

    /// Replies that wait on a stream, so many at most.
    fn take(&mut self, name: &str, count: usize) -> String {
        let stream = self.streams[name];
        let replies = std::iter::from_fn(|| self.hub.take(stream)).take(count);
        let lines = replies.map(|reply| shown(&reply));
        lines.map(|lines| lines.lines().map(|line| format!("{name}: {line}\n")).collect::<String>()).collect()
    }

    /// A step, and what is left to do then.
    fn step(&mut self) -> String {
        let more = self.hub.step(&self.store.view()).unwrap();
        let counts = self.hub.counts();
        let lagging = format!("{} of {} watchers unsynced", counts.unsynced, counts.watchers);
        let starved =
            if counts.starved > 0 { format!(", {} streams starved", counts.starved) } else { String::new() };
        format!("{lagging}{starved}, {}\n", if more { "more to do" } else { "nothing to do" })
    }

    /// Carries changes out in one revision: key and value of a put, key and range end of a
    /// deletion.
    fn write(&mut self, changes: &[(&str, Change<'_>)]) -> String {
        let mut txn = self.store.begin();
        for (key, change) in changes {
            match change {
                Change::Put(value) => drop(txn.put(key.as_bytes(), value, 0)),
                Change::Delete(end) => {
                    drop(txn.delete_range(KeyRange::from_wire(key.as_bytes(), end.as_bytes())));
                }
            }
        }
        txn.commit();
        format!("revision {}\n", self.store.revision())
    }

    fn put(&mut self, args: &Args<'_>) -> String {
        let size = args.number("size").map(|bytes| vec![b'v'; bytes]);
        let value = size.unwrap_or_else(|| args.plain.get(1).copied().unwrap_or_default().into());
        let times = args.number("times").unwrap_or(1);
        let puts = (0..times).map(|_| self.write(&[(args.plain[0], Change::Put(value.clone()))]));
        puts.last().unwrap_or_default()
    }

    fn txn(&mut self, operations: &[&str]) -> String {
        let changes = operations.iter().map(|text| match text.split(' ').collect::<Vec<_>>()[..] {
            ["put", key, value] => (key, Change::Put(value.into())),
            ["del", key] => (key, Change::Delete("")),
            _ => panic!("{text:?} is no operation"),
        });
        self.write(&changes.collect::<Vec<_>>())
    }

    fn create(&mut self, args: &Args<'_>) {
        let options = ["prev", "noput", "nodelete", "fragment", "notify"];
        let end = args.plain.get(2).filter(|word| !options.contains(word)).copied().unwrap_or_default();
        let filters = [("noput", FilterType::Noput), ("nodelete", FilterType::Nodelete)];
        let filters = filters.into_iter().filter(|(word, _)| args.has(word));
        let request = WatchCreateRequest {
            key: args.plain[1].to_owned().into(),
            range_end: end.replace("end", "\0").into(),
            start_revision: args.number("from").unwrap_or_default(),
            watch_id: args.number("id").unwrap_or_default(),
            progress_notify: args.has("notify"),
            prev_kv: args.has("prev"),
            fragment: args.has("fragment"),
            filters: filters.map(|(_, filter)| filter as i32).collect(),
        };
        self.hub.create(self.streams[args.plain[0]], &request, &self.store.view());
    }

    fn limits(&mut self, args: &Args<'_>) {
        let fragment_bytes = args.number("fragment").unwrap_or(1 << 20);
        self.hub =
            Hub::new(HubLimits { fragment_bytes, step_work: args.number("step").unwrap_or(WATCH_STEP_WORK) });
        self.memory = Budget::new(args.number("memory").unwrap_or(usize::MAX));
    }

    /// Steps and takes until neither finds anything.
    fn settle(&mut self) -> String {
        let mut said = String::new();
        loop {
            let more = self.hub.step(&self.store.view()).unwrap();
            let names: Vec<String> = self.streams.keys().cloned().collect();
            let taken: String = names.iter().map(|name| self.take(name, usize::MAX)).collect();
            if !more && taken.is_empty() {
                return said + &self.step();
            }
            said += &taken;
        }
    }
}

impl Runner for WatchRunner {
    type Command = Line;

    fn run(&mut self, line: &Line, _: &Context) -> Result<String, Box<dyn Error>> {
        let args = Args::of(line);
        let stream =
            |name: &str| self.streams.get(name).copied().ok_or(format!("no stream is called {name}"));
        match line.name.as_str() {
            "limits" => self.limits(&args),
            "put" => return Ok(self.put(&args)),
            "del" => {
                let end = args.plain.get(1).copied().unwrap_or_default();
                return Ok(self.write(&[(args.plain[0], Change::Delete(end))]));
            }
            "txn" => return Ok(self.txn(&args.plain)),
            "checkpoint" => {
                if let Some(checkpoint) = self.store.checkpoint(CheckpointKind::WithIndex) {
                    let written = checkpoint.write()?;
                    self.store.finish_checkpoint(written);
                }
            }
            "compact" => self.store.compact(args.plain[0].parse()?)?,
            "open" => {
                for name in args.plain {
                    self.streams.insert(name.to_owned(), self.hub.open(&self.memory.share()));
                }
            }
            "close" => {
                self.hub.close(stream(args.plain[0])?);
                self.streams.remove(args.plain[0]);
            }
            "create" => self.create(&args),
            "cancel" => self.hub.cancel(stream(args.plain[0])?, args.plain[1].parse()?, &self.store.view()),
            "progress" => self.hub.request_progress(stream(args.plain[0])?, &self.store.view()),
            "step" => return Ok((0..args.count(0)).map(|_| self.step()).collect()),
            "settle" => return Ok(self.settle()),
            "tick" => {
                for _ in 0..args.count(0) {
                    self.ticks += 1;
                    self.hub.tick(self.ticks, &self.store.view());
                }
            }
            "take" => {
                let count = args.plain.get(1).map_or(Ok(usize::MAX), |count| count.parse())?;
                return Ok(self.take(args.plain[0], count));
            }
            name => return Err(format!("no command is called {name}").into()),
        }
        Ok(String::new())
    }
}

#[test]
fn watch() {
    run_all("watch", WatchRunner::new);
}
