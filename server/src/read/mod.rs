//! Reads: which state a read sees, and how a range becomes a reply.
