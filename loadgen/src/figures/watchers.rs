//! A client with many watchers on a thread of its own. It counts events and decodes no more than it
//! must.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use prost::Message as _;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::caller::Caller;
use crate::clock;
use crate::wire::fields::{FieldValue, MessageFields};
use crate::wire::head::CallFailure;
use crate::wire::{ClientConnection, ReplySink, RpcMethod};

/// After this long without news something is lost.
const PATIENCE: u64 = 120 * crate::clock::SECOND;

/// How many watchers are where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spread {
    pub(super) connections: usize,
    pub(super) streams_each: usize,
    pub(super) watchers_each: usize,
}

impl Spread {
    pub(super) fn watchers(self) -> u64 {
        (self.connections * self.streams_each * self.watchers_each) as u64
    }
}

/// Counters shared by the reading thread and the waiting one.
struct Counted {
    /// When each put was sent, in nanoseconds; by its number, from 1.
    sent: Vec<AtomicU64>,
    created: AtomicU64,
    events: AtomicU64,
    is_over: AtomicBool,
    /// Why it went wrong.
    broken: Mutex<Option<String>>,
}

/// Open watchers.
pub(super) struct Fleet {
    counted: Arc<Counted>,
    thread: JoinHandle<Vec<u64>>,
}

impl Fleet {
    /// Opens watchers; returns when all are created. `request` makes the request of each stream.
    /// `puts` are timed.
    pub(super) fn open(
        endpoint: &str,
        spread: Spread,
        puts: usize,
        request: impl Fn(usize) -> WatchCreateRequest,
    ) -> anyhow::Result<Self> {
        let counted = Arc::new(Counted {
            sent: (0..=puts).map(|_| AtomicU64::new(0)).collect(),
            created: AtomicU64::new(0),
            events: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            broken: Mutex::new(None),
        });
        let mut connections = Vec::new();
        for connection in 0..spread.connections {
            let mut caller = Caller::connect(endpoint)?;
            for stream in 0..spread.streams_each {
                let number = connection * spread.streams_each + stream;
                let token = u32::try_from(number)?;
                let opened = caller.client.open(RpcMethod::Watch, token).context("no more streams")?;
                let union = Some(RequestUnion::CreateRequest(request(number)));
                let create = WatchRequest { request_union: union }.encode_to_vec();
                (0..spread.watchers_each).for_each(|_| caller.client.send_message(opened, &create));
            }
            connections.push(caller.client);
        }
        let told = vec![vec![0; spread.watchers_each]; spread.connections * spread.streams_each];
        let reader = WatchReader { counted: Arc::clone(&counted), told, delays: Vec::new() };
        let fleet = Self { counted, thread: std::thread::spawn(move || reader.read(connections)) };
        fleet.wait(|counted| counted.created.load(Ordering::Relaxed), spread.watchers(), PATIENCE, || ())?;
        Ok(fleet)
    }

    /// Put number `number`, from 1, is sent now.
    pub(super) fn sending(&self, number: usize) {
        self.counted.sent[number].store(clock::nanos(), Ordering::Relaxed);
    }

    /// Waits until so many events have come.
    pub(super) fn wait_for_events(&self, count: u64) -> anyhow::Result<()> {
        self.wait_watching(count, || ())
    }

    /// The same; `look` is called every few milliseconds meanwhile.
    pub(super) fn wait_watching(&self, count: u64, look: impl FnMut()) -> anyhow::Result<()> {
        self.wait(|counted| counted.events.load(Ordering::Relaxed), count, PATIENCE, look)
    }

    fn check(&self) -> anyhow::Result<()> {
        match &*self.counted.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(what) => anyhow::bail!("watchers: {what}"),
            None => Ok(()),
        }
    }

    fn wait(
        &self,
        counter: impl Fn(&Counted) -> u64,
        count: u64,
        patience: u64,
        mut look: impl FnMut(),
    ) -> anyhow::Result<()> {
        let (mut before, mut news) = (0, clock::nanos());
        loop {
            self.check()?;
            let now = counter(&self.counted);
            if now >= count {
                return Ok(());
            }
            if now > before {
                (before, news) = (now, clock::nanos());
            }
            anyhow::ensure!(clock::nanos() < news + patience, "watchers: only {now} of {count} came");
            look();
            clock::rest(Duration::from_millis(5));
        }
    }

    /// Closes them; how late their events came, in nanoseconds, ascending.
    pub(super) fn end(self) -> anyhow::Result<Vec<u64>> {
        self.counted.is_over.store(true, Ordering::Relaxed);
        let check = self.check();
        let delays = self.thread.join().map_err(|_| anyhow::anyhow!("the watchers have panicked"))?;
        check.map(|()| delays)
    }
}

