//! A client of the simulator itself: puts and reads all over the cluster, whose revisions never go
//! back in real time, and by which a healed cluster shows that it serves.

use std::collections::BTreeMap;

use prost::Message as _;
use revd_engine::random::Random;
use revd_member::apply::command::Kind;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::calls::{CallId, Door, Reply, Request};

/// A call, and the revision that its answer must not fall behind.
#[derive(Debug, Clone, Copy)]
struct Open {
    member: usize,
    is_put: bool,
    floor: i64,
}

/// The probe.
#[derive(Debug)]
pub struct Probe {
    random: Random,
    open: BTreeMap<CallId, Open>,
    /// The highest revision that a call has returned.
    returned: i64,
    /// Puts that were answered.
    pub puts: u64,
    /// Linearizable reads that were answered.
    pub reads: u64,
    /// By member: puts and reads that were answered since the cluster was healed.
    healed: BTreeMap<usize, (u64, u64)>,
    value_bytes: u64,
    is_calm: bool,
}

impl Probe {
    /// By a seed of its own.
    #[must_use]
    pub fn new(mut random: Random) -> Self {
        let value_bytes = [20, 200, 2_000][usize::try_from(random.below(3)).expect("one of three")];
        let (open, healed) = (BTreeMap::new(), BTreeMap::new());
        Self { random, open, returned: 0, puts: 0, reads: 0, healed, value_bytes, is_calm: false }
    }

    /// Calls some member.
    pub fn act(&mut self, door: &mut impl Door) {
        let members = door.members();
        if members.is_empty() || self.open.len() > 200 {
            return;
        }
        let member = self.random.pick(&members);
        let is_put = self.random.below(3) > 0;
        let key = format!("probe/{}", self.random.below(50)).into_bytes();
        let request = if is_put {
            let bytes = self.random.below(self.value_bytes);
            let value = vec![self.random.byte(); usize::try_from(bytes).expect("a small number")];
            let put = PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() };
            Request::Command { kind: Kind::Put, payload: put.encode_to_vec().into() }
        } else {
            Request::Range(RangeRequest { key: key.into(), ..RangeRequest::default() })
        };
        let floor = self.returned;
        if let Some(call) = door.call(member, request) {
            self.open.insert(call, Open { member, is_put, floor });
        }
    }

    /// A call is answered; whether it was one of the probe's.
    pub fn answered(&mut self, call: CallId, reply: &Reply) -> bool {
        let Some(Open { member, is_put, floor }) = self.open.remove(&call) else { return false };
        let healed = self.healed.entry(member).or_default();
        match reply {
            Reply::Outcome(outcome) if is_put && outcome.result.is_ok() => {
                let revision = outcome.revision;
                assert!(revision > floor, "a put of revision {revision} began behind {floor}");
                self.returned = self.returned.max(revision);
                self.puts += 1;
                healed.0 += 1;
            }
            Reply::Range(response) => {
                let revision = response.header.as_ref().map_or(0, |header| header.revision);
                assert!(revision >= floor, "a read at revision {revision} began behind {floor}");
                self.returned = self.returned.max(revision);
                self.reads += 1;
                healed.1 += 1;
            }
            _ => {}
        }
        true
    }

    /// The cluster is healed: from now on each member is to answer.
    pub fn calm(&mut self) {
        self.healed.clear();
        self.is_calm = true;
    }

    /// The storm is over.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.is_calm
    }

    /// Whether these members have all answered a put and a read since then.
    #[must_use]
    pub fn is_served_by(&self, members: &[usize]) -> bool {
        members
            .iter()
            .all(|member| self.healed.get(member).is_some_and(|(puts, reads)| *puts > 0 && *reads > 0))
    }
}
