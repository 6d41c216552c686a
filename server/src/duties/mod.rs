//! Duties: work that no client asks for, done at a steady pace or as soon as there is some. One
//! file a duty.
//!
//! | duty | of | pace |
//! |------|----|------|
//! | [`publication`] | the member | once, at its start |
//! | [`versions`] | the member | `VERSIONS_INTERVAL` |
//! | [`auto_compaction`] | the member | a tenth of the period, or five minutes |
//! | [`lease_expiry`] | the member | `LEASE_CHECK_INTERVAL` |
//! | [`lease_checkpoints`] | the member | `LEASE_NOTE_INTERVAL` |
//! | [`corruption_checks`] | the member | `--corrupt-check-time`, `--compact-hash-check-time` |
//! | [`reserve`] | the member | `RESERVE_INTERVAL` |
//! | [`sweep`] | each edge | `SWEEP_INTERVAL` |
//! | [`leader_watch`] | each edge | a tenth of an election timeout |
//! | [`watch_steps`] | each edge | whenever a watcher is behind |
//! | [`watch_progress`] | each edge | a tenth of `--watch-progress-notify-interval` |
//! | [`memory`] | each core, and the process | `GIVE_BACK_INTERVAL`, or more rarely |
//! | [`cleaner`] | the process | whenever something was dropped |
//!
//! One edge has the member's duties; auto compaction, lease expiry, lease checkpoints and decisions
//! about versions are the leader's, and rest elsewhere. Raft's clock is [`pace::every`] in
//! `cores/log.rs`.

pub mod auto_compaction;
pub mod cleaner;
pub mod corruption_checks;
pub mod leader_watch;
pub mod lease_checkpoints;
pub mod lease_expiry;
pub mod memory;
pub mod pace;
pub mod publication;
pub mod reserve;
pub mod sweep;
pub mod versions;
pub mod watch_progress;
pub mod watch_steps;
