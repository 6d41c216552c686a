//! Placeholder of the part `boot`.
