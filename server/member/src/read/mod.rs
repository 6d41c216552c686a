//! Reads: which state a read sees, and how a range becomes a reply.
//!
//! A serializable read takes the edge's newest View. So does a linearizable one while there is a
//! single voter: the state core publishes each View before anything in it is acknowledged, and the
//! View is taken after the request arrived, so it holds whatever was acknowledged, or read by
//! anyone, before the request began.

pub mod one;
pub mod parts;
pub mod range;
mod sort;
pub mod view_slot;
