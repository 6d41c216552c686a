//! The needs of requests: one walk over the decoded tree of each.

use bytes::Bytes;
use revd_proto::etcdserverpb::request_op::Request;
use revd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RequestOp, TxnRequest};

use crate::auth::intervals::Intervals;
use crate::auth::rights::Rights;
use crate::error::{AuthError, Error};
use crate::lease::Leases;

/// The subject of a request, as far as rights go.
#[derive(Debug, Clone, Copy)]
pub enum Wants<'r> {
    /// A client may have it whoever it is; but a token has to be one.
    Nothing,
    /// Any user may have it.
    Login,
    /// For users with the role `root`.
    Root,
    /// All there is to know of this user: for that one and root.
    User(&'r str),
    /// All there is to know of this role: for users that have it and root.
    Role(&'r str),
    /// To read keys.
    Read {
        /// The first of them.
        key: &'r [u8],
        /// The wire's form of where they end.
        range_end: &'r [u8],
    },
    /// A put.
    Put(&'r PutRequest),
    /// A deletion.
    Delete(&'r DeleteRangeRequest),
    /// A transaction: everything that it could do, in each branch.
    Txn(&'r TxnRequest),
    /// To end a lease, or keep it alive: to write the keys that are attached to it.
    WriteLease(i64),
    /// To know what is attached to a lease, or to any: to read these keys.
    ReadLease(Option<i64>),
}

impl Wants<'_> {
    /// It names keys: an old token does not count, not even that of root.
    pub(super) fn names_keys(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Put(_) | Self::Delete(_) | Self::Txn(_))
    }
}

/// The knowledge of the keys that are attached to leases.
#[derive(Debug, Clone, Copy)]
pub enum Attached<'a> {
    /// Nothing: another one, which knows, judges again.
    Unknown,
    /// Everything.
    Leases(&'a Leases),
    /// The keys of the lease in question.
    Keys(&'a [Bytes]),
}

impl Attached<'_> {
    /// Keys are known that are attached to the lease of a request.
    pub(super) fn has_keys_of(&self, wants: &Wants<'_>) -> bool {
        match (self, wants) {
            (Self::Keys(keys), Wants::WriteLease(_) | Wants::ReadLease(_)) => !keys.is_empty(),
            (Self::Leases(leases), Wants::WriteLease(lease) | Wants::ReadLease(Some(lease))) => {
                leases.key_from(*lease, b"").is_some()
            }
            (Self::Leases(leases), Wants::ReadLease(None)) => leases.attached_from(b"").is_some(),
            _ => false,
        }
    }
}

/// A user's rights at the moment in which it is judged.
pub(super) struct Judge<'a> {
    pub(super) name: &'a str,
    pub(super) rights: &'a Rights,
    pub(super) attached: Attached<'a>,
}

fn allowed(is_allowed: bool) -> Result<(), Error> {
    if is_allowed { Ok(()) } else { Err(Error::Auth(AuthError::PermissionDenied)) }
}

impl Judge<'_> {
    pub(super) fn judge(&self, wants: &Wants<'_>) -> Result<(), Error> {
        match wants {
            Wants::Nothing | Wants::Login => Ok(()),
            Wants::Root => Err(Error::Auth(AuthError::PermissionDenied)),
            Wants::User(name) => allowed(*name == self.name),
            Wants::Role(name) => allowed(self.rights.roles.iter().any(|role| role == name)),
            Wants::Read { key, range_end } => self.read(key, range_end),
            Wants::Put(put) => self.put(put),
            Wants::Delete(delete) => self.delete(delete),
            Wants::Txn(txn) => self.txn(txn),
            Wants::WriteLease(lease) => self.write_lease(*lease),
            Wants::ReadLease(lease) => self.read_lease(*lease),
        }
    }

    fn read(&self, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
        allowed(self.rights.read.contain(key, range_end))
    }

    fn write(&self, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
        allowed(self.rights.write.contain(key, range_end))
    }

    /// A key that is attached to a lease ends with it, and so do the others: a user that may not
    /// write them may not decide when.
    fn put(&self, put: &PutRequest) -> Result<(), Error> {
        self.write(&put.key, b"")?;
        self.write_lease(put.lease)?;
        if put.prev_kv { self.read(&put.key, b"") } else { Ok(()) }
    }

    fn delete(&self, delete: &DeleteRangeRequest) -> Result<(), Error> {
        self.write(&delete.key, &delete.range_end)?;
        if delete.prev_kv { self.read(&delete.key, &delete.range_end) } else { Ok(()) }
    }

    /// Decoding has bounded the depth.
    fn txn(&self, txn: &TxnRequest) -> Result<(), Error> {
        txn.compare.iter().try_for_each(|compare| self.read(&compare.key, &compare.range_end))?;
        txn.success.iter().chain(&txn.failure).try_for_each(|op| self.op(op))
    }

    fn op(&self, op: &RequestOp) -> Result<(), Error> {
        match &op.request {
            None => Ok(()),
            Some(Request::RequestRange(range)) => self.read(&range.key, &range.range_end),
            Some(Request::RequestPut(put)) => self.put(put),
            Some(Request::RequestDeleteRange(delete)) => self.delete(delete),
            Some(Request::RequestTxn(txn)) => self.txn(txn),
        }
    }

    fn write_lease(&self, lease: i64) -> Result<(), Error> {
        self.keys_of(Some(lease), &self.rights.write)
    }

    fn read_lease(&self, lease: Option<i64>) -> Result<(), Error> {
        self.keys_of(lease, &self.rights.read)
    }

    /// All keys of a lease, or of any, have to be among these. However many it has, it is looked at
    /// once for each interval: this is done for every put with a lease, on the state core.
    fn keys_of(&self, lease: Option<i64>, rights: &Intervals) -> Result<(), Error> {
        match (self.attached, lease) {
            (Attached::Unknown, _) | (_, Some(0)) => Ok(()),
            (Attached::Keys(keys), _) => allowed(keys.iter().all(|key| rights.contain(key, b""))),
            (Attached::Leases(leases), Some(lease)) => {
                allowed(rights.hold_all(|from| leases.key_from(lease, from)))
            }
            (Attached::Leases(leases), None) => allowed(rights.hold_all(|from| leases.attached_from(from))),
        }
    }
}
