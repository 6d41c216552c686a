//! Placeholder of the part `cluster`.
