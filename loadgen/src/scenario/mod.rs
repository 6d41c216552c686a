//! The operations of callers: requests out, replies in. No sockets and no clock.

mod kv;
mod lease;
mod lock;
mod operation;
mod source;
mod txn;

pub(crate) use operation::{NextCall, expiry_prefix};
pub use operation::{ReplyVerdict, STAMP, STAMP_BYTES, stamp};
pub(crate) use source::OpSource;
