//! A client of the simulator itself: puts and reads all over the cluster, whose revisions never go
//! back in real time, and by which a healed cluster shows that it serves. Its calls belong to the
//! history.

use std::collections::BTreeMap;

use revd_checker::{Call, Outcome, Request, Response};
use revd_engine::random::Random;
use revd_proto::etcdserverpb::{PutRequest, RangeRequest};

use crate::calls::{CallId, Door, Reply};
use crate::clients::{life, place, words};
use crate::time::Micros;

/// In the history.
const CLIENT: u32 = u32::MAX - 1;

/// A call, and the revision that its answer must not fall behind.
#[derive(Debug)]
struct Open {
    member: usize,
    life: u32,
    began: Micros,
    request: Request,
    floor: i64,
}

impl Open {
    fn ends(self, place: u32, returned: Micros, outcome: Outcome) -> Call {
        let Self { life, began, request, .. } = self;
        Call { client: CLIENT, member: place, life, began, returned, request, outcome }
    }
}

/// The probe.
#[derive(Debug)]
pub struct Probe {
    random: Random,
    open: BTreeMap<CallId, Open>,
    ended: Vec<Call>,
    /// The highest revision that a call has returned.
    returned: i64,
    /// Values that were put.
    values: u64,
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
        Self {
            random,
            open: BTreeMap::new(),
            ended: Vec::new(),
            returned: 0,
            values: 0,
            puts: 0,
            reads: 0,
            healed: BTreeMap::new(),
            value_bytes,
            is_calm: false,
        }
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
            let filler = vec![self.random.byte(); usize::try_from(bytes).expect("a small number")];
            self.values += 1; // no value is put twice
            let value = [&self.values.to_be_bytes()[..], &filler].concat();
            Request::Put(PutRequest { key: key.into(), value: value.into(), ..PutRequest::default() })
        } else {
            Request::Range(RangeRequest { key: key.into(), ..RangeRequest::default() })
        };
        if let Some(call) = door.call(member, words::request(&request)) {
            let (life, began, floor) = (life(door, member), door.now(), self.returned);
            self.open.insert(call, Open { member, life, began, request, floor });
        }
    }

    /// A call is answered; whether it was one of the probe's.
    pub fn answered(&mut self, call: CallId, reply: &Reply, door: &impl Door) -> bool {
        let Some(open) = self.open.remove(&call) else { return false };
        let (member, floor) = (open.member, open.floor);
        let outcome = words::outcome(&open.request, reply.clone());
        let call = open.ends(place(door.member_id(member)), door.now(), outcome);
        if let (Some(response), Some(revision)) = (call.answer(), call.shown()) {
            let healed = self.healed.entry(member).or_default();
            if matches!(response, Response::Put(_)) {
                assert!(revision > floor, "a put of revision {revision} began behind {floor}");
                self.puts += 1;
                healed.0 += 1;
            } else {
                assert!(revision >= floor, "a read at revision {revision} began behind {floor}");
                self.reads += 1;
                healed.1 += 1;
            }
            self.returned = self.returned.max(revision);
        }
        self.ended.push(call);
        true
    }

    /// The newest revision that one of its calls has shown.
    #[must_use]
    pub fn shown(&self) -> i64 {
        self.returned
    }

    /// One of its puts was of another value, as far as it says.
    #[cfg(test)]
    pub(crate) fn spoil(&mut self) {
        let mut answered = self.ended.iter_mut().filter(|call| call.answer().is_some());
        let put = answered.find_map(|call| match &mut call.request {
            Request::Put(put) => Some(put),
            _ => None,
        });
        put.expect("it puts").value = "another".into();
    }

    /// All its calls, with those that were not answered.
    #[must_use]
    pub fn into_calls(self, now: Micros) -> Vec<Call> {
        let open = self.open.into_values();
        let open = open.map(|open| open.ends(u32::MAX, now, Outcome::Unknown("not answered".to_owned())));
        self.ended.into_iter().chain(open).collect()
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
