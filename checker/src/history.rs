//! The record of what clients asked and were told, in etcd's terms. Recording is pushing to a few
//! lists.

use bytes::Bytes;
use revd_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, HashKvRequest,
    HashKvResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use revd_proto::mvccpb::KeyValue;

use crate::watch::Transcript;

/// Microseconds of one clock for all clients. An end and a beginning at the same time overlap.
pub type Time = u64;

/// Everything that the clients of a cluster asked and were told.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    /// The revision that the cluster had before the first call; an empty cluster has 1.
    pub first: i64,
    /// The keys that it had then.
    pub found: Vec<KeyValue>,
    /// In any order.
    pub calls: Vec<Call>,
    /// In any order.
    pub watches: Vec<Watch>,
    /// In any order.
    pub holds: Vec<Hold>,
    /// In any order.
    pub states: Vec<StateAt>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            first: 1,
            found: Vec::new(),
            calls: Vec::new(),
            watches: Vec::new(),
            holds: Vec::new(),
            states: Vec::new(),
        }
    }
}

/// A call of a client to a member.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The client; the order of its calls is that of their times.
    pub client: u32,
    /// The member that was asked.
    pub member: u32,
    /// How often that member had been started, as far as it matters: see
    /// [`Rules::goes_on`](crate::Rules::goes_on).
    pub life: u32,
    /// When it was sent.
    pub began: Time,
    /// When the client was answered or gave it up.
    pub returned: Time,
    /// The request.
    pub request: Request,
    /// The end of it.
    pub outcome: Outcome,
}

/// A request.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "etcd's names")]
pub enum Request {
    Range(RangeRequest),
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(CompactionRequest),
    HashKv(HashKvRequest),
    LeaseGrant(LeaseGrantRequest),
    LeaseRevoke(LeaseRevokeRequest),
    LeaseKeepAlive(LeaseKeepAliveRequest),
    LeaseTimeToLive(LeaseTimeToLiveRequest),
}

/// The answer, with its header.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "etcd's names")]
pub enum Response {
    Range(RangeResponse),
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    HashKv(HashKvResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    LeaseKeepAlive(LeaseKeepAliveResponse),
    LeaseTimeToLive(LeaseTimeToLiveResponse),
}

impl Response {
    /// The header, wherever it is.
    pub fn header(&mut self) -> &mut Option<ResponseHeader> {
        match self {
            Self::Range(response) => &mut response.header,
            Self::Put(response) => &mut response.header,
            Self::DeleteRange(response) => &mut response.header,
            Self::Txn(response) => &mut response.header,
            Self::Compact(response) => &mut response.header,
            Self::HashKv(response) => &mut response.header,
            Self::LeaseGrant(response) => &mut response.header,
            Self::LeaseRevoke(response) => &mut response.header,
            Self::LeaseKeepAlive(response) => &mut response.header,
            Self::LeaseTimeToLive(response) => &mut response.header,
        }
    }

    /// The revision that the header shows; 0 without one.
    #[must_use]
    pub fn revision(&self) -> i64 {
        let header = match self {
            Self::Range(response) => &response.header,
            Self::Put(response) => &response.header,
            Self::DeleteRange(response) => &response.header,
            Self::Txn(response) => &response.header,
            Self::Compact(response) => &response.header,
            Self::HashKv(response) => &response.header,
            Self::LeaseGrant(response) => &response.header,
            Self::LeaseRevoke(response) => &response.header,
            Self::LeaseKeepAlive(response) => &response.header,
            Self::LeaseTimeToLive(response) => &response.header,
        };
        header.as_ref().map_or(0, |header| header.revision)
    }
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The answer.
    Answered(Response),
    /// An error that says that nothing was done: its text.
    Refused(String),
    /// An error, or no answer: it may have been done, or may be later, once.
    Unknown(String),
}

impl Call {
    /// The answer, if there was one.
    #[must_use]
    pub fn answer(&self) -> Option<&Response> {
        match &self.outcome {
            Outcome::Answered(response) => Some(response),
            Outcome::Refused(_) | Outcome::Unknown(_) => None,
        }
    }

    /// The revision that the answer shows.
    #[must_use]
    pub fn shown(&self) -> Option<i64> {
        self.answer().map(Response::revision).filter(|revision| *revision > 0)
    }
}

/// A watcher and what it was told.
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    /// The client that watched.
    pub client: u32,
    /// The member that told it.
    pub member: u32,
    /// As in [`Call::life`].
    pub life: u32,
    /// Request and responses.
    pub transcript: Transcript,
    /// When each response came.
    pub times: Vec<Time>,
}

/// A client that believed to hold a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The client.
    pub client: u32,
    /// The lock.
    pub name: Bytes,
    /// It holds no longer than this lease lives for sure.
    pub lease: i64,
    /// When it was told that it holds the lock.
    pub from: Time,
    /// When it began to give it up; none if it never did.
    pub until: Option<Time>,
}

/// The state of a member behind an entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateAt {
    /// The member.
    pub member: u32,
    /// The entry.
    pub index: u64,
    /// The state, or a digest of it.
    pub digest: Bytes,
}
