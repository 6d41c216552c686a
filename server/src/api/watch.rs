//! The Watch service: one call carries the requests and replies of many watchers.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use prost::Message as _;
use revd_member::error::Status;
use revd_member::watch::{Content, Reply};
use revd_member::wire::{put_field, put_number};
use revd_proto::etcdserverpb::WatchRequest;
use revd_proto::tags::watch_response;

use crate::api::call::{Message, Replies, Requests, decoded};
use crate::api::context::ServiceContext;
use crate::api::header::put_header;
use crate::edge::watchers::{WatchStream, Watchers};
use crate::limits;
use crate::queues::turn::give_way;

/// What a stream can do next.
enum NextStep {
    Reply,
    Request(Option<Result<Bytes, Status>>),
    /// The client is gone.
    Gone,
}

/// Edge view.
#[derive(Debug)]
pub(super) struct Watch {
    context: Rc<ServiceContext>,
    watchers: Rc<Watchers>,
}

impl Watch {
    pub(super) fn new(context: &Rc<ServiceContext>, watchers: &Rc<Watchers>) -> Self {
        Self { context: Rc::clone(context), watchers: Rc::clone(watchers) }
    }

    /// Serves one watch stream until the client ends it. Requests and replies take turns: neither waits for the other.
    pub(super) async fn serve(
        &self,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let stream = self.watchers.open(replies.share());
        let mut scratch = Vec::new();
        let mut more_requests = true;
        let mut done = 0;
        loop {
            let next = std::future::poll_fn(|context| {
                let takes = more_requests && stream.takes_requests();
                for is_request in [done % 2 == 0, done % 2 != 0] {
                    if !is_request {
                        if let Some(next) = poll_reply(&stream, replies, context) {
                            return Poll::Ready(next);
                        }
                    } else if takes && let Poll::Ready(request) = requests.poll_next(context) {
                        return Poll::Ready(NextStep::Request(request));
                    }
                }
                Poll::Pending
            });
            match next.await {
                NextStep::Request(Some(message)) => {
                    let request = decoded(WatchRequest::decode(message?))?;
                    if let Some(request) = request.request_union {
                        stream.request(request);
                    }
                }
                // The client has nothing more to ask, but still listens.
                NextStep::Request(None) => more_requests = false,
                NextStep::Reply => {
                    if let Some(reply) = stream.take() {
                        replies.put(self.encoded(reply, &mut scratch));
                    }
                }
                NextStep::Gone => return Ok(()),
            }
            done += 1;
            if done % limits::WATCH_TURNS == 0 {
                give_way().await;
            }
        }
    }

    fn encoded(&self, reply: Reply, scratch: &mut Vec<u8>) -> Message {
        scratch.clear();
        put_header(scratch, self.context.identity, reply.revision, self.context.status.term.load());
        put_number(scratch, watch_response::WATCH_ID, reply.watch_id);
        let mut message = Message::new();
        match reply.content {
            Content::Created => put_number(scratch, watch_response::CREATED, 1),
            Content::Refused(reason) => {
                put_number(scratch, watch_response::CREATED, 1);
                put_number(scratch, watch_response::CANCELED, 1);
                put_field(scratch, watch_response::CANCEL_REASON, reason.as_bytes());
            }
            Content::Canceled => put_number(scratch, watch_response::CANCELED, 1),
            Content::Compacted(revision) => {
                put_number(scratch, watch_response::CANCELED, 1);
                put_number(scratch, watch_response::COMPACT_REVISION, revision);
            }
            Content::Progress => {}
            Content::Events { events, fragment } => {
                put_number(scratch, watch_response::FRAGMENT, i64::from(fragment));
                message.push(Bytes::copy_from_slice(scratch));
                message.push(events);
                return message;
            }
        }
        message.push(Bytes::copy_from_slice(scratch));
        message
    }
}

/// A reply to send, or word that there is nobody to send it to.
fn poll_reply(stream: &WatchStream, replies: &Replies, context: &mut Context<'_>) -> Option<NextStep> {
    match replies.poll_ready(context) {
        Poll::Ready(false) => Some(NextStep::Gone),
        Poll::Ready(true) => stream.poll_replies(context).is_ready().then_some(NextStep::Reply),
        Poll::Pending => None,
    }
}
