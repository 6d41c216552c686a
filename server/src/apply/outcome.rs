//! What applying a command yields for its caller.

use bytes::Bytes;

use crate::apply::command::CommandId;
use crate::error::Error;

/// The answer to one command, before the edge adds the response header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The store's revision when the command was applied; goes into the header.
    pub revision: i64,
    /// The encoded response message without its header (field 1 comes first in every response, so that the
    /// edge can put it in front), or why the request was refused.
    pub result: Result<Bytes, Error>,
}

/// What the state core has to do after applying a command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Answer now.
    Reply(CommandId, Outcome),
    /// Answer when the compaction that was just scheduled has freed its space.
    ReplyWhenCompacted(CommandId, Outcome),
    /// Ask every edge to pass on the keepalives it has, and then to say so by this number.
    Hear(u64),
}
