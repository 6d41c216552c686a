//! Files: segments of the log, the reserve, states that other members send, and pages that the disk
//! does not give.

pub mod directory;
pub mod received;
pub mod reserve;
pub mod segments;
pub mod unreadable;
