//! Placeholder of the part `cores`.
