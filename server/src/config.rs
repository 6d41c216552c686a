//! Placeholder of the part `config`.
