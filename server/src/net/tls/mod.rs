//! TLS under connections of clients and of members (decision 0026).
//!
//! - `domain` has the certificates of one port, and loads them anew when their files change;
//!   `material` is one loading, `own` makes certificates, `names` knows cipher suites.
//! - `rules` says which certificates of others count, `der` reads what it looks at, `address`
//!   compares a member's address with the names in its certificate,
//!   `today` knows the date.
//! - `hostile` has the calls of fuzz targets.
//! - `handshake` begins a session, in `turns`; `wasted` has what those that came to nothing cost;
//!   `stream` is the session, a transport, `records` where its input ends.

mod address;
mod der;
mod domain;
mod handshake;
pub mod hostile;
mod material;
mod names;
mod own;
mod records;
mod rules;
mod stream;
mod today;
mod turns;
mod wasted;

pub use domain::{TlsDomain, watch};
pub(crate) use handshake::{Accepted, accept, connect, connect_blocking};
pub(crate) use stream::TlsStream;
pub(crate) use turns::{HandshakeTurns, address as address_of};
