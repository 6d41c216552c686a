//! Transactions, and what writes have to read: all of it is read here, in turns, so that neither
//! others of this core nor whatever waits to be applied stand still meanwhile.
//!
//! A write that reads much is looked at before it is proposed: one that would read too much is
//! refused, and nothing is changed. Its reply is then read from Views of the moments at which it
//! was applied; see [`revd_member::read::parts`]. The store may have grown in between: a reply for
//! which there is no room then is an error that says that the write was carried out.

use std::cell::{Cell, OnceCell};

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{KeyRange, View};
use revd_member::apply::command::Kind;
use revd_member::apply::compare::{Comparing, Path};
use revd_member::apply::{gates, kv, txn, txn_message};
use revd_member::auth::{Caller, Wants};
use revd_member::budget::{Hold, Patience, Share};
use revd_member::error::Error;
use revd_member::read::parts::{DeferredRead, ReadRequest, ReplyAssembly, ReplyPart, RunningRead, beside};
use revd_member::read::range::count;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{DeleteRangeRequest, RequestOp, TxnRequest};

use crate::api::call::{Credentials, Message, decoded};
use crate::api::kv::Kv;
use crate::api::validate;
use crate::limits;
use crate::queues::turn::give_way;

impl Kv {
    pub(super) async fn delete_range(
        &self,
        caller: &Caller,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        let request = decoded(DeleteRangeRequest::decode(message.clone()))?;
        validate::delete_range(&request)?;
        self.context.check_size(caller, &message)?;
        self.context.check_now(caller, &Wants::Delete(&request)).await?;
        if let Some(what) = kv::delete_read(&request).filter(|_| !request.range_end.is_empty()) {
            Box::pin(self.check_delete_read(&[what], replies)).await?;
        }
        self.context.propose_and_read(caller, Kind::DeleteRange, message, replies).await
    }

    /// `credentials` of a client; none where a service puts a transaction together that writes.
    pub(super) async fn txn(
        &self,
        caller: &Caller,
        credentials: Option<&Credentials>,
        message: Bytes,
        replies: &Share,
    ) -> Result<Message, Error> {
        if txn_message::has_more_parts(&message, self.context.limits.txn_parts_max()) {
            return Err(Error::TooManyOperations);
        }
        let mut request = txn_message::decode(&message)?;
        if !self.context.has_quota(gates::txn_cost(&request)) {
            drop(request); // it may be many times its message, and the alarm may have to wait
            return Err(self.context.no_space().await);
        }
        validate::txn(&request, self.context.limits)?;
        if txn::is_read_only(&request) {
            return Box::pin(self.read_only_txn((caller, credentials), message, request, replies)).await;
        }
        self.context.check_size(caller, &message)?;
        if !self.context.check_known(caller, &Wants::Txn(&request))? {
            drop(std::mem::take(&mut request)); // a second variable would make each call larger
            request = Box::pin(self.judged_later(caller, &message)).await?;
        }
        if txn::may_read_much(&request) {
            Box::pin(self.check_txn_reads(&message, request, replies)).await?;
        } else {
            drop(request); // as above: of what waits for the log, messages are counted
        }
        self.context.propose_growth(caller, Kind::Txn, message, replies).await
    }

    /// The transaction, which the caller may carry out by a newer View. While that is waited for,
    /// only its message is kept.
    async fn judged_later(&self, caller: &Caller, message: &Bytes) -> Result<TxnRequest, Error> {
        let view = self.context.view_for_reading(false).await?;
        let request = txn_message::decode(message)?;
        self.context.check(caller, &Wants::Txn(&request), &view)?;
        Ok(request)
    }

    async fn read_only_txn(
        &self,
        (caller, credentials): (&Caller, Option<&Credentials>),
        message: Bytes,
        request: TxnRequest,
        replies: &Share,
    ) -> Result<Message, Error> {
        let serializable = txn::is_serializable(&request);
        // A decoded one may be many times its message, which is decoded again behind each wait.
        let request = Cell::new(self.context.reads_at_once(serializable).then_some(request));
        let again = || request.take().map_or_else(|| txn_message::decode(&message), Ok);
        let view = self.context.view_for_reading(serializable).await?;
        let now = credentials.map(|credentials| self.context.caller_after_wait(credentials));
        let judged = again()?;
        self.context.check_read(now.as_ref().unwrap_or(caller), &Wants::Txn(&judged), &view)?;
        request.set(Some(judged));
        let path = OnceCell::new();
        let read = async || {
            let request = again()?;
            let held = held_decoded(&request, replies)?;
            let path = compared_once(&path, &view, &request).await?;
            let parts = txn::read_only_parts(&view, &request, path)?;
            assemble(&parts, replies).await.map_err(|error| beside(error, held.bytes()))
        };
        let body = self.context.with_room(replies, Patience::Holding, read).await?;
        Ok(self.context.reply(view.revision(), body))
    }

    /// Refuses a deletion that would have to read too much.
    async fn check_delete_read(&self, reads: &[ReadRequest], replies: &Share) -> Result<(), Error> {
        let view = self.context.views.load();
        if reads_few_keys(&view, reads).await? {
            return Ok(());
        }
        let look = async || look_at(&view, reads, replies).await;
        self.context.with_room(replies, Patience::Holding, look).await
    }

