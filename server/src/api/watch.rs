//! The Watch service: one call carries the requests and replies of many watchers.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use prost::Message as _;
use revd_member::auth::{Caller, Wants};
use revd_member::error::{AuthError, Error, Status};
use revd_member::watch::{Content, Reply};
use revd_member::wire::{put_field, put_number};
use revd_proto::etcdserverpb::WatchRequest;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::tags::watch_response;

use crate::api::auth::identity::Need;
use crate::api::call::{Credentials, Requests, Source, decoded_in_stream};
use crate::api::context::ServiceContext;
use crate::api::header::put_header;
use crate::api::replies::Replies;
use crate::edge::watchers::{Asked, EdgeWatchStream, WatchJudge, Watchers};
use crate::limits;
use crate::queues::turn::give_way;

/// The text of [`Error::TooManyRequests`], as the reason why a watcher is not made.
const TOO_MANY_REQUESTS: &str = "etcdserver: too many requests";

/// The next step of a stream.
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

    /// Serves one watch stream until the client ends it. Requests and replies take
    /// turns: neither waits for the other.
    pub(super) async fn serve(
        &self,
        credentials: &Credentials,
        source: Source,
        mut requests: Box<dyn Requests>,
        replies: &Replies,
    ) -> Result<(), Status> {
        let stream = self.watchers.open(replies.share());
        stream.judge_by(self.judge(credentials, source));
        let mut scratch = Vec::new();
        let mut more_requests = true;
        let (mut done, mut request_first) = (0, true);
        loop {
            let next = std::future::poll_fn(|context| {
                let takes = more_requests && stream.takes_requests();
                for is_request in [request_first, !request_first] {
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
            let next = next.await;
            request_first = !request_first;
            match next {
                NextStep::Request(Some(message)) => {
                    let message = message?;
                    let bytes = message.len();
                    // A token may be new to this member, which may have to wait to know it.
                    let caller = self.context.caller(Need::Judged, false, credentials).await?;
                    let request = decoded_in_stream(WatchRequest::decode(message))?.request_union;
                    match (self.context.auth.limits.take(&caller, bytes), request) {
                        (_, None) => {} // it asks for nothing, and counts
                        // The other watchers of the stream go on.
                        (Err(_), Some(RequestUnion::CreateRequest(_))) => stream.refuse(TOO_MANY_REQUESTS),
                        // Progress is owed to no client.
                        (Err(_), Some(RequestUnion::ProgressRequest(_))) => {}
                        (_, Some(request)) => stream.request(request),
                    }
                    if credentials.is_some() {
                        done += limits::WATCH_TURNS_OF_TOKEN; // looked up, perhaps verified
                    }
                }
                // The client has nothing more to ask, but still listens.
                NextStep::Request(None) => more_requests = false,
                NextStep::Reply => {
                    for _ in 0..limits::WATCH_REPLIES_AT_A_TIME {
                        let Some(reply) = stream.take() else { break };
                        self.tell(reply, replies, &mut scratch);
                        done += 1;
                        if !replies.has_room() {
                            break;
                        }
                    }
                }
                NextStep::Gone => return Ok(()),
            }
            done += 1;
            if done >= limits::WATCH_TURNS {
                done = 0;
                give_way().await;
            }
        }
    }

    /// Says what this client may watch. Its token says who it is, for each watcher that is made;
    /// one that goes on is its user's, also when the token counts no more. As with etcd, only a
    /// lack of rights ends it.
    fn judge(&self, credentials: &Credentials, source: Source) -> WatchJudge {
        let (context, credentials) = (Rc::clone(&self.context), credentials.clone());
        let (known, costs) = (RefCell::new(None), self.watchers.costs());
        Box::new(move |view, key, range_end, asked| {
            let before = context.permissions_read();
            let known = &mut *known.borrow_mut();
            let caller = match (asked, &*known) {
                (Asked::First, _) => context.identify_now(&credentials).unwrap_or(Caller::BadToken),
                (Asked::Again, Some(caller)) => Caller::clone(caller),
                (Asked::Again, None) => context.identify_again(&credentials),
            };
            let checked = context.check(&caller, &Wants::Read { key, range_end }, view);
            costs.set(costs.get() + context.permissions_read() - before);
            if let Err(error) = checked {
                context.tell_refused_watcher(source, &caller, &error);
                return Err(why(&error));
            }
            if known.is_none() {
                *known = caller.in_name_only();
            }
            Ok(())
        })
    }

    fn tell(&self, reply: Reply, replies: &Replies, scratch: &mut Vec<u8>) {
        scratch.clear();
        put_header(scratch, self.context.identity, reply.revision, self.context.status.term.load());
        put_number(scratch, watch_response::WATCH_ID, reply.watch_id);
        match reply.content {
            Content::Created => put_number(scratch, watch_response::CREATED, 1),
            Content::Refused(reason) => {
                put_number(scratch, watch_response::CREATED, 1);
                put_number(scratch, watch_response::CANCELED, 1);
                put_field(scratch, watch_response::CANCEL_REASON, reason.as_bytes());
            }
            Content::Revoked(reason) => {
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
                return replies.put_with_head(scratch, &[events]);
            }
        }
        replies.put_with_head(scratch, &[]);
    }
}

/// The reason of a cancellation, as Go words an error with a code.
fn why(error: &Error) -> &'static str {
    match error {
        Error::Auth(AuthError::EmptyUser) => {
            "rpc error: code = InvalidArgument desc = etcdserver: user name is empty"
        }
        Error::Auth(AuthError::InvalidAuthToken) => {
            "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
        }
        Error::Auth(AuthError::OldAuthRevision) => {
            "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old"
        }
        _ => "rpc error: code = PermissionDenied desc = etcdserver: permission denied",
    }
}

/// A reply to send, or word that there is nobody to send it to.
fn poll_reply(stream: &EdgeWatchStream, replies: &Replies, context: &mut Context<'_>) -> Option<NextStep> {
    match replies.poll_ready(context) {
        Poll::Ready(false) => Some(NextStep::Gone),
        Poll::Ready(true) => stream.poll_replies(context).is_ready().then_some(NextStep::Reply),
        Poll::Pending => None,
    }
}
