//! Placeholder of the part `limits`.
