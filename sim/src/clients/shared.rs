//! The knowledge that all clients of a run share, and the draws of the seed for all.

use bytes::Bytes;
use revd_checker::Call;
use revd_engine::random::Random;
use revd_proto::etcdserverpb::WatchResponse;
use revd_proto::mvccpb::event::EventType;

use crate::calls::Door;
use crate::time::Micros;

/// Known to all clients.
#[derive(Debug)]
pub(super) struct Shared {
    /// The newest revision that any of them was shown.
    pub(super) newest: i64,
    /// The newest revision that a call has shown: at the end, all watchers are to know it.
    pub(super) answered: i64,
    /// The auditor was told of everything up to here.
    pub(super) audited: i64,
    /// The newest compaction that may have been carried out.
    pub(super) compacted: i64,
    /// The newest deletion that the auditor was told of.
    pub(super) deleted: i64,
    /// Keys that are written.
    pub(super) keys: u64,
    pub(super) value_bytes: u64,
    /// Writers compact once in so many requests; none do if it is 0.
    pub(super) compacts_one_in: u64,
    /// Writers send so many puts at once, now and then.
    pub(super) flood: u64,
    /// Lists are left alone when they are long; these are in use.
    pub(super) lists: u64,
    /// Leases end by then.
    pub(super) leases_end: Option<Micros>,
    leases: i64,
    values: u64,
}

/// A member in the history, by its id: a number that is given to another member is none.
pub(crate) fn place(id: u64) -> u32 {
    u32::try_from((id ^ id >> 32) & u64::from(u32::MAX)).expect("it was cut")
}

/// The process that a member runs, in the history.
pub(crate) fn life(door: &impl Door, member: usize) -> u32 {
    u32::try_from(door.life(member)).expect("few starts")
}

impl Shared {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            newest: 1,
            answered: 1,
            audited: 1,
            compacted: 0,
            deleted: 1,
            keys: random.pick(&[2, 8, 30]),
            value_bytes: random.pick(&[10, 100, 3_000]),
            compacts_one_in: random.pick(&[0, 20, 100]),
            flood: random.pick(&[0, 0, 50, 300]),
            lists: 0,
            leases_end: None,
            leases: 1_000,
            values: 0,
        }
    }

    pub(super) fn key(&self, random: &mut Random) -> Bytes {
        format!("key/{:02}", random.below(self.keys)).into()
    }

    /// One that nobody has put before.
    pub(super) fn value(&mut self, random: &mut Random) -> Bytes {
        self.values += 1;
        let filler = "x".repeat(usize::try_from(random.below(self.value_bytes)).expect("a small number"));
        format!("{} {filler}", self.values).into()
    }

    pub(super) fn element(&mut self) -> u64 {
        self.values += 1;
        self.values
    }

    /// The id of a new lease.
    pub(super) fn lease(&mut self) -> i64 {
        self.leases += 1;
        self.leases
    }

    pub(super) fn learns(&mut self, call: &Call) {
        self.shows(call.shown().unwrap_or(0));
        if let revd_checker::Request::Compact(request) = &call.request {
            self.compacted = self.compacted.max(request.revision);
        }
    }

    /// A call has shown this revision.
    pub(super) fn shows(&mut self, revision: i64) {
        self.answered = self.answered.max(revision);
        self.newest = self.newest.max(self.answered);
    }

    /// The auditor was told this.
    pub(super) fn sees(&mut self, response: &WatchResponse) {
        let deletions = response.events.iter().filter(|event| event.r#type == EventType::Delete as i32);
        let newest = deletions.filter_map(|event| Some(event.kv.as_ref()?.mod_revision)).max();
        self.deleted = self.deleted.max(newest.unwrap_or(0));
    }

    /// The storm is over; leases that nobody keeps are gone this long after their time.
    pub(super) fn calms(&mut self, leases_end: Micros) {
        self.leases_end = Some(leases_end);
    }
}
