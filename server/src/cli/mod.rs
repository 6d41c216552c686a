//! Placeholder of the part `cli`.
