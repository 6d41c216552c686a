//! HTTP/2 (RFC 9113) and HPACK (RFC 7541) as gRPC needs them, without sockets, clocks or tasks:
//! bytes in, events out; bytes to send gather in [`Out`] until the layer above sends them.
//!
//! ```text
//! bytes from the socket --> Connection::receive --> Event --> the server or client above
//!                                |                                     |
//!                            stream table                    send_head / send_data / send_end
//!                                |                                     |
//!                                +-- windows, queues of each stream ---+--> Out --> to the socket
//! ```
//!
//! Priorities are read and ignored, as RFC 9113 section 5.3 advises; nothing is pushed.

pub mod raw;
mod receive;
mod send;

mod connection;
mod frame;
pub mod hpack;

mod send_queue;

mod error;
mod huffman;
mod out;

pub use connection::{Config, Connection, Role};
pub use error::{ErrorCode, Fault, Limit};
pub use frame::{FRAME_BYTES_MAX, HEAD_BYTES};
pub use out::Out;
pub use receive::{Event, HeaderBlock, HeadersKind};

/// How an HTTP/2 client begins (RFC 9113, section 3.4).
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
