//! The disk, as far as the log needs it.

use bytes::Bytes;

use crate::wal::WalError;

/// Segment files, as little of them as the log needs. After any error of a change but
/// [`WalError::NoSpace`] nothing is known about what is on the disk, and the process must end.
pub trait LogDisk: 'static {
    /// A segment open for writing.
    type File;

    /// Makes a segment of so many bytes, zeros or those of an earlier use, under its name.
    /// Everything that was begun before is done first.
    ///
    /// # Errors
    /// [`WalError::NoSpace`], with nothing changed; else when the system refuses, also what was
    /// begun before.
    fn create(&self, segment: u64, bytes: u64) -> impl Future<Output = Result<Self::File, WalError>>;

    /// Writes whole blocks; they are durable when this returns.
    ///
    /// # Errors
    /// When not everything was written.
    fn write(
        &self,
        file: &Self::File,
        offset: u64,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), WalError>>;

    /// Reads so many bytes of a segment that is there, as the disk has them. A segment that was
    /// removed meanwhile may be another one by now.
    ///
    /// # Errors
    /// When the system refuses, also because there is no such segment any more.
    fn read(&self, segment: u64, offset: u64, bytes: u64) -> impl Future<Output = Result<Bytes, WalError>>;

    /// Bytes that the disk has room for, as far as it was looked at.
    fn room(&self) -> u64;

    /// Begins to make the file for the segment after this one. If it cannot be made now, it is made
    /// when it is needed.
    fn prepare(&self, bytes: u64);

    /// Begins to take a released segment away; its file becomes another segment if it has
    /// `spare_bytes`. That it could not be done shows in the next [`LogDisk::create`] or
    /// [`LogDisk::settle`].
    fn remove(&self, segment: u64, spare_bytes: Option<u64>);

    /// Waits until everything that was begun is done.
    ///
    /// # Errors
    /// When the system refused some of it.
    fn settle(&self) -> impl Future<Output = Result<(), WalError>>;
}
