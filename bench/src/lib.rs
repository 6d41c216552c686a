//! Shared by micro-benchmarks: keys and values of a fixed shape, and a disk that counts. Whole
//! servers are measured by `loadgen`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use revd_engine::disk::{Disk, Map, MmapDisk};

/// A file; counts the bytes that are written.
pub struct CountingDisk {
    /// The file itself.
    pub disk: MmapDisk,
    /// Bytes that were written.
    pub written: Arc<AtomicU64>,
    /// Syncs are carried out. Without them bytes are counted and not waited for: the disk of the
    /// machine is shared.
    pub syncs: bool,
}

impl Disk for CountingDisk {
    fn file_len(&self) -> revd_engine::Result<u64> {
        self.disk.file_len()
    }

    fn set_len(&self, len: u64) -> revd_engine::Result<()> {
        self.disk.set_len(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> revd_engine::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.disk.write_at(offset, bytes)
    }

    fn sync(&self) -> revd_engine::Result<()> {
        if self.syncs { self.disk.sync() } else { Ok(()) }
    }

    fn map(&self) -> revd_engine::Result<Map> {
        self.disk.map()
    }
}

/// Key number `number`: 64 bytes, like the ones Kubernetes makes.
#[must_use]
pub fn key(number: u64) -> Bytes {
    format!(
        "/registry/pods/namespace-{:04}/pod-{number:010}-{:019}",
        number % 1000,
        number.wrapping_mul(0x9E37_79B9) % 10_u64.pow(19)
    )
    .into()
}

/// Where all keys lie: first key, and the first behind the last.
#[must_use]
pub fn all_keys() -> (Bytes, Bytes) {
    (Bytes::from_static(b"/registry/pods/"), Bytes::from_static(b"/registry/pods0"))
}

/// CPU time of this thread up to now: other processes of the machine are no part of it. (The sum in
/// `/proc/thread-self/schedstat` goes on by ticks of 4 ms.)
///
/// # Errors
/// When the kernel does not tell it.
pub fn cpu_time() -> anyhow::Result<Duration> {
    Ok(rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into()?)
}

/// A value of `len` bytes that does not compress to nothing.
#[must_use]
pub fn value(len: usize, seed: u64) -> Bytes {
    let mut state = seed | 1;
    let byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32).to_le_bytes()[0]
    };
    std::iter::repeat_with(byte).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_what_they_say() {
        assert_eq!(key(123).len(), 64);
        let (first, end) = all_keys();
        assert!(first < key(0) && key(u64::MAX / 2) < end && key(1) != key(2));
    }
}
