//! Threads beside the cores, on any CPU of the process. A thread inherits the one CPU of the core
//! that begins it, and would work there in turns with it.

use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

/// Begins a thread that no core waits for.
///
/// # Errors
/// When the system has no thread.
pub fn begin(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let on_any_cpu = move || {
        // The main thread is on no CPU of its own. Where the system refuses, the thread stays.
        let main = rustix::process::getpid();
        if let Ok(cpus) = rustix::thread::sched_getaffinity(Some(main)) {
            let _ = rustix::thread::sched_setaffinity(None, &cpus);
        }
        work();
    };
    std::thread::Builder::new().name(name.into()).spawn(on_any_cpu).map(drop)
}

/// From now on the calling thread is less in the way of threads that wake: one that has not had
/// more than its share takes the CPU from one of a longer slice at once, where it would wait for
/// the end of an equal slice, which is a matter of milliseconds. A kernel before Linux 6.12 knows
/// no slices of threads, and takes the priority alone. No privilege is needed for it. Its rests end
/// as exactly as the system can.
///
/// # Errors
/// When the system refuses the slice; the thread has the priority alone.
pub fn give_way_to_others(nice: i32, slice: Duration) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or_default(),
        sched_policy: libc::SCHED_OTHER.cast_unsigned(),
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // Rests are short: the kernel would make each 50 us longer, to end several of them at once.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // SAFETY: the kernel reads as many bytes of the attributes as they say that they have; 0 is the
    // calling thread.
    let refused = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } != 0;
    if !refused {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), nice);
    Err(error)
}

/// The calling thread, which is no core, leaves its CPU to others for so long, and hardly longer
/// where none wants it. One that computes for seconds without a break may keep a thread of the
/// kernel from it for as long, whatever the priorities: those that end durable writes belong to no
/// process, and the process as a whole has its share of the CPU beside them. Puts beside a flood of
/// logins took up to five seconds (Linux 6.18, sessions in groups of their own).
#[expect(clippy::disallowed_methods, reason = "no core waits for this thread")]
pub fn rest(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::mpsc::channel;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The line of `/proc` of the calling thread that begins with this word; none where the system
    /// has none.
    fn of_scheduler(word: &str) -> Option<u64> {
        let text = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
        let line = text.lines().find(|line| line.split([' ', ':']).next() == Some(word))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    #[test]
    fn a_thread_that_gives_way_has_the_slice_and_priority_that_it_wants() {
        let told = std::thread::spawn(|| {
            let before = of_scheduler("se.slice");
            give_way_to_others(19, Duration::from_millis(100)).unwrap();
            let nice = rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
            (nice, before, of_scheduler("se.slice"))
        });
        let (nice, before, slice) = told.join().unwrap();
        assert_eq!(nice, 19);
        // Kernels before 6.12 show a slice that is no thread's own, or none.
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
        let knows_slices = (numbers.next(), numbers.next()) >= (Some(6), Some(12));
        if knows_slices && before.is_some() {
            assert_eq!(slice, Some(100_000_000));
        }
    }

    #[test]
    fn a_thread_of_a_pinned_core_runs_on_any_cpu() {
        let process = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let core = move || {
            let mut own = CpuSet::new();
            own.set((0..CpuSet::MAX_CPU).find(|cpu| process.is_set(*cpu)).unwrap());
            sched_setaffinity(None, &own).unwrap();
            let (tell, told) = channel();
            super::begin("helper", move || tell.send(sched_getaffinity(None).unwrap()).unwrap()).unwrap();
            (own, told.recv().unwrap())
        };
        let (own, helper) = std::thread::spawn(core).join().unwrap();
        assert_eq!(own.count(), 1);
        assert_eq!(helper.count(), process.count());
    }
}