    /// Refuses a write that would have to read too much. While the look at it waits for room, only
    /// the message is kept.
    async fn check_txn_reads(
        &self,
        message: &Bytes,
        request: TxnRequest,
        replies: &Share,
    ) -> Result<(), Error> {
        let view = self.context.views.load();
        let (request, path) = (Cell::new(Some(request)), OnceCell::new());
        let look = async || {
            let request = request.take().map_or_else(|| txn_message::decode(message), Ok)?;
            let held = held_decoded(&request, replies)?;
            let reads = txn::reads(&request, compared_once(&path, &view, &request).await?);
            if reads_few_keys(&view, &reads).await? {
                return Ok(());
            }
            look_at(&view, &reads, replies).await.map_err(|error| beside(error, held.bytes()))
        };
        self.context.with_room(replies, Patience::Holding, look).await
    }
}

/// Counts what a transaction takes that is decoded, unless it is little, so that many that are read
/// in turns wait for each other.
fn held_decoded(request: &TxnRequest, replies: &Share) -> Result<Hold, Error> {
    let (mut hold, bytes) = (replies.hold(), decoded_bytes(request));
    if bytes > limits::TXN_BYTES_UNCOUNTED {
        count(&mut hold, bytes.min(replies.bytes_max() / 4), replies)?;
    }
    Ok(hold)
}

/// Bytes that a decoded transaction takes beside its message, with the reads that are made of it.
fn decoded_bytes(request: &TxnRequest) -> usize {
    const OP: usize = size_of::<RequestOp>() + 2 * size_of::<ReplyPart>() + size_of::<DeferredRead>();
    let of_op = |op: &RequestOp| match &op.request {
        Some(Request::RequestTxn(nested)) => OP + decoded_bytes(nested),
        _ => OP,
    };
    let ops = request.success.iter().chain(&request.failure).map(of_op);
    size_of::<TxnRequest>() + size_of_val(&*request.compare) + ops.sum::<usize>()
}

/// A write reads so little that nobody needs to look at it before.
async fn reads_few_keys(view: &View, reads: &[ReadRequest]) -> Result<bool, Error> {
    if reads.len() > limits::TXN_READS_MAX {
        return Err(Error::TxnReads { reads_max: limits::TXN_READS_MAX });
    }
    let mut keys = 0_u64;
    for some in reads.chunks(limits::REPLY_PARTS_PER_TURN) {
        keys = some.iter().map(|what| keys_of(view, what)).fold(keys, u64::saturating_add);
        give_way().await;
    }
    Ok(keys <= limits::WRITE_READS_UNCHECKED as u64)
}

/// Puts a reply together.
pub(super) async fn assemble(parts: &[ReplyPart], replies: &Share) -> Result<Vec<Bytes>, Error> {
    let mut assembly = ReplyAssembly::new(parts, replies);
    loop {
        if let Some(body) = assembly.turn()? {
            return Ok(body);
        }
        give_way().await;
    }
}

/// Reads what a write would read, as far as that may be.
async fn look_at(view: &View, reads: &[ReadRequest], replies: &Share) -> Result<(), Error> {
    let bytes_max = limits::WRITE_REPLY_BYTES_MAX.min(replies.bytes_max());
    let mut bytes = 0;
    for what in reads {
        // A record that cannot be read is an error, or none, when the write is applied.
        let Ok(mut reading) = RunningRead::new(view, what, replies) else { continue };
        loop {
            let is_done = reading.turn(limits::RANGE_KEYS_PER_TURN)?;
            bytes += reading.take().iter().map(Bytes::len).sum::<usize>();
            if bytes > bytes_max {
                return Err(Error::WriteReplyTooLarge { bytes_max });
            }
            give_way().await;
            if is_done {
                break;
            }
        }
    }
    Ok(())
}

/// At most so many keys are read.
fn keys_of(view: &View, what: &ReadRequest) -> u64 {
    let count = |key, range_end| {
        let range = KeyRange::from_wire(key, range_end);
        view.reader().count(range, i64::MAX)
    };
    match what {
        ReadRequest::Range(request) if request.count_only => 0,
        // An older revision may have had more.
        ReadRequest::Range(request) if request.revision > 0 && request.limit <= 0 => u64::MAX,
        ReadRequest::Range(request) => {
            let limit = u64::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(u64::MAX);
            if request.revision > 0 { limit } else { count(&request.key, &request.range_end).min(limit) }
        }
        ReadRequest::Previous { key, range_end, .. } => count(key, range_end),
    }
}

/// Which branches are taken; of one View that is found out once, also where a reply is begun again.
async fn compared_once<'p>(
    path: &'p OnceCell<Path>,
    view: &View,
    request: &TxnRequest,
) -> Result<&'p Path, Error> {
    if let Some(path) = path.get() {
        return Ok(path);
    }
    let mut comparing = Comparing::new(view.reader(), request);
    while !comparing.turn(limits::RANGE_KEYS_PER_TURN)? {
        give_way().await;
    }
    Ok(path.get_or_init(|| comparing.path()))
}
