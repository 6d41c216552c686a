//! The reply to a command, while it is being carried out.
//!
//! A reply nobody waits for (the command of another process, or of this one before it was started
//! again) is not made at all: what applying does to state never depends on it. Long reads are left
//! to the edge; see [`crate::read::parts`].

use bytes::Bytes;

use crate::read::parts::{DeferredRead, ReplyPart, TxnOp};

/// The body of a reply.
#[derive(Debug)]
pub(super) struct Reply {
    is_wanted: bool,
    /// Before what is open.
    parts: Vec<ReplyPart>,
    open: Vec<u8>,
}

impl Reply {
    /// Nothing yet; nothing ever if nobody wants it.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, parts: Vec::new(), open: Vec::new() }
    }

    /// One that is part of this one.
    pub(super) fn inner(&self) -> Self {
        Self::new(self.is_wanted)
    }

    /// Where to put what is at hand, if somebody wants it.
    pub(super) fn open(&mut self) -> Option<&mut Vec<u8>> {
        self.is_wanted.then_some(&mut self.open)
    }

    /// A caller waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Leaves a place for what the edge reads.
    pub(super) fn read_later(&mut self, read: DeferredRead) {
        self.close();
        self.parts.push(ReplyPart::Read(Box::new(read)));
    }

    /// Appends another one.
    pub(super) fn append(&mut self, other: Self) {
        if other.parts.is_empty() {
            self.open.extend_from_slice(&other.open);
            return;
        }
        self.close();
        self.parts.extend(other.finish_parts());
    }

    /// Appends the response to an operation.
    pub(super) fn respond(&mut self, op: TxnOp, response: Self) {
        if !self.is_wanted {
            return;
        }
        if response.parts.is_empty() {
            self.open.extend_from_slice(&op.prefix(response.open.len()));
            self.open.extend_from_slice(&response.open);
            return;
        }
        self.close();
        self.parts.push(ReplyPart::Op(op, response.finish_parts()));
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.parts.push(ReplyPart::Bytes(std::mem::take(&mut self.open).into()));
        }
    }

    fn finish_parts(mut self) -> Vec<ReplyPart> {
        self.close();
        self.parts
    }

    /// The whole body; or no bytes, and the parts that it is made of.
    pub(super) fn finish(self) -> (Bytes, Vec<ReplyPart>) {
        if self.parts.is_empty() {
            (self.open.into(), Vec::new())
        } else {
            (Bytes::new(), self.finish_parts())
        }
    }
}
