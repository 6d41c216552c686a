//! What callers say and what they make of the answers. Nothing here knows sockets or time: requests in, replies out.

mod kv;
mod lease;
mod lock;
mod operation;
mod source;
mod txn;

pub(crate) use operation::{NextCall, expiry_prefix};
pub use operation::{ReplyVerdict, STAMP, STAMP_BYTES, stamp};
pub(crate) use source::OpSource;