/// The thread that reads.
struct WatchReader {
    counted: Arc<Counted>,
    /// Events of each watcher, by stream.
    told: Vec<Vec<usize>>,
    delays: Vec<u64>,
}

impl WatchReader {
    fn read(mut self, mut connections: Vec<ClientConnection>) -> Vec<u64> {
        let mut buffer = vec![0; 1 << 20];
        while !self.counted.is_over.load(Ordering::Relaxed) {
            if let Err(error) = self.turn(&mut connections, &mut buffer) {
                self.fail(&format!("{error:#}"));
                break;
            }
        }
        self.delays.sort_unstable();
        self.delays
    }

    fn turn(&mut self, connections: &mut [ClientConnection], buffer: &mut [u8]) -> anyhow::Result<()> {
        let mut flags = Vec::new();
        for client in connections.iter_mut() {
            let is_sent = client.flush()?;
            flags.push(if is_sent { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT });
        }
        let mut polled: Vec<PollFd<'_>> =
            connections.iter().zip(flags).map(|(client, flags)| PollFd::new(client, flags)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> =
            polled.iter().map(|polled| polled.revents().intersects(!PollFlags::OUT)).collect();
        for (client, _) in connections.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            while client.read(buffer, self)? {}
        }
        Ok(())
    }

    fn fail(&self, what: &str) {
        let mut broken = self.counted.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get_or_insert_with(|| what.to_owned());
    }
}

impl ReplySink for WatchReader {
    fn message(&mut self, token: u32, body: &[u8]) {
        let now = clock::nanos();
        let Outline { watch_id, events, is_created, is_canceled } = Outline::of(body);
        if is_canceled {
            self.fail("a watcher was cancelled");
        }
        self.counted.created.fetch_add(is_created.into(), Ordering::Relaxed);
        let watchers = self.told.get_mut(token as usize);
        if let Some(told) = watchers.and_then(|watchers| watchers.get_mut(watch_id)) {
            for _ in 0..events {
                *told += 1;
                let sent = self.counted.sent.get(*told).map(|sent| sent.load(Ordering::Relaxed));
                self.delays.extend(sent.map(|sent| now.saturating_sub(sent)));
            }
        }
        self.counted.events.fetch_add(events, Ordering::Relaxed);
    }

    fn end(&mut self, _token: u32, outcome: Result<(), CallFailure>) {
        self.fail(&format!("a stream has ended: {outcome:?}"));
    }

    fn reset(&mut self, _stream: u32, code: u32) {
        self.fail(&format!("a stream was reset (code {code})"));
    }
}

/// The fields of a `WatchResponse` that matter here; events are only counted.
#[derive(Debug, Default, PartialEq)]
struct Outline {
    watch_id: usize,
    events: u64,
    is_created: bool,
    is_canceled: bool,
}

impl Outline {
    fn of(response: &[u8]) -> Self {
        let mut outline = Self::default();
        for (number, value) in MessageFields(response) {
            match (number, value) {
                (2, FieldValue::Number(id)) => outline.watch_id = usize::try_from(id).unwrap_or(usize::MAX),
                (3, FieldValue::Number(flag)) => outline.is_created = flag != 0,
                (4, FieldValue::Number(flag)) => outline.is_canceled = flag != 0,
                (11, FieldValue::Bytes(_)) => outline.events += 1,
                _ => {}
            }
        }
        outline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use revd_proto::etcdserverpb::WatchResponse;
    use revd_proto::mvccpb::Event;

    #[test]
    fn events_that_do_not_come_are_not_waited_for_without_end() {
        let counted = Counted {
            sent: Vec::new(),
            created: AtomicU64::new(0),
            events: AtomicU64::new(3),
            is_over: AtomicBool::new(false),
            broken: Mutex::new(None),
        };
        let fleet = Fleet { counted: Arc::new(counted), thread: std::thread::spawn(Vec::new) };
        let events = |counted: &Counted| counted.events.load(Ordering::Relaxed);
        let mut looks = 0;
        let error = fleet.wait(events, 5, 50_000_000, || looks += 1).unwrap_err();
        assert_eq!(error.to_string(), "watchers: only 3 of 5 came");
        assert!(looks > 0);
        fleet.wait_for_events(3).unwrap();
    }

    #[test]
    fn events_are_counted_without_being_decoded() {
        let response =
            WatchResponse { watch_id: 7, events: vec![Event::default(); 3], ..WatchResponse::default() };
        let expected = Outline { watch_id: 7, events: 3, ..Outline::default() };
        assert_eq!(Outline::of(&response.encode_to_vec()), expected);
        let created = WatchResponse { created: true, ..WatchResponse::default() };
        assert!(Outline::of(&created.encode_to_vec()).is_created);
    }
}
