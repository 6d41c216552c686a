//! Threads beside the cores, on any CPU of the process. A thread inherits the one CPU of the core
//! that begins it, and would work there in turns with it.

use std::io;

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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
