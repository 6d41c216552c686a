//! The KV service.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_member::apply::command::Kind;
use revd_member::apply::gates;
use revd_member::auth::{Caller, Wants};
use revd_member::budget::{Patience, Share};
use revd_member::error::Error;
use revd_member::read::one;
use revd_member::read::range::{self, RangePosition, RangeRun};
use revd_member::wire::put_varint;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::{CompactionRequest, PutRequest, RangeRequest};
use revd_proto::tags::range_stream_response;

use crate::api::auth::identity::Need;
use crate::api::call::{Credentials, Message, decoded, decoded_in_stream};
use crate::api::context::ServiceContext;
use crate::api::replies::Replies;
use crate::api::validate;
use crate::limits;
use crate::observe::bounds::Bound;
use crate::queues::turn::give_way;

/// Edge view. Transactions and deletions are in `txn.rs`.
#[derive(Debug, Clone)]
pub struct Kv {
    pub(super) context: Rc<ServiceContext>,
}

impl Kv {
    pub(super) fn new(context: &Rc<ServiceContext>) -> Self {
        Self { context: Rc::clone(context) }
    }

    pub(super) async fn range(
        &self,
        credentials: &Credentials,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        let request = decoded(RangeRequest::decode(message))?;
        validate::range(&request)?;
        let waits = !request.serializable && !self.context.reads_alone();
        self.context.wait_to_read(request.serializable).await?;
        // A get that waits for nothing was tried before, if no user has a limit: see
        // `Api::answer_at_once`.
        if (waits || !self.context.auth.limits.is_empty())
            && one::is_plain(&request)
            && let Some(reply) =
                self.context.get(|| Some(self.context.caller_after_wait(credentials)), &request, replies)
        {
            return Ok(reply);
        }
        // Each attempt has a View of its own, so that none is held while it waits for room, and its
        // caller is looked up for that: its token may have ended meanwhile.
        let answer = async || {
            let view = self.context.views.load();
            let now = self.context.caller_after_wait(credentials);
            self.context.check_read(&now, &reading(&request), &view)?;
            drop(now);
            // A get is one turn. The turns of other ranges have memory of their own, so that calls
            // take little.
            let body = match request.range_end.is_empty() {
                true => range::answer(&request, view.reader(), replies)?,
                false => Box::pin(answer_in_turns(&request, &view, replies)).await?,
            };
            Ok((view.revision(), body))
        };
        // The message of a get counts until it is answered, and may keep
        // its connection from being read.
        let patience = if request.range_end.is_empty() { Patience::Holding } else { Patience::Long };
        let (revision, body) = self.context.with_room(replies, patience, answer).await?;
        Ok(self.context.reply(revision, body))
    }

    pub(super) async fn put(
        &self,
        caller: &Caller,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        let request = decoded(PutRequest::decode(message.clone()))?;
        self.context.check_quota(gates::put_cost(&request)).await?;
        validate::put(&request)?;
        self.context.check_size(caller, &message)?;
        self.context.check_now(caller, &Wants::Put(&request)).await?;
        self.context.propose_growth(caller, Kind::Put, message, replies).await
    }

    pub(super) async fn compact(&self, caller: &Caller, message: Bytes) -> Result<Message, Error> {
        // A physical compaction is answered when the space is free.
        let patient = decoded(CompactionRequest::decode(message.clone()))?.physical;
        self.context.submit(caller, Kind::Compact, message, patient).await
    }

