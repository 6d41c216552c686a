//! Talking to a server: gRPC over our own HTTP/2, messages taken apart without copying.

pub mod client;
pub mod fields;
pub mod head;
pub mod method;
pub mod tls;
pub mod users;

pub use client::{ClientConnection, ReplySink};
pub use method::RpcMethod;
