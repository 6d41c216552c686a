//! Calls of a storm's clients, each made once and written down with its times.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use revd_checker::{Call, History, Outcome, Request, Response, Time};
use revd_proto::etcdserverpb::LeaseKeepAliveRequest;
use tonic::{Code, Status};

use crate::harness::Client;

/// How long a client waits for an answer.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// A member as a client knows it.
#[derive(Clone)]
pub struct Known {
    pub member: u32,
    /// How often it had been started.
    pub life: u32,
    pub client: Client,
}

/// The history of a storm while it is written.
pub struct Recorder {
    begun: Instant,
    pub history: RefCell<History>,
    /// Outcomes by kind of request.
    pub tally: RefCell<BTreeMap<&'static str, [u64; 3]>>,
    /// Errors by code and text.
    pub errors: RefCell<BTreeMap<String, u64>>,
}

impl Recorder {
    #[expect(clippy::disallowed_methods, reason = "a history has times")]
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            history: RefCell::default(),
            tally: RefCell::default(),
            errors: RefCell::default(),
        }
    }

    /// Microseconds since the storm began.
    pub fn now(&self) -> Time {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap()
    }

    /// Makes a call, once; the answer, if there is one.
    pub async fn call(&self, client: u32, to: &Known, request: Request) -> Result<Response, bool> {
        let began = self.now();
        let outcome = match carry_out(&to.client, request.clone()).await {
            Ok(response) => Outcome::Answered(response),
            Err(status) => self.failed(&status),
        };
        let result = match &outcome {
            Outcome::Answered(response) => Ok(response.clone()),
            Outcome::Refused(_) => Err(false),
            Outcome::Unknown(_) => Err(true),
        };
        let place = result.as_ref().map_or_else(|unknown| 1 + usize::from(*unknown), |_| 0);
        self.tally.borrow_mut().entry(name(&request)).or_default()[place] += 1;
        let Known { member, life, .. } = *to;
        let call = Call { client, member, life, began, returned: self.now(), request, outcome };
        self.history.borrow_mut().calls.push(call);
        result
    }

    /// An error, which is counted by its code and text.
    pub fn failed(&self, status: &Status) -> Outcome {
        // The client's own words for a connection that is lost differ by where it noticed.
        let is_transport = std::error::Error::source(status).is_some();
        let text = if is_transport { "(transport)" } else { status.message() }.to_owned();
        *self.errors.borrow_mut().entry(format!("{:?}: {text}", status.code())).or_insert(0) += 1;
        let refuses = matches!(
            status.code(),
            Code::InvalidArgument
                | Code::OutOfRange
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::NotFound
        );
        if refuses && !is_transport { Outcome::Refused(text) } else { Outcome::Unknown(text) }
    }

    /// All calls that were answered.
    pub fn answered(&self) -> u64 {
        self.tally.borrow().values().map(|outcomes| outcomes[0]).sum()
    }
}

fn name(request: &Request) -> &'static str {
    match request {
        Request::Range(_) => "range",
        Request::Put(_) => "put",
        Request::DeleteRange(_) => "delete",
        Request::Txn(_) => "txn",
        Request::Compact(_) => "compact",
        Request::HashKv(_) => "hash",
        Request::LeaseGrant(_) => "grant",
        Request::LeaseRevoke(_) => "revoke",
        Request::LeaseKeepAlive(_) => "keepalive",
        Request::LeaseTimeToLive(_) => "time to live",
    }
}

async fn carry_out(client: &Client, request: Request) -> Result<Response, Status> {
    let (mut kv, mut lease, mut maintenance) =
        (client.kv.clone(), client.lease.clone(), client.maintenance.clone());
    Ok(match request {
        Request::Range(request) => Response::Range(kv.range(request).await?.into_inner()),
        Request::Put(request) => Response::Put(kv.put(request).await?.into_inner()),
        Request::DeleteRange(request) => Response::DeleteRange(kv.delete_range(request).await?.into_inner()),
        Request::Txn(request) => Response::Txn(kv.txn(request).await?.into_inner()),
        Request::Compact(request) => Response::Compact(kv.compact(request).await?.into_inner()),
        Request::HashKv(request) => Response::HashKv(maintenance.hash_kv(request).await?.into_inner()),
        Request::LeaseGrant(request) => Response::LeaseGrant(lease.lease_grant(request).await?.into_inner()),
        Request::LeaseRevoke(request) => {
            Response::LeaseRevoke(lease.lease_revoke(request).await?.into_inner())
        }
        Request::LeaseTimeToLive(request) => {
            Response::LeaseTimeToLive(lease.lease_time_to_live(request).await?.into_inner())
        }
        Request::LeaseKeepAlive(request) => keep_alive(client, request).await?,
    })
}

/// One keepalive on a stream of its own.
async fn keep_alive(client: &Client, request: LeaseKeepAliveRequest) -> Result<Response, Status> {
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    let _ = sender.send(request);
    let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(requests);
    let asking = async {
        let mut replies = client.lease.clone().lease_keep_alive(requests).await?.into_inner();
        replies.message().await
    };
    // The client's patience ends with the head of a stream.
    let reply = tokio::time::timeout(PATIENCE, asking).await;
    let reply = reply.map_err(|_| Status::cancelled("Timeout expired"))??;
    let reply = reply.ok_or_else(|| Status::unavailable("the stream has ended"))?;
    Ok(Response::LeaseKeepAlive(reply))
}
