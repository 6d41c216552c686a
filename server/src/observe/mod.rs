//! Placeholder of the part `observe`.
