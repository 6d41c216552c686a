//! Whether this machine lets us run at all, and what to do if not.

use anyhow::{Context as _, bail};
use glommio::{LocalExecutorBuilder, Placement};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of locked memory one core's ring takes.
const LOCKED_BYTES_PER_CORE: u64 = 512 * 1024;

/// Starts and ends one executor, so that a missing piece is named before anything else happens.
///
/// # Errors
/// When io_uring is missing or forbidden, or too little memory may be locked; the text says what to do.
pub fn check(cores: usize) -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let needed = LOCKED_BYTES_PER_CORE * cores as u64;
    if limit < needed {
        bail!(
            "{cores} cores need {} KiB of locked memory for their io_uring rings, but the limit is {} KiB: raise it \
             (`ulimit -l unlimited`, LimitMEMLOCK=infinity in systemd, --ulimit memlock=-1 in docker) or start with \
             --cores {}",
            needed / 1024,
            limit / 1024,
            (limit / LOCKED_BYTES_PER_CORE).max(1),
        );
    }
    LocalExecutorBuilder::new(Placement::Unbound)
        .spawn(|| async {})
        .map_err(|error| anyhow::anyhow!("{error}"))
        .and_then(|executor| executor.join().map_err(|error| anyhow::anyhow!("{error}")))
        .context(
            "io_uring cannot be used here: revd needs Linux 5.8 or later with io_uring allowed \
             (sysctl kernel.io_uring_disabled=0; in containers a seccomp profile that permits io_uring_setup, \
             io_uring_enter and io_uring_register)",
        )?;
    Ok(())
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
