//! Files that are written: segments of the log, the reserve, and states that other members send.

pub mod received;
pub mod reserve;
pub mod segments;
