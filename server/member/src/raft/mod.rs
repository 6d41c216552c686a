//! Consensus: how commands become committed entries.
//!
//! raft-rs decides; we carry out. Its documentation's duties of the program that drives it, and
//! where they are done:
//!
//! 1. Entries and hard state of a `Ready` are durable before anything relies on them: `node.rs`
//!    puts them into the next frame, the log core writes and syncs it, and only then tells raft
//!    (`on_persist_ready`), in order.
//! 2. Messages that promise something go out after the promise is durable: `node.rs` keeps them
//!    until the frame is written. A leader's go at once, while its own write runs, once its term is
//!    durable.
//! 3. Committed entries are applied in order, each once: `node.rs` hands them out, the state core
//!    applies them, and raft is told when it has.
//! 4. `advance` follows each `Ready`: `advance_append_async`, because writing goes on while raft
//!    does.
//! 5. The storage answers from all entries that were handed over, durable or not: `storage.rs`
//!    holds them in memory until they are applied. Those before are read from the segments of the
//!    log for members that lag behind (`feeding.rs`), as far as the log keeps them
//!    (`retention.rs`).
//! 6. Messages that raft-rs takes for impossible do not reach it: `admission.rs` leaves them out,
//!    and `lost.rs` changes those that say that this member has lost entries.
//!
//! raft-rs's own message types stay inside this folder. Its only randomness, election timeouts,
//! comes from a seed that the caller gives (`timeouts.rs`): the same seed and the same events make
//! the same run, whatever the number of voters.

mod admission;
pub mod conf_change;
mod config;
mod convert;
pub mod feed;
mod feeding;
mod log_sizes;
mod lost;
pub mod message;
pub mod node;
mod pending;
mod retention;
pub mod states;
pub mod status;
mod storage;
mod timeouts;
mod votes;
