//! The queue that Lock and Election are made of: callers put a key under a name, `<name>/<lease in
//! hex>`, and wait in the order of the keys' create revisions; the oldest key owns the name. The
//! layout is that of etcd's client recipes, so that both can be used on the same name.

use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::{Created, KeyMeta, KeyRange, View};
use revd_member::apply::command::Kind;
use revd_member::apply::gates;
use revd_member::auth::{Caller, Wants};
use revd_member::budget::Share;
use revd_member::error::Error;
use revd_member::error::Status;
use revd_member::read::range::stored;
use revd_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::watch_create_request::FilterType;
use revd_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse, PutRequest, RangeRequest, RequestOp,
    ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest,
};
use revd_proto::mvccpb::KeyValue;

use crate::api::call::decoded;
use crate::api::context::ServiceContext;
use crate::api::kv::Kv;
use crate::api::lease::Lease;
use crate::api::validate;
use crate::edge::pending::user_shares::UserNumber;
use crate::edge::watchers::{OwnWatcher, WatchJudge, Watchers};
use crate::limits;
use crate::queues::turn::give_way;

/// Seconds of the lease of a caller that names none; the member does not keep it alive.
const SESSION_TTL: i64 = 60;

/// Errors of these two services reach clients without their own code: etcd's
/// come through a client of its own.
pub(super) fn unknown(error: &Error) -> Status {
    Status::unknown(error.to_string())
}

/// A caller's key in the queue of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedKey {
    /// `<name>/`
    pub(super) prefix: Bytes,
    /// `<name>/<lease>`
    pub(super) key: Bytes,
    pub(super) lease: i64,
    /// Its create revision.
    pub(super) revision: i64,
}

/// A key that was put in a queue, or found there: no more than is wanted while its caller waits,
/// for the transaction's reply has the value that was found.
pub(super) struct Joined {
    pub(super) own: QueuedKey,
    /// Of the transaction.
    pub(super) header: Option<ResponseHeader>,
    /// The key was there, with another value.
    pub(super) has_other_value: bool,
    pub(super) guard: KeyGuard,
}

/// Deletes a caller's key when it is dropped, unless the caller has got what it waits for. It is
/// made before the key is put: a caller that goes away while its key is on the way through the log
/// leaves nothing behind either, since the deletion comes later in the log.
pub(super) struct KeyGuard {
    context: Rc<ServiceContext>,
    /// Whose key it is: many callers may go at once, and leave others as much room as they take.
    user: Option<UserNumber>,
    key: Bytes,
    /// True of our key only; empty when there is nothing to delete.
    ours: Vec<Compare>,
}

impl KeyGuard {
    /// Of a key that is put after revision `seen`. A key that another call has
    /// found meanwhile is not deleted.
    fn new(context: &Rc<ServiceContext>, caller: &Caller, key: &Bytes, seen: i64) -> Self {
        let user = UserNumber::of_caller(caller);
        Self { context: Rc::clone(context), user, key: key.clone(), ours: put_since(key, seen) }
    }

    /// The caller is about to wait with this key, which it has put or found: it is given up when
    /// the caller goes away.
    pub(super) fn wait_with(&mut self, own: &QueuedKey) {
        self.ours = vec![created_at(&self.key, own.revision)];
    }

    /// The key is another call's: it is not given up before this caller waits with it.
    fn found(&mut self) {
        self.ours.clear();
    }

    /// The key stays, or there is none.
    pub(super) fn keep(mut self) {
        self.ours.clear();
    }
}

impl Drop for KeyGuard {
    fn drop(&mut self) {
        let ours = std::mem::take(&mut self.ours);
        if ours.is_empty() {
            return;
        }
        let resign = deletion(self.key.clone(), ours).encode_to_vec().into();
        // The member deletes the key, whatever the user's rights are by now. The outcome is not
        // waited for. If the deletion is not accepted, the lease's end removes the key.
        let begun = self.context.begin_in(self.user, &Caller::Member, Kind::Txn, resign, false);
        if let Ok(proposal) = begun {
            proposal.detach();
        }
    }
}

/// The key was put after this revision, and no call has found it.
fn put_since(key: &Bytes, seen: i64) -> Vec<Compare> {
    vec![created(key, CompareResult::Greater, seen), put_once(key)]
}

