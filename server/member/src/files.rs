//! The files of one directory, as little of them as a member needs: which are made, renamed, synced
//! and removed, in which order, is decided in this crate (`wal::segment_files`,
//! `boot::received_files`), so that a simulated directory sees the same calls as a real one.

use std::io;
use std::path::Path;

/// Files by their names in one directory. A call is over when it returns.
///
/// A change of names (a file that is made, renamed or removed) may be lost by a crash until
/// [`Files::sync`] returns; changes of one directory are kept in their order.
pub trait Files {
    /// The directory, for messages.
    fn path(&self) -> &Path;

    /// All names, in no order.
    ///
    /// # Errors
    /// When the system refuses.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Bytes of a file; none if there is no such file.
    fn len(&self, name: &str) -> Option<u64>;

    /// Makes a file full of zeros, whose bytes and length are durable; one that is there is
    /// replaced.
    ///
    /// # Errors
    /// When the system refuses: a part of the file may be there.
    fn write_zeros(&self, name: &str, bytes: u64) -> io::Result<()>;

    /// Reads a file as the disk has it: all of its bytes are durable when this returns.
    ///
    /// # Errors
    /// When the system refuses.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Cuts a file off behind so many bytes.
    ///
    /// # Errors
    /// When the system refuses.
    fn cut(&self, name: &str, bytes: u64) -> io::Result<()>;

    /// Gives a file another name; the file that had it before has none.
    ///
    /// # Errors
    /// When the system refuses.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// When the system refuses.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all changes of names durable.
    ///
    /// # Errors
    /// When that is not certain.
    fn sync(&self) -> io::Result<()>;
}

/// Whether the system said that there is no room.
#[must_use]
pub fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
