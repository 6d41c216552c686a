//! The KV service.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::View;
use revd_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use revd_proto::etcdserverpb::{CompactionRequest, PutRequest, RangeRequest};

use crate::api::call::{Message, Replies};
use crate::api::{Api, decoded, validate};
use crate::apply::command::Kind;
use crate::apply::gates;
use crate::error::Error;
use crate::limits;
use crate::observe::bounds::Bound;
use crate::read::range::RangeRun;
use crate::wire::put_varint;

impl Api {
    pub(super) async fn range(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(RangeRequest::decode(message))?;
        validate::range(&request)?;
        let view = self.view_for_reading(request.serializable)?;
        let body = self.answer_range(&request, &view).await?;
        Ok(self.reply(view.revision(), body))
    }

    pub(super) async fn put(&self, message: Bytes) -> Result<Message, Error> {
        let request = decoded(PutRequest::decode(message.clone()))?;
        self.check_quota(gates::put_cost(&request)).await?;
        validate::put(&request)?;
        self.propose_growth(Kind::Put, message).await
    }

    pub(super) async fn compact(&self, message: Bytes) -> Result<Message, Error> {
        // Who asked for the space to be free waits as long as that takes.
        let patient = decoded(CompactionRequest::decode(message.clone()))?.physical;
        self.submit(Kind::Compact, message, patient).await
    }

    /// Compacts on this member's own account.
    ///
    /// # Errors
    /// As the call of a client.
    pub async fn compact_at(&self, revision: i64) -> Result<(), Error> {
        let request = CompactionRequest { revision, physical: false };
        self.propose(Kind::Compact, request.encode_to_vec().into()).await.map(drop)
    }

    /// Proposes what may make the store larger. If it went beyond the quota, the cluster has to know.
    pub(super) async fn propose_growth(&self, kind: Kind, message: Bytes) -> Result<Message, Error> {
        let result = self.propose(kind, message).await;
        if result == Err(Error::NoSpace) {
            self.raise_no_space().await;
        }
        result
    }

    /// Answers a range in turns, letting others of this core go on in between.
    async fn answer_range(&self, request: &RangeRequest, view: &View) -> Result<Vec<Bytes>, Error> {
        let mut run = RangeRun::new(request, view.reader(), &self.reply_budget)?;
        loop {
            match run.turn(limits::RANGE_KEYS_PER_TURN) {
                Ok(true) => return Ok(run.take_body().finish()),
                Ok(false) => futures_lite::future::yield_now().await,
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    /// Counts an error that is a bound.
    fn refused(&self, error: Error) -> Error {
        if matches!(error, Error::SortTooLarge { .. }) {
            self.counters.bounds.reached(Bound::SortBytes);
        }
        error
    }

    /// Streams a range in chunks, all of them at one revision. No state is held while a chunk waits for the client: a slow
    /// one keeps nothing alive, and is told when a compaction has taken the rest.
    pub(super) async fn range_stream(self: Rc<Self>, message: Bytes, replies: &Replies) -> Result<(), Error> {
        let request = decoded(RangeRequest::decode(message))?;
        validate::range(&request)?;
        check_streamable(&request)?;
        let mut view = self.view_for_reading(request.serializable)?;
        if request.sort_target != SortTarget::Key as i32 {
            return self.sorted_stream(&request, &view, replies).await;
        }
        let revision = view.revision();
        let mut place = None;
        let mut keys_max = limits::STREAM_KEYS_FIRST;
        loop {
            let (finished, body) = {
                let mut run = match &place {
                    None => RangeRun::new(&request, view.reader(), &self.reply_budget)?,
                    Some(place) => RangeRun::resume(&request, view.reader(), &self.reply_budget, place)?,
                };
                let mut finished = run.turn(keys_max)?;
                while !finished && run.is_counting() {
                    futures_lite::future::yield_now().await;
                    finished = run.turn(keys_max)?;
                }
                let next = run.place();
                let body = run.take_body().finish();
                drop(run);
                place = next.or(place);
                (finished, body)
            };
            drop(view);
            let chunk_bytes: usize = body.iter().map(Bytes::len).sum();
            let chunk = if finished { self.reply(revision, body) } else { body.into() };
            // Where there are only dead keys, there may be nothing to send yet.
            let has_some = finished || chunk_bytes > 0;
            if (has_some && !replies.send(stream_response(chunk)).await) || finished {
                return Ok(());
            }
            keys_max = next_chunk_keys(keys_max, chunk_bytes, self.limits.request_bytes_max);
            futures_lite::future::yield_now().await;
            view = self.views.load();
        }
    }

    /// Streams a range whose order is known only when all its keys have been seen.
    async fn sorted_stream(
        &self,
        request: &RangeRequest,
        view: &View,
        replies: &Replies,
    ) -> Result<(), Error> {
        let mut run = RangeRun::new(request, view.reader(), &self.reply_budget)?;
        loop {
            let finished = run.turn(limits::RANGE_KEYS_PER_TURN).map_err(|error| self.refused(error))?;
            let body = run.take_body().finish();
            if finished {
                replies.send(stream_response(self.reply(view.revision(), body))).await;
                return Ok(());
            }
            if !body.is_empty() && !replies.send(stream_response(body.into())).await {
                return Ok(());
            }
            futures_lite::future::yield_now().await;
        }
    }
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
    const TAG_RANGE_RESPONSE: u8 = 0x0a;
    let mut prefix = vec![TAG_RANGE_RESPONSE];
    put_varint(&mut prefix, chunk.iter().map(|part| part.len() as u64).sum());
    let mut message = Message::new();
    message.push(prefix.into());
    message.extend(chunk);
    message
}
