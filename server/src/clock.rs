//! Placeholder of the part `clock`.