/// The key exists since this revision; 0: it does not exist.
pub(super) fn created_at(key: &Bytes, revision: i64) -> Compare {
    created(key, CompareResult::Equal, revision)
}

fn created(key: &Bytes, result: CompareResult, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Create as i32,
        result: result as i32,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        range_end: Bytes::new(),
    }
}

/// The key has been put, and not a second time.
fn put_once(key: &Bytes) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Version as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::Version(1)),
        range_end: Bytes::new(),
    }
}

/// Finds a key that is there already. While it was put only once, another call may have put it
/// whose caller has gone, and whose guard would delete it: it is put once more, and by that kept.
/// Revisions cannot tell: a caller may see the other's key before the other hears of it.
fn find(key: &Bytes) -> TxnRequest {
    let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
    let keep =
        PutRequest { key: key.clone(), ignore_value: true, ignore_lease: true, ..PutRequest::default() };
    TxnRequest {
        compare: vec![put_once(key)],
        success: vec![op(Request::RequestRange(get.clone())), op(Request::RequestPut(keep))],
        failure: vec![op(Request::RequestRange(get))],
    }
}

/// The key of a lease in a queue.
fn queue_key(prefix: &Bytes, lease: i64) -> Bytes {
    let sign = if lease < 0 { "-" } else { "" };
    [&prefix[..], format!("{sign}{:x}", lease.unsigned_abs()).as_bytes()].concat().into()
}

/// Puts a key in its queue, or finds the one that is there.
fn queue_txn(key: &Bytes, value: &Bytes, lease: i64) -> TxnRequest {
    let put = PutRequest { key: key.clone(), value: value.clone(), lease, ..PutRequest::default() };
    TxnRequest {
        compare: vec![created_at(key, 0)],
        success: vec![op(Request::RequestPut(put))],
        failure: vec![op(Request::RequestTxn(find(key)))],
    }
}

/// One operation of a transaction.
pub(super) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Deletes a key if it is still the one of this revision.
pub(super) fn resignation(key: Bytes, revision: i64) -> TxnRequest {
    let ours = vec![created_at(&key, revision)];
    deletion(key, ours)
}

fn deletion(key: Bytes, compare: Vec<Compare>) -> TxnRequest {
    let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
    TxnRequest { compare, success: vec![op(Request::RequestDeleteRange(delete))], failure: Vec::new() }
}

/// The prefix under which a name's keys are.
pub(super) fn prefix(name: &Bytes) -> Bytes {
    [name, &b"/"[..]].concat().into()
}

/// Where a prefix ends.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return end;
        }
        end.pop();
    }
    vec![0] // to the end of all keys
}

/// The oldest key of a queue.
pub(super) async fn oldest(view: &View, prefix: &Bytes) -> Option<(Bytes, KeyMeta)> {
    find_created(view, prefix, Created::First).await
}

/// Bytes of a key's value.
pub(super) fn value_bytes(view: &View, meta: KeyMeta) -> Result<usize, Error> {
    Ok(stored(&view.reader(), meta)?.value.len())
}

/// All there is of a key.
pub(super) fn key_value(view: &View, key: Bytes, meta: KeyMeta) -> Result<KeyValue, Error> {
    let reader = view.reader();
    let stored = stored(&reader, meta)?;
    Ok(KeyValue {
        key,
        create_revision: meta.create_revision,
        mod_revision: meta.modified.main,
        version: meta.version,
        value: Bytes::copy_from_slice(stored.value),
        lease: stored.stamp.lease,
    })
}

/// A key of a queue; a search of many keys goes on in turns.
async fn find_created(view: &View, prefix: &Bytes, wanted: Created) -> Option<(Bytes, KeyMeta)> {
    let end = prefix_end(prefix);
    let mut search = view.reader().created(KeyRange::from_wire(prefix, &end), wanted);
    loop {
        let mut steps = limits::STEPS_PER_TURN_MIN;
        if let Some(found) = search.step(&mut steps) {
            return found.map(|(key, meta)| (key.to_vec().into(), meta));
        }
        give_way().await;
    }
}

