//! Placeholder of the part `api`.
