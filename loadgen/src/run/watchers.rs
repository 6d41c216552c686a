//! Watchers of one thread: opening them, and counting and timing their events.

use crate::keys::KeySpace;
use crate::plan::{OpKind, Plan, WatchPlan};
use crate::scenario::{OpSource, expiry_prefix, stamp};
use crate::wire::fields::{FieldValue, MessageFields, field, number, put_bytes, put_number, put_part};
use crate::wire::{ClientConnection, RpcMethod};

/// `Event.type` of a key that is gone.
const DELETE: i64 = 1;
/// Earlier by more than this, in nanoseconds, is too early for a lease to end.
const EARLY: u64 = 100_000_000;

/// The measure that events give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchMeasure {
    /// From when a write was meant to begin to its event.
    Delay,
    /// From opening to the last of so many events of the history.
    CatchUp(u64),
    /// From when a lease was due to the event of its key.
    Expiry,
}

/// One stream.
#[derive(Debug)]
struct WatcherStream {
    /// By watch id: revision of the last event, and how many there were.
    watchers: Vec<(i64, u64)>,
    opened: u64,
}

/// All of one thread's.
#[derive(Debug)]
pub(super) struct RunWatchers {
    measured: WatchMeasure,
    streams: Vec<WatcherStream>,
    /// Watchers that are wanted, and those that the server has confirmed.
    wanted: usize,
    created: usize,
    /// Events that came.
    pub(super) delivered: u64,
    /// Watchers that have caught up.
    pub(super) caught_up: usize,
    /// Violations: events out of order, or early.
    pub(super) violations: Vec<String>,
    /// Why no more events can come.
    pub(super) broken: Option<String>,
}

/// A measured event: its operation (none: the watch itself) and its delay.
pub(super) type Delay = (Option<usize>, u64);

impl RunWatchers {
    /// Those of thread `thread`; none if it has none.
    pub(super) fn new(plan: &Plan) -> Self {
        let is_expiry = plan.ops.iter().any(|op| matches!(op.kind, OpKind::LeaseExpiry { .. }));
        let measured = match &plan.watch {
            Some(watch) if watch.from_start => WatchMeasure::CatchUp(plan.keys.count),
            None if is_expiry => WatchMeasure::Expiry,
            _ => WatchMeasure::Delay,
        };
        Self {
            measured,
            streams: Vec::new(),
            wanted: 0,
            created: 0,
            delivered: 0,
            caught_up: 0,
            violations: Vec::new(),
            broken: None,
        }
    }

    /// Every watcher that was asked for is there.
    pub(super) fn are_ready(&self) -> bool {
        self.created >= self.wanted
    }

    /// Watchers that have yet to catch up.
    pub(super) fn behind(&self) -> usize {
        if matches!(self.measured, WatchMeasure::CatchUp(_)) { self.wanted - self.caught_up } else { 0 }
    }

    /// Opens a stream with these watchers of the plan.
    ///
    /// # Errors
    /// When the server allows no more streams.
    pub(super) fn open(
        &mut self,
        client: &mut ClientConnection,
        token: u32,
        now: u64,
        requests: impl Iterator<Item = Vec<u8>>,
    ) -> anyhow::Result<()> {
        let opened = client.open(RpcMethod::Watch, token);
        let stream =
            opened.ok_or_else(|| anyhow::anyhow!("the server allows no more streams on a connection"))?;
        let mut watchers = 0;
        for request in requests {
            client.send_message(stream, &request);
            watchers += 1;
        }
        self.wanted += watchers;
        self.streams.push(WatcherStream { watchers: vec![(0, 0); watchers], opened: now });
        Ok(())
    }

    /// Streams that are open.
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// A message of stream `stream`.
    pub(super) fn message(
        &mut self,
        stream: usize,
        body: &[u8],
        now: u64,
        source: &mut OpSource,
        mut record: impl FnMut(Delay),
    ) {
        let (mut id, mut is_created) = (0, false);
        for (number, value) in MessageFields(body) {
            match (number, value) {
                (2, _) => id = value.signed(),
                (3, FieldValue::Number(created)) => is_created = created != 0,
                (4, FieldValue::Number(1)) => {
                    let reason = crate::wire::fields::bytes(body, 6);
                    self.broken =
                        Some(format!("a watcher was cancelled: {}", String::from_utf8_lossy(reason)));
                }
                (11, FieldValue::Bytes(event)) => self.event(stream, id, event, now, source, &mut record),
                _ => {}
            }
        }
        self.created += usize::from(is_created);
    }

    fn event(
        &mut self,
        stream: usize,
        id: i64,
        event: &[u8],
        now: u64,
        source: &mut OpSource,
        record: &mut impl FnMut(Delay),
    ) {
        let (mut revision, mut key, mut time) = (0, &[][..], None);
        if let Some(FieldValue::Bytes(kv)) = field(event, 2) {
            for (number, value) in MessageFields(kv) {
                match (number, value) {
                    (1, FieldValue::Bytes(bytes)) => key = bytes,
                    (3, _) => revision = value.signed(),
                    (5, FieldValue::Bytes(bytes)) => time = stamp(bytes),
                    _ => {}
                }
            }
        }
        let stream = &mut self.streams[stream];
        let Some((last, count)) = usize::try_from(id).ok().and_then(|id| stream.watchers.get_mut(id)) else {
            return self.violations.push(format!("an event for watcher {id}, which was not created"));
        };
        if revision < *last && self.violations.len() < 10 {
            self.violations
                .push(format!("watcher {id}: an event of revision {revision} behind one of {last}"));
        }
        (*last, *count) = (revision, *count + 1);
        match self.measured {
            WatchMeasure::Delay => {
                self.delivered += 1;
                if let Some(time) = time {
                    record((None, now.saturating_sub(time)));
                }
            }
            WatchMeasure::CatchUp(all) => {
                self.delivered += 1;
                if *count == all {
                    self.caught_up += 1;
                    record((None, now - stream.opened));
                }
            }
            WatchMeasure::Expiry if number(event, 1) == DELETE => {
                let Some((op, end)) = source.gone(key, now) else { return };
                self.delivered += 1;
                if end.early > EARLY && self.violations.len() < 10 {
                    self.violations.push(format!("a lease ended {} ms too early", end.early / 1_000_000));
                }
                record((Some(op), end.late));
            }
            WatchMeasure::Expiry => {}
        }
    }
}

/// The request for watcher `watcher` of a plan.
pub(super) fn create(plan: &Plan, watch: &WatchPlan, watcher: usize, start_revision: i64) -> Vec<u8> {
    let (mut key, mut end) = (Vec::new(), Vec::new());
    match (watcher as u64).checked_rem(watch.keys) {
        Some(number) => plan.keys.put(number, &mut key),
        None => {
            key.extend_from_slice(plan.keys.common_prefix().as_bytes());
            end = KeySpace::end(plan.keys.common_prefix());
        }
    }
    request(&key, &end, start_revision, watch.prev_kv)
}

/// The request for the watcher of a thread's leases.
pub(super) fn create_for_leases(plan: &Plan, thread: usize) -> Vec<u8> {
    let prefix = expiry_prefix(plan, thread);
    request(prefix.as_bytes(), &KeySpace::end(&prefix), 0, false)
}

fn request(key: &[u8], end: &[u8], start_revision: i64, prev_kv: bool) -> Vec<u8> {
    let mut body = Vec::new();
    put_part(&mut body, 1, |create| {
        put_bytes(create, 1, key);
        put_bytes(create, 2, end);
        put_number(create, 3, start_revision);
        put_number(create, 6, prev_kv.into());
    });
    body
}
