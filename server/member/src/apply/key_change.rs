//! Commands that change keys, decoded.

use prost::Message as _;
use revd_proto::etcdserverpb::{DeleteRangeRequest, PutRequest, TxnRequest};

use crate::apply::command::{Command, Kind};
use crate::apply::txn_message;
use crate::error::Error;

/// A command that changes keys, decoded once for who judges it and for who carries it out.
#[derive(Debug)]
pub(super) enum KeyChange {
    Put(PutRequest),
    DeleteRange(DeleteRangeRequest),
    Txn(TxnRequest),
}

impl KeyChange {
    /// None if the command is of another kind.
    pub(super) fn decode(command: &Command) -> Option<Result<Self, Error>> {
        let payload = || command.payload.clone();
        Some(match command.kind {
            Kind::Put => PutRequest::decode(payload()).map(Self::Put).map_err(Error::from),
            Kind::DeleteRange => {
                DeleteRangeRequest::decode(payload()).map(Self::DeleteRange).map_err(Error::from)
            }
            Kind::Txn => txn_message::decode(&command.payload).map(Self::Txn),
            _ => return None,
        })
    }
}
