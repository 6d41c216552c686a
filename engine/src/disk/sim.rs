//! A disk in memory that records what a crash could leave behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, Map};
use crate::{Error, Result};

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Recorded {
    /// The length was changed.
    SetLen(u64),
    /// Bytes were written.
    Write {
        /// Where.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Everything before is durable.
    Sync,
}

/// A file in memory. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<SimState>>,
}

#[derive(Default)]
struct SimState {
    bytes: Vec<u8>,
    log: Vec<Recorded>,
    /// Calls that still succeed, when a failure is planned.
    calls_left: Option<u64>,
    failed: bool,
    /// The disk's size, if it has one.
    bytes_max: Option<u64>,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk that holds these bytes.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self { state: Arc::new(Mutex::new(SimState { bytes, ..SimState::default() })) }
    }

    fn state(&self) -> MutexGuard<'_, SimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything done so far, in order.
    #[must_use]
    pub fn recorded(&self) -> Vec<Recorded> {
        self.state().log.clone()
    }

    /// The current content.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Changes bytes behind the engine's back.
    pub fn damage(&self, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state().bytes);
    }

    /// Lets `calls` more writes, resizes and syncs succeed and fails all after them.
    pub fn fail_after(&self, calls: u64) {
        self.state().calls_left = Some(calls);
    }

    /// Limits the disk's size: growing beyond it finds no space.
    pub fn limit(&self, bytes: Option<u64>) {
        self.state().bytes_max = bytes;
    }

    /// The content after a list of calls, of which `keep` says for each unsynced write which of its
    /// 512-byte sectors survived.
    #[must_use]
    pub fn image(calls: &[Recorded], mut keep: impl FnMut(usize, usize) -> bool) -> Vec<u8> {
        let synced = calls.iter().rposition(|call| *call == Recorded::Sync).map_or(0, |at| at + 1);
        let mut bytes = Vec::new();
        for (at, call) in calls.iter().enumerate() {
            match call {
                Recorded::SetLen(len) => bytes.resize(usize::try_from(*len).expect("a test disk"), 0),
                Recorded::Write { offset, bytes: new } => {
                    let start = usize::try_from(*offset).expect("a test disk");
                    if bytes.len() < start + new.len() {
                        bytes.resize(start + new.len(), 0);
                    }
                    for (sector, part) in new.chunks(512).enumerate() {
                        if at < synced || keep(at, sector) {
                            let from = start + sector * 512;
                            bytes[from..from + part.len()].copy_from_slice(part);
                        }
                    }
                }
                Recorded::Sync => {}
            }
        }
        bytes
    }

    fn record(&self, call: Recorded, apply: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut state = self.state();
        if state.failed {
            return Err(Error::Poisoned);
        }
        if let Some(left) = &mut state.calls_left {
            if *left == 0 {
                state.failed = true;
                return Err(Error::io("simulated failure", std::io::Error::other("planned")));
            }
            *left -= 1;
        }
        apply(&mut state.bytes);
        state.log.push(call);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn file_len(&self) -> Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let size = usize::try_from(len).expect("a test disk fits memory");
        let full = {
            let state = self.state();
            state.bytes_max.is_some_and(|max| len > max && size > state.bytes.len())
        };
        if full {
            return Err(Error::growing("simulated", std::io::ErrorKind::StorageFull.into()));
        }
        self.record(Recorded::SetLen(len), |bytes| bytes.resize(size, 0))
    }

    fn write_at(&self, offset: u64, new: &[u8]) -> Result<()> {
        let start = usize::try_from(offset).expect("a test disk fits memory");
        self.record(Recorded::Write { offset, bytes: new.to_vec() }, |bytes| {
            if bytes.len() < start + new.len() {
                bytes.resize(start + new.len(), 0);
            }
            bytes[start..start + new.len()].copy_from_slice(new);
        })
    }

    fn sync(&self) -> Result<()> {
        self.record(Recorded::Sync, |_| {})
    }

    fn map(&self) -> Result<Map> {
        Ok(Map::new(Arc::new(self.state().bytes.clone())))
    }
}
