//! Placeholder of the part `net`.
