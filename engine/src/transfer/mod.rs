//! One state of a file as a stream of bytes, and a new file made of such a stream.
//!
//! The stream holds the rows of all tables in key order and the owner's bytes, not pages: the new
//! file has no free pages, and is written from front to back. It is cut into chunks wherever one is
//! full, also within a row:
//!
//! ```text
//! chunk   u32 CRC-32 of the rest, begun with that of the chunk before | bytes of the stream
//! stream  u32 version | u32 bytes of a page | 128 the owner's bytes | 8 x u64 rows of tables
//!         then the rows of table 0, of table 1, ...:
//! row     u16 key length | u32 value length | key | value
//! all integers little-endian
//! ```
//!
//! The checksums form a chain, so a chunk that is missing, repeated or moved is found as one that
//! is damaged. The number of rows says where the stream ends. A chunk's bytes come from another
//! member: none of them is trusted.

mod build;
mod bulk;
mod stream;

pub use build::{FileBuilder, TableKinds};
pub use bulk::LaidOut;
pub use stream::StateStream;

use crate::limits::{TABLES_MAX, USER_BYTES};

/// Bytes of a chunk's checksum.
pub(crate) const CHECKSUM: usize = 4;
/// The version of what follows it.
pub(crate) const VERSION: u32 = 1;
/// The same, of a state that a file of an earlier format than `FORMAT_RANGED` must not hold.
pub(crate) const VERSION_RANGED: u32 = 2;
/// The same, of `FORMAT_DIVIDED`.
pub(crate) const VERSION_DIVIDED: u32 = 3;
/// Bytes of the stream before the first row.
pub(crate) const HEAD: usize = 8 + USER_BYTES + 8 * TABLES_MAX;
/// Bytes of a row before its key.
pub(crate) const ROW_HEAD: usize = 6;
