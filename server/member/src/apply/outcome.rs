//! The outcome of a command for its caller, and the effects of applying it.

use std::sync::Arc;

use bytes::Bytes;

use crate::apply::command::CommandId;
use crate::auth::rules::TokenChange;
use crate::error::Error;
use crate::read::parts::ReplyPart;

/// The answer to one command, before the edge adds the response header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The store's revision when the command was applied; goes into the header.
    pub revision: i64,
    /// The encoded response message without its header (field 1 comes first in every response, so
    /// that the edge can put it in front), or why the request was refused.
    pub result: Result<Bytes, Error>,
    /// The parts that the edge has yet to put behind the result's bytes.
    pub rest: Rest,
}

/// Parts of a reply that are read by the edge. Two of them are equal if they are the same.
#[derive(Debug, Clone, Default)]
pub struct Rest(Option<Arc<[ReplyPart]>>);

impl From<Vec<ReplyPart>> for Rest {
    fn from(parts: Vec<ReplyPart>) -> Self {
        Self((!parts.is_empty()).then(|| parts.into()))
    }
}

impl Rest {
    /// There is none: the outcome is whole.
    pub const NONE: Self = Self(None);

    /// The parts.
    #[must_use]
    pub fn parts(&self) -> &[ReplyPart] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl PartialEq for Rest {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        }
    }
}

impl Eq for Rest {}

/// An action of the state core after a command is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Effect {
    /// Answer now.
    Reply(CommandId, Outcome),
    /// Answer when compactions up to this revision have freed their space.
    ReplyWhenCompacted(CommandId, Outcome, i64),
    /// Ask every edge to pass on the keepalives it has, and then to say so by this number.
    Hear(u64),
    /// A token counts from now on, or some do not any more.
    Tokens(TokenChange),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_with_other_parts_are_others() {
        let part = || Rest::from(vec![ReplyPart::Bytes(Bytes::from_static(b"part"))]);
        let outcome = |rest| Outcome { revision: 1, result: Ok(Bytes::new()), rest };
        let one = outcome(part());
        assert_eq!(one, one.clone());
        assert_ne!(one, outcome(part()), "they are read once for each");
        assert_ne!(one, outcome(Rest::NONE));
        assert_ne!(outcome(Rest::NONE), one);
        assert_eq!(outcome(Rest::NONE), outcome(Vec::new().into()));
    }
}
