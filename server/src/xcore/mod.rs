//! Placeholder of the part `xcore`.
