//! Consensus: how commands become committed entries.
//!
//! raft-rs decides; we carry out. Its documentation's duties of the program that drives it, and
//! where they are done:
//!
//! 1. Entries and hard state of a `Ready` are durable before anything relies on them: `node.rs`
//!    puts them into the next frame, the log core writes and syncs it, and only then tells raft
//!    (`on_persist_ready`), in order.
//! 2. Messages that promise something go out after the promise is durable (none yet: one voter).
//! 3. Committed entries are applied in order, each once: `node.rs` hands them out, the state core
//!    applies them.
//! 4. `advance` follows each `Ready`: `advance_append_async`, because writing goes on while raft
//!    does.
//! 5. The storage answers from all entries that were handed over, durable or not: `storage.rs`
//!    holds it in memory until the state core has made it durable elsewhere.
//!
//! raft-rs's own message types stay inside this folder. Its only randomness, election timeouts,
//! comes from a seed that the caller gives (`timeouts.rs`): the same seed and the same events make
//! the same run, whatever the number of voters.

pub mod message;
pub mod node;
pub mod status;
mod storage;
mod timeouts;
