//! The decisions of the loops of cores: events in, effects out, in this order and no other.
//!
//! The server's `cores/` carries effects out on real files, threads and mailboxes; a simulator
//! carries them out on recorded ones, and may let any core stand still between two of them.

mod comparing;
mod corruption;
pub mod edge;
pub mod effects;
mod forwards;
mod handing_out;
mod hearing;
mod installing;
mod leader_moves;
mod leader_reads;
mod lease_asks;
mod lease_rights;
pub mod log;
pub mod log_events;
pub mod long;
mod member_callers;
pub mod member_changes;
mod peer_versions;
mod read_rounds;
mod reads;
mod saving;
pub mod state;
mod submissions;
mod transfers;
