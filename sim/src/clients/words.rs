//! Requests and replies in the words of an edge, and in those of the history.

use bytes::Bytes;
use prost::Message;
use revd_checker::{Outcome, Request, Response};
use revd_member::apply::command::Kind;
use revd_member::apply::local::{DeadlineRequest, LeaseRequest};
use revd_member::budget::Share;
use revd_member::error::Error;
use revd_member::read::parts::{ReplyAssembly, ReplyPart};
use revd_member::watch::{Content, Reply as WatchReply};
use revd_proto::etcdserverpb::{LeaseKeepAliveResponse, ResponseHeader, WatchResponse};

use crate::calls::{self, Reply};

/// A request as an edge takes it.
///
/// # Panics
/// If clients of a simulation do not ask for it.
pub(crate) fn request(request: &Request) -> calls::Request {
    let command = |kind: Kind, message: Vec<u8>| calls::Request::Command { kind, payload: message.into() };
    match request {
        Request::Range(request) => calls::Request::Range(request.clone()),
        Request::Put(request) => command(Kind::Put, request.encode_to_vec()),
        Request::DeleteRange(request) => command(Kind::DeleteRange, request.encode_to_vec()),
        Request::Txn(request) => command(Kind::Txn, request.encode_to_vec()),
        Request::Compact(request) => command(Kind::Compact, request.encode_to_vec()),
        Request::LeaseGrant(request) => command(Kind::LeaseGrant, request.encode_to_vec()),
        Request::LeaseRevoke(request) => command(Kind::LeaseRevoke, request.encode_to_vec()),
        Request::LeaseKeepAlive(request) => {
            calls::Request::Lease(LeaseRequest::Deadline(DeadlineRequest::KeepAlive { lease: request.id }))
        }
        Request::LeaseTimeToLive(request) => {
            calls::Request::Lease(LeaseRequest::TimeToLive { lease: request.id, keys: false })
        }
        Request::HashKv(_) => unreachable!("no client asks for hashes"),
    }
}

/// The end of a call.
pub(crate) fn outcome(request: &Request, reply: Reply) -> Outcome {
    match reply {
        Reply::Range(response) => Outcome::Answered(Response::Range(*response)),
        Reply::Outcome(outcome) => match outcome.result {
            Ok(bytes) => answered(request, outcome.revision, bytes, outcome.rest.parts()),
            Err(error) => failed(&error),
        },
        Reply::Failed(error) => failed(&error),
        Reply::Broken => Outcome::Unknown("the connection broke".to_owned()),
    }
}

/// The whole reply to a command, put together as an edge does it.
fn answered(request: &Request, revision: i64, bytes: Bytes, parts: &[ReplyPart]) -> Outcome {
    match request {
        // Leases are answered in their own words, without the revision of this member.
        Request::LeaseKeepAlive(request) => {
            let seconds: Result<[u8; 8], _> = bytes[..].try_into();
            return seconds.map_or_else(
                |_| Outcome::Unknown("a checkpoint comes first".to_owned()),
                |seconds| {
                    let (id, ttl) = (request.id, i64::from_le_bytes(seconds));
                    Outcome::Answered(Response::LeaseKeepAlive(LeaseKeepAliveResponse {
                        header: None,
                        id,
                        ttl,
                    }))
                },
            );
        }
        Request::LeaseTimeToLive(_) => return Outcome::Answered(response(request, &bytes)),
        _ => {}
    }
    let mut whole = bytes.to_vec();
    let share = Share::new(usize::MAX);
    let mut assembly = ReplyAssembly::new(parts, &share);
    loop {
        match assembly.turn() {
            Ok(Some(body)) => {
                whole.extend(body.concat());
                break;
            }
            Ok(None) => {}
            Err(error) => return failed(&Error::Unanswered(Box::new(error))),
        }
    }
    let mut response = response(request, &whole);
    *response.header() = header(revision);
    Outcome::Answered(response)
}

fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

fn failed(error: &Error) -> Outcome {
    let may_be_done = matches!(error, Error::Unanswered(_) | Error::Stopped | Error::CorruptMember);
    if may_be_done || error.leaves_write_open() {
        Outcome::Unknown(error.to_string())
    } else {
        Outcome::Refused(error.to_string())
    }
}

fn response(request: &Request, bytes: &[u8]) -> Response {
    fn of<M: Message + Default>(bytes: &[u8]) -> M {
        M::decode(bytes).expect("a member encodes what it means")
    }
    match request {
        Request::Range(_) => Response::Range(of(bytes)),
        Request::Put(_) => Response::Put(of(bytes)),
        Request::DeleteRange(_) => Response::DeleteRange(of(bytes)),
        Request::Txn(_) => Response::Txn(of(bytes)),
        Request::Compact(_) => Response::Compact(of(bytes)),
        Request::HashKv(_) => Response::HashKv(of(bytes)),
        Request::LeaseGrant(_) => Response::LeaseGrant(of(bytes)),
        Request::LeaseRevoke(_) => Response::LeaseRevoke(of(bytes)),
        Request::LeaseKeepAlive(_) => Response::LeaseKeepAlive(of(bytes)),
        Request::LeaseTimeToLive(_) => Response::LeaseTimeToLive(of(bytes)),
    }
}

/// A message of a watch stream.
pub(super) fn watch_response(reply: &WatchReply) -> WatchResponse {
    let base = WatchResponse {
        header: header(reply.revision),
        watch_id: reply.watch_id,
        ..WatchResponse::default()
    };
    match &reply.content {
        Content::Created => WatchResponse { created: true, ..base },
        Content::Refused(reason) => {
            WatchResponse { created: true, canceled: true, cancel_reason: (*reason).to_owned(), ..base }
        }
        Content::Canceled => WatchResponse { canceled: true, ..base },
        Content::Revoked(reason) => {
            WatchResponse { canceled: true, cancel_reason: (*reason).to_owned(), ..base }
        }
        Content::Compacted(revision) => WatchResponse { canceled: true, compact_revision: *revision, ..base },
        Content::Progress => base,
        Content::Events { events, fragment } => {
            let events =
                WatchResponse::decode(events.clone()).expect("a member encodes what it means").events;
            WatchResponse { events, fragment: *fragment, ..base }
        }
    }
}
