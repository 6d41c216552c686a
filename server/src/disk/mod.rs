//! Files that are written: segments of the log, and the reserve.

pub mod reserve;
pub mod segments;