/// Edge view: what Lock and Election do in the same way.
#[derive(Debug, Clone)]
pub(super) struct KeyQueue {
    pub(super) context: Rc<ServiceContext>,
    pub(super) kv: Kv,
    lease: Lease,
    watchers: Rc<Watchers>,
}

impl KeyQueue {
    pub(super) fn new(context: &Rc<ServiceContext>, kv: &Kv, lease: &Lease, watchers: &Rc<Watchers>) -> Self {
        let (context, watchers) = (Rc::clone(context), Rc::clone(watchers));
        Self { context, kv: kv.clone(), lease: lease.clone(), watchers }
    }

    /// Carries out a transaction of our own.
    pub(super) async fn run_txn(&self, caller: &Caller, txn: &TxnRequest) -> Result<TxnResponse, Error> {
        let replies = self.context.budgets.replies.share();
        let reply = self.kv.txn(caller, None, txn.encode_to_vec().into(), &replies).await?.concat();
        decoded(TxnResponse::decode(&reply[..]))
    }

    /// Puts a key in the queue of a name, or finds the one the lease has.
    pub(super) async fn join(
        &self,
        caller: &Caller,
        name: &Bytes,
        lease: i64,
        value: &Bytes,
    ) -> Result<Joined, Error> {
        let prefix = prefix(name);
        // Whichever lease it is: the transaction is not shorter.
        let least = queue_txn(&queue_key(&prefix, 1), value, lease).encoded_len();
        self.context.check_len(caller, least)?;
        self.check_now(caller, &prefix).await?;
        let lease = self.session(caller, lease).await?;
        let view = self.context.view_for_reading(false).await?;
        self.check(caller, &prefix, &view)?;
        let seen = view.revision();
        drop(view);
        let key = queue_key(&prefix, lease);
        let txn = queue_txn(&key, value, lease);
        self.context.check_quota(gates::txn_cost(&txn)).await?;
        validate::txn(&txn, self.context.limits)?;
        self.context.check_now(caller, &Wants::Txn(&txn)).await?;
        let message: Bytes = txn.encode_to_vec().into();
        validate::proposal_size(message.len(), self.context.limits)?;
        // The deletion that gives the key up is behind this put in the log: were the put withdrawn,
        // the key there would be another call's.
        let proposal = self.context.begin(caller, Kind::Txn, message, false)?.kept();
        let mut guard = KeyGuard::new(&self.context, caller, &key, seen);
        let reply = match self
            .context
            .answer(proposal, &self.context.budgets.replies.share())
            .await
            .and_then(|reply| decoded(TxnResponse::decode(&reply.concat()[..])))
        {
            Ok(reply) => reply,
            Err(error) => {
                if !error.leaves_write_open() {
                    guard.keep(); // nothing was put
                }
                if error == Error::NoSpace {
                    self.context.raise_no_space().await;
                }
                return Err(error);
            }
        };
        let revision = found(&reply).map_or_else(
            || reply.header.as_ref().map_or(0, |header| header.revision),
            |kv| kv.create_revision,
        );
        let own = QueuedKey { prefix, key, lease, revision };
        let was_found = found(&reply);
        if was_found.is_some() {
            guard.found();
        } else {
            guard.wait_with(&own);
        }
        let has_other_value = was_found.is_some_and(|kv| kv.value != value);
        Ok(Joined { own, header: reply.header, has_other_value, guard })
    }

    /// Whether a caller may read the keys of a queue.
    pub(super) fn check(&self, caller: &Caller, prefix: &Bytes, view: &View) -> Result<(), Error> {
        let range_end = prefix_end(prefix);
        self.context.check(caller, &Wants::Read { key: prefix, range_end: &range_end }, view)
    }

    /// The same as of now, before anything is done for it.
    async fn check_now(&self, caller: &Caller, prefix: &Bytes) -> Result<(), Error> {
        let range_end = prefix_end(prefix);
        self.context.check_now(caller, &Wants::Read { key: prefix, range_end: &range_end }).await
    }

