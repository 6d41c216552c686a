//! How a member starts and stops: from files to a running member, and the life of its process.

mod forced;
pub mod lifecycle;
pub mod received_files;
pub mod recovery;
