//! The file under the tree, as little of it as the engine needs.

mod mmap;

mod mapped;
#[cfg(feature = "sim")]
mod sim;

pub use mapped::offset_of;
pub use mmap::MmapDisk;
#[cfg(feature = "sim")]
pub use sim::{Recorded, SimDisk};

use std::ops::Range;
use std::sync::Arc;

use crate::Result;

/// A growable array of bytes that can be made durable.
///
/// Contract:
/// - Writes may become durable in any order and in part until `sync` returns; after it, all of them
///   are.
/// - A failed `write_at`, `set_len` or `sync` is final: every later call fails too. Retrying a sync
///   could report success for data the kernel has already dropped. The exception is `set_len`
///   without room: it changes nothing.
/// - Bytes that `set_len` has added have their place on the disk: writing them does not fail for
///   want of space.
/// - A map shows writes made after it was taken, within its length; the engine never writes to a
///   page that a reader of that map can reach.
pub trait Disk: Send + Sync {
    /// Current length in bytes.
    ///
    /// # Errors
    /// When the system does not say.
    fn file_len(&self) -> Result<u64>;

    /// Grows or shrinks; new bytes are zero. Durable after `sync`.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) when there is no room to grow.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When not everything was written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The same, for bytes that nobody reads soon: they take no room in the page cache where the
    /// disk can do without. Fastest for many bytes that begin, on disk and in memory, at multiples
    /// of [`DIRECT_ALIGNMENT`](crate::limits::DIRECT_ALIGNMENT).
    ///
    /// # Errors
    /// When not everything was written.
    fn write_past_cache(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_at(offset, bytes)
    }

    /// Makes every earlier write and the length durable.
    ///
    /// # Errors
    /// When that is not certain.
    fn sync(&self) -> Result<()>;

    /// The whole file for reading.
    ///
    /// # Errors
    /// When it cannot be mapped.
    fn map(&self) -> Result<Map>;
}

/// The bytes behind a [`Map`].
pub trait MapBytes: AsRef<[u8]> + Send + Sync {
    /// These bytes are read soon: a disk that has to fetch them may begin. Only advice; it does not
    /// wait for them.
    fn will_need(&self, _bytes: Range<usize>) {}
}

impl MapBytes for Vec<u8> {}

/// Read access to a file's bytes; clones share it.
#[derive(Clone)]
pub struct Map {
    bytes: Arc<dyn MapBytes>,
    /// There may be more addresses than bytes of the file.
    len: usize,
}

impl Map {
    /// All bytes of a file, at once.
    #[must_use]
    pub fn new(bytes: Arc<dyn MapBytes>) -> Self {
        let len = (*bytes).as_ref().len();
        Self { bytes, len }
    }

    /// The same addresses, as far as a file of this length goes. None if they are too few for it.
    fn with_len(&self, len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok().filter(|len| *len <= (*self.bytes).as_ref().len())?;
        Some(Self { bytes: Arc::clone(&self.bytes), len })
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes).as_ref()[..self.len]
    }

    /// These bytes are read soon; those that the file does not have are left out.
    pub fn will_need(&self, bytes: Range<usize>) {
        let end = bytes.end.min(self.len);
        if bytes.start < end {
            self.bytes.will_need(bytes.start..end);
        }
    }
}

impl std::fmt::Debug for Map {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Map({} bytes)", self.bytes().len())
    }
}