    /// The lease a caller names, or a new one. A new one is an entry of the log: the caller's
    /// rights to what it is for were looked at before.
    pub(super) async fn session(&self, caller: &Caller, lease: i64) -> Result<i64, Error> {
        if lease != 0 {
            return Ok(lease);
        }
        let request = LeaseGrantRequest { ttl: SESSION_TTL, id: 0 };
        let reply = self.lease.grant(caller, request.encode_to_vec().into()).await?.concat();
        Ok(decoded(LeaseGrantResponse::decode(&reply[..]))?.id)
    }

    /// Watches on behalf of a caller that takes events as soon as they come, whatever its client
    /// does.
    pub(super) fn watch(&self, caller: &Caller, request: WatchCreateRequest) -> OwnWatcher {
        self.watch_for(caller, request, &self.context.budgets.watches.share())
    }

    /// Watches on behalf of a caller whose client may keep it waiting: events that are left then
    /// are in the share of its connection. It ends with the caller's right to read the keys.
    pub(super) fn watch_for(
        &self,
        caller: &Caller,
        request: WatchCreateRequest,
        share: &Share,
    ) -> OwnWatcher {
        let context = Rc::clone(&self.context);
        let caller = caller.in_name_only().unwrap_or_else(|| caller.clone());
        let judge: WatchJudge = Box::new(move |view, key, range_end, _| {
            let judged = context.check(&caller, &Wants::Read { key, range_end }, view);
            judged.map_err(|_| "the right to read these keys was revoked")
        });
        OwnWatcher::new(&self.watchers, request, share, judge)
    }

    /// Waits until a key is the oldest. Costs nothing while waiting: the key before it is watched.
    pub(super) async fn wait_until_oldest(&self, caller: &Caller, own: &QueuedKey) -> Result<(), Error> {
        loop {
            let before = {
                let view = self.context.view_for_reading(false).await?;
                self.check(caller, &own.prefix, &view)?;
                let newest = find_created(&view, &own.prefix, Created::LastBefore(own.revision)).await;
                newest.map(|(key, _)| (key, view.revision()))
            };
            let Some((key, seen)) = before else { return Ok(()) };
            let request = WatchCreateRequest {
                key,
                start_revision: seen + 1,
                filters: vec![FilterType::Noput as i32],
                ..WatchCreateRequest::default()
            };
            match self.watch(caller, request).next().await {
                Ok(_) | Err(Error::Compacted | Error::Auth(_)) => {} // look again
                Err(error) => return Err(error),
            }
        }
    }
}

/// The key a transaction found instead of making it.
fn found(reply: &TxnResponse) -> Option<&KeyValue> {
    use revd_proto::etcdserverpb::response_op::Response;
    match reply.responses.first()?.response.as_ref()? {
        Response::ResponseRange(range) => range.kvs.first(),
        Response::ResponseTxn(nested) => found(nested),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether conditions hold for a key with this create revision and version.
    fn hold(conditions: &[Compare], create: i64, version: i64) -> bool {
        conditions.iter().all(|condition| match condition.target_union {
            Some(TargetUnion::CreateRevision(than)) if condition.result == CompareResult::Greater as i32 => {
                create > than
            }
            Some(TargetUnion::CreateRevision(than)) => create == than,
            Some(TargetUnion::Version(than)) => version == than,
            _ => panic!("no such condition is made"),
        })
    }

    /// A caller puts its key and goes away before it hears of that; meanwhile another one with the
    /// same lease has found the key, which it may have seen already when it came.
    #[test]
    fn a_key_that_was_found_is_not_deleted_for_a_caller_that_has_gone() {
        let key = Bytes::from_static(b"lock/1");
        for (seen, created) in [(7, 8), (7, 9)] {
            assert!(hold(&put_since(&key, seen), created, 1), "the only caller gives its key up");
            let mut version = 1;
            for _ in 0..2 {
                version += i64::from(hold(&find(&key).compare, created, version));
                assert_eq!(version, 2, "it is put once more, and only once");
                assert!(!hold(&put_since(&key, seen), created, version));
            }
        }
    }

    #[test]
    fn a_prefix_ends_where_the_next_one_begins() {
        assert_eq!(prefix_end(b"a/"), b"a0");
        assert_eq!(prefix_end(b"a\xff\xff"), b"b");
        assert_eq!(prefix_end(b"\xff"), b"\0");
    }
}
