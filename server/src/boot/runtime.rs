//! Whether this machine lets us run at all, and what to do if not.

use anyhow::Context as _;
use glommio::{LocalExecutorBuilder, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits;

/// glommio wants to be allowed to lock this much memory.
const LOCKED_BYTES_MIN: u64 = 512 * 1024;

/// Starts and ends one executor, so that a missing piece is named before anything else happens.
///
/// # Errors
/// When io_uring is missing or forbidden, or too little memory may be locked; the text says what to do.
pub fn check() -> anyhow::Result<()> {
    raise_memory_lock_limit()?;
    LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(limits::IO_BYTES)
        .spawn(|| async {})
        .map_err(|error| anyhow::anyhow!("{error}"))
        .and_then(|executor| executor.join().map_err(|error| anyhow::anyhow!("{error}")))
        .context(
            "io_uring cannot be used here: revd needs Linux 5.8 or later with io_uring allowed \
             (sysctl kernel.io_uring_disabled=0; in containers a seccomp profile that permits io_uring_setup, \
             io_uring_enter and io_uring_register)",
        )
}

fn raise_memory_lock_limit() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Memlock);
    let is_enough = |bytes: Option<u64>| bytes.is_none_or(|bytes| bytes >= LOCKED_BYTES_MIN);
    if is_enough(limit.current) {
        return Ok(());
    }
    let maximum = if is_enough(limit.maximum) { limit.maximum } else { Some(LOCKED_BYTES_MIN) };
    setrlimit(Resource::Memlock, Rlimit { current: Some(LOCKED_BYTES_MIN), maximum }).with_context(|| {
        format!(
            "io_uring needs a locked-memory limit of {} KiB, it is {} KiB and cannot be raised from here: allow more \
             (`ulimit -l`, LimitMEMLOCK= in systemd, --ulimit memlock= in docker)",
            LOCKED_BYTES_MIN / 1024,
            limit.current.unwrap_or(u64::MAX) / 1024
        )
    })
}

/// Lets this process open as many files as it may: each connection is one.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, fewer connections are accepted; nothing else depends on it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The CPUs this process may run on.
///
/// # Errors
/// When the kernel does not say.
pub fn allowed_cpus() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("asking which CPUs this process may use")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}
