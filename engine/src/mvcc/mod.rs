//! Multi-version key space.