    /// Compacts on this member's own account.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn compact_at(&self, revision: i64) -> Result<(), Error> {
        let request = CompactionRequest { revision, physical: false };
        self.context.propose(Kind::Compact, request.encode_to_vec().into()).await.map(drop)
    }

    /// Streams a range in chunks, all of them at one revision. No state is held while a
    /// chunk waits for the client: a slow one keeps nothing alive, and is told when a
    /// compaction has taken the rest.
    pub(super) async fn range_stream(
        &self,
        credentials: &Credentials,
        message: Bytes,
        replies: &Replies,
    ) -> Result<(), Error> {
        let caller = self.context.caller(Need::Judged, false, credentials).await?;
        self.context.auth.limits.take(&caller, message.len())?;
        let mut request = decoded_in_stream(RangeRequest::decode(message))?;
        validate::range(&request)?;
        check_streamable(&request)?;
        let view = self.context.view_for_reading(request.serializable).await?;
        let caller = self.context.caller_after_wait(credentials);
        self.context.check_read(&caller, &reading(&request), &view)?;
        if request.sort_target != SortTarget::Key as i32 {
            return self.sorted_stream(&caller, &request, &view, replies).await;
        }
        let revision = view.revision();
        if request.revision <= 0 {
            // A chunk may wait for room while rights and keys change: all are of the state in which
            // the caller was judged, and which the header names.
            request.revision = revision;
        }
        let mut view = Some(view);
        let mut place = None;
        let (mut keys_max, mut wanted) = (limits::STREAM_KEYS_FIRST, 0);
        let share = replies.share();
        while self.room_for_chunk(wanted, replies, &mut view).await {
            let now = view.take().unwrap_or_else(|| self.context.views.load());
            let (is_finished, next, body) = match chunk(&request, &now, share, place.as_ref(), keys_max).await
            {
                Err(Error::NoReplyRoom { bytes }) => {
                    (keys_max, wanted) = ((keys_max / 2).max(1), 2 * bytes);
                    continue;
                }
                result => result.map_err(|error| self.context.counted(error))?,
            };
            drop(now);
            place = next.or(place);
            let chunk_bytes: usize = body.iter().map(Bytes::len).sum();
            self.context.auth.limits.replied(&caller, || chunk_bytes);
            let body = if is_finished { self.context.reply(revision, body) } else { body.into() };
            // Where there are only dead keys, there may be nothing to send yet.
            if is_finished || chunk_bytes > 0 {
                replies.put(stream_response(body));
            }
            if is_finished {
                return Ok(());
            }
            wanted = chunk_bytes;
            keys_max = next_chunk_keys(keys_max, chunk_bytes, self.context.limits.request_bytes_max);
            give_way().await;
        }
        Ok(())
    }

    /// Streams a range whose order is known only when all its keys have been seen.
    async fn sorted_stream(
        &self,
        caller: &Caller,
        request: &RangeRequest,
        view: &View,
        replies: &Replies,
    ) -> Result<(), Error> {
        let share = replies.share();
        let mut run = RangeRun::new(request, view.reader(), share)?;
        let (mut keys_max, mut wanted) = (limits::STREAM_KEYS_FIRST, 0);
        loop {
            if run.is_gathering() {
                run.turn(limits::RANGE_KEYS_PER_TURN).map_err(|error| self.context.counted(error))?;
                give_way().await;
                continue;
            }
            // It holds the keys meanwhile: two that never gave up could wait for each other.
            let room = share.room(wanted, Patience::Holding).await;
            room.map_err(|_| self.context.counted(Error::NoReplyRoom { bytes: wanted }))?;
            if !replies.ready().await {
                return Ok(());
            }
            let is_finished = run.turn(keys_max).map_err(|error| self.context.counted(error))?;
            let body = run.take_body().finish();
            wanted = body.iter().map(Bytes::len).sum();
            self.context.auth.limits.replied(caller, || wanted);
            let body = if is_finished { self.context.reply(view.revision(), body) } else { body.into() };
            if is_finished || wanted > 0 {
                replies.put(stream_response(body));
            }
            if is_finished {
                return Ok(());
            }
            keys_max = next_chunk_keys(keys_max, wanted, self.context.limits.request_bytes_max);
            give_way().await;
        }
    }

    /// Waits until the client has taken others and there is room for such a chunk: one that is not
    /// made yet takes no memory, and keeps no View. False when the client is gone.
    async fn room_for_chunk(&self, bytes: usize, replies: &Replies, view: &mut Option<View>) -> bool {
        let share = replies.share();
        if !share.fits(bytes) {
            *view = None;
            self.context.reached(Bound::ReplyBytes);
            // It never gives up: the client decides how long.
            let _ = share.room(bytes.min(share.bytes_max()), Patience::Endless).await;
        }
        replies.ready().await
    }
}

fn reading(request: &RangeRequest) -> Wants<'_> {
    Wants::Read { key: &request.key, range_end: &request.range_end }
}

/// A part of a streamed range: whether it is the last, where the next begins, and the part.
async fn chunk(
    request: &RangeRequest,
    view: &View,
    share: &Share,
    place: Option<&RangePosition>,
    keys_max: usize,
) -> Result<(bool, Option<RangePosition>, Vec<Bytes>), Error> {
    let mut run = match place {
        None => RangeRun::new(request, view.reader(), share)?,
        Some(place) => RangeRun::resume(request, view.reader(), share, place)?,
    };
    let mut is_finished = run.turn(keys_max)?;
    while !is_finished && run.is_counting() {
        // Begun again, counting would start over.
        give_way().await;
        is_finished = run.turn(keys_max)?;
    }
    Ok((is_finished, run.place(), run.take_body().finish()))
}

/// Answers a range in turns, letting others of this core go on in between.
async fn answer_in_turns(request: &RangeRequest, view: &View, replies: &Share) -> Result<Vec<Bytes>, Error> {
    let mut run = RangeRun::new(request, view.reader(), replies)?;
    while !run.turn(limits::RANGE_KEYS_PER_TURN)? {
        give_way().await;
    }
    Ok(run.take_body().finish())
}

/// A stream's chunks are cut while keys are walked, so nothing can be sorted or filtered.
fn check_streamable(request: &RangeRequest) -> Result<(), Error> {
    let by_key = request.sort_target == SortTarget::Key as i32;
    let plain = request.sort_order == SortOrder::None as i32
        || (by_key && request.sort_order == SortOrder::Ascend as i32);
    if !plain {
        return Err(Error::StreamSorted);
    }
    let filters = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    if filters != [0; 4] {
        return Err(Error::StreamFiltered);
    }
    Ok(())
}

/// Keys of the next chunk: towards chunks of about `--max-request-bytes`, as etcd sizes them.
fn next_chunk_keys(keys: usize, bytes: usize, bytes_aim: usize) -> usize {
    if bytes < bytes_aim / 2 {
        (keys * 2).min(limits::STREAM_KEYS_MAX)
    } else if bytes > bytes_aim * 2 {
        (keys / 2).max(1)
    } else {
        keys
    }
}

/// `RangeStreamResponse`, whose only field is the chunk.
fn stream_response(chunk: Message) -> Message {
    let mut prefix = vec![range_stream_response::RANGE_RESPONSE];
    put_varint(&mut prefix, chunk.iter().map(|part| part.len() as u64).sum());
    let mut message = Message::new();
    message.push(prefix.into());
    message.extend(chunk);
    message
}
