//! The words between clients and members: the calls of an edge behind the checks of its API, and
//! watch streams.

use bytes::Bytes;
use revd_member::apply::command::Kind;
use revd_member::apply::local::LeaseRequest;
use revd_member::apply::outcome::Outcome;
use revd_member::error::Error;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{RangeRequest, RangeResponse};

use crate::time::Micros;

/// A call of a client, unique in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallId(pub u64);

/// A watch stream of a client, unique in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A request of a client, as the API hands it on.
#[derive(Debug, Clone)]
pub enum Request {
    /// For the log: Put, DeleteRange, Txn, Compact, LeaseGrant, LeaseRevoke, ...
    Command {
        /// Which.
        kind: Kind,
        /// The encoded request of etcd's API. A LeaseGrant names its id.
        payload: Bytes,
    },
    /// Linearizable unless it says `serializable`.
    Range(RangeRequest),
    /// KeepAlive, TimeToLive, ...
    Lease(LeaseRequest),
    /// Give space back to the file system.
    Defragment,
    /// Make this member the leader.
    MoveLeader {
        /// Its member id.
        to: u64,
    },
}

/// The answer that a caller gets.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Of commands, lease requests, defragmentation and leader moves: the encoded response without
    /// its header, and the revision that its header names.
    Outcome(Outcome),
    /// Of a range, with the revision of the header in it.
    Range(Box<RangeResponse>),
    /// Refused or lost; etcd's error. If it is [`Error`] of a kind that says so, the request may
    /// have been carried out all the same.
    Failed(Error),
    /// The connection broke, for the member's process has ended: the request may have been carried
    /// out.
    Broken,
}

/// One message of a watch stream.
#[derive(Debug, Clone)]
pub struct WatchMessage {
    /// As it came from the hub of the edge.
    pub reply: revd_member::watch::Reply,
}

/// The way of clients into the cluster. Answers come in a later event, never within a call.
pub trait Door {
    /// The time.
    fn now(&self) -> Micros;
    /// Members that there are: their numbers in this run (not their ids), whether they run or not.
    /// The operator adds and removes some.
    fn members(&self) -> Vec<usize>;
    /// The member id of one of them.
    fn member_id(&self, member: usize) -> u64;
    /// The process that it runs now: another number after each start; 0 while it does not run.
    fn life(&self, member: usize) -> u64;
    /// Calls a member; one that does not run refuses it (none).
    fn call(&mut self, member: usize, request: Request) -> Option<CallId>;
    /// Gives a call up: no answer follows, and the request may be carried out.
    fn give_up(&mut self, call: CallId);
    /// Opens a watch stream; none if the member does not run.
    fn open_stream(&mut self, member: usize) -> Option<StreamId>;
    /// Sends a request on it.
    fn request_watch(&mut self, stream: StreamId, request: RequestUnion);
    /// Takes no messages from it from now on, or does again.
    fn stall(&mut self, stream: StreamId, is_stalled: bool);
    /// Closes it: no message follows.
    fn close_stream(&mut self, stream: StreamId);
    /// Calls [`Clients::wake`](crate::clients::Clients::wake) with this number after so long.
    fn wake_after(&mut self, after: Micros, number: u64);
}
