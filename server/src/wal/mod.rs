//! Placeholder of the part `wal`.
