//! Placeholder of the part `schema`.
