//! The data directory of one member: what is in its files, what a crash leaves of them, and the
//! troubles of its disk.
//!
//! A directory outlives the processes of its member. Its calls change what a process sees at once;
//! what they cost in virtual time is said by [`Begun`]: the world calls [`Directory::end`] when
//! that time is over. A call or job that has not ended by a crash has happened in part, or not at
//! all.
//!
//! Rules of the disk:
//! - A write is durable when a sync of its file that was asked for later has returned. Until then a
//!   crash of the machine may lose it, or any of its sectors of 512 bytes, and keep later ones.
//! - A name that was made, changed or removed is durable when its folder was synced later. Until
//!   then it may be lost, with all later changes in the same folder.
//! - The log's writes are durable when they return, as with `O_DSYNC`.
//! - When only the process ends, the next one sees what was written; that may still be lost. A
//!   write that was under way may land later, while the next process runs.
//! - A file that gets another name keeps its bytes: a segment that is used again holds old frames.

mod contents;
mod directory;
mod faults;
mod file_bytes;
mod image;
mod journal;
mod log_calls;
mod log_files;
mod medium;
mod names;
mod recording;
mod start;
#[cfg(test)]
mod tests;

pub use contents::RESERVE_BYTES;
pub use directory::Directory;
pub use faults::{Begun, Crash, DiskFaults, Ticket, Trouble};
pub use image::{Folder, SECTOR};
pub use log_files::LogFiles;
pub use medium::Recording;
pub use recording::Replay;
pub use start::{PAGES, Recovering, StartError};
