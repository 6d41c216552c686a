//! The disk, as far as the log needs it.

use crate::wal::WalError;

/// Segment files, as little of them as the log needs. After any error but [`WalError::NoSpace`]
/// nothing is known about what is on the disk, and the process must end.
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
