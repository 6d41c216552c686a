//! What callers say and what they make of the answers. Nothing here knows sockets or time: requests in, replies out.

mod kv;
mod lease;
mod lock;
mod operation;
mod source;
mod txn;

pub(crate) use operation::{Ask, expiry_prefix};
pub use operation::{STAMP, STAMP_BYTES, Verdict, stamp};
pub(crate) use source::Source;
