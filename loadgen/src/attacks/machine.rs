//! Moments in which the machine stands still for everything on it: the host of a virtual machine
//! takes its CPUs away for milliseconds, the more often the busier they are. A thread of the
//! highest priority on each CPU wakes two thousand times a second and notes when it is late. Only
//! moments count in which all of them were: one CPU alone may be kept by the kernel, which works
//! for the server, too. A kernel that is busy on all CPUs at once looks the same as the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::priority;
use crate::clock;

/// Between two looks of a thread.
const INTERVAL: Duration = Duration::from_micros(500);
/// A thread that wakes this much later than it wanted had no CPU.
const LATE: Duration = Duration::from_micros(300);

/// A time, in nanoseconds of `clock::nanos`, from its begin to its end.
pub(super) type Span = (u64, u64);

/// The threads that look.
pub(super) struct MachineWatch {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Span>>>,
}

impl MachineWatch {
    /// Looks from now on, on all CPUs that this program may use; it returns when all threads do.
    pub(super) fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        let (looks, begun) = channel::<()>();
        let look = |cpu| {
            let (is_over, looks) = (Arc::clone(&is_over), looks.clone());
            std::thread::spawn(move || looked(cpu, &is_over, || drop(looks)))
        };
        let threads = cpus.map(look).collect();
        drop(looks);
        let _ = begun.recv(); // until the last thread has dropped its end
        Self { threads, is_over }
    }

    /// When the machine stood still since the start; nothing where a program may not have the
    /// priority that this takes.
    pub(super) fn end(self) -> Stood {
        self.is_over.store(true, Ordering::Relaxed);
        let spans = self.threads.into_iter().map(|thread| thread.join().unwrap_or_default());
        Stood(spans.reduce(|all, of_one| common(&all, &of_one)).unwrap_or_default())
    }
}

/// Spans in which the machine stood still, in order.
pub(super) struct Stood(Vec<Span>);

impl Stood {
    /// How long a call took but for the time in which the machine stood still, in nanoseconds.
    pub(super) fn took(&self, (began, ended): Span) -> u64 {
        let first = self.0.partition_point(|(_, until)| *until <= began);
        let within = self.0[first..].iter().take_while(|(from, _)| *from < ended);
        let stood: u64 = within.map(|(from, until)| ended.min(*until) - began.max(*from)).sum();
        (ended - began) - stood
    }
}

/// Spans that both have in common; each has them in order, and none twice.
fn common(one: &[Span], other: &[Span]) -> Vec<Span> {
    let (mut common, mut left, mut right) = (Vec::new(), one.iter().peekable(), other.iter().peekable());
    while let (Some((from, until)), Some((other_from, other_until))) = (left.peek(), right.peek()) {
        let (later, earlier) = (*from.max(other_from), *until.min(other_until));
        if later < earlier {
            common.push((later, earlier));
        }
        if until < other_until {
            left.next();
        } else {
            right.next();
        }
    }
    common
}

fn looked(cpu: usize, is_over: &AtomicBool, looks: impl FnOnce()) -> Vec<Span> {
    let mut only = CpuSet::new();
    only.set(cpu);
    if sched_setaffinity(None, &only).is_err() || !priority::come_first_of_all() {
        return Vec::new();
    }
    looks();
    let mut stood = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let wanted = clock::nanos() + clock::in_nanos(INTERVAL);
        clock::rest(INTERVAL);
        let woken = clock::nanos();
        if woken > wanted + clock::in_nanos(LATE) {
            stood.push((wanted, woken));
        }
    }
    stood
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_stands_still_where_every_cpu_does() {
        assert_eq!(common(&[(0, 10), (20, 30)], &[(5, 25), (28, 40)]), [(5, 10), (20, 25), (28, 30)]);
        assert_eq!(common(&[(0, 10)], &[(10, 20)]), []);
        assert_eq!(common(&[(0, 10)], &[]), []);
    }

    #[test]
    fn a_call_took_as_long_as_the_machine_did_not_stand_still() {
        let stood = Stood(vec![(10, 20), (50, 60)]);
        let spans = [(0, 10), (0, 11), (12, 13), (20, 50), (19, 50), (20, 55), (60, 90), (0, 90)];
        assert_eq!(spans.map(|span| stood.took(span)), [10, 10, 0, 30, 30, 30, 30, 70]);
        assert_eq!(Stood(Vec::new()).took((0, 90)), 90);
    }

    /// A slow server stays slow, however often the machine stands still for a moment.
    #[test]
    fn what_a_server_does_shows_all_the_same() {
        let stood = Stood((0..1_000).map(|at| (at * 100, at * 100 + 3)).collect());
        assert!(stood.took((1_000, 3_000)) > 1_900);
    }

    /// A thread of the same priority that never rests has the CPU instead.
    #[test]
    fn a_cpu_that_is_taken_is_noticed() {
        if !std::thread::spawn(priority::come_first_of_all).join().unwrap() {
            eprintln!("skipped: programs of this user may not come first");
            return;
        }
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| sched_getaffinity(None).unwrap().is_set(*cpu)).unwrap();
        let (is_over, looking) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (over, begun) = (Arc::clone(&is_over), Arc::clone(&looking));
        let looks = std::thread::spawn(move || looked(cpu, &over, || begun.store(true, Ordering::Relaxed)));
        while !looking.load(Ordering::Relaxed) {
            clock::rest(Duration::from_millis(1));
        }
        let taken = std::thread::spawn(move || {
            let mut only = CpuSet::new();
            only.set(cpu);
            sched_setaffinity(None, &only).unwrap();
            assert!(priority::come_first_of_all());
            let began = clock::nanos();
            while clock::nanos() < began + 20_000_000 {}
            (began, clock::nanos())
        });
        let (began, ended) = taken.join().unwrap();
        is_over.store(true, Ordering::Relaxed);
        let stood = looks.join().unwrap();
        assert!(stood.iter().any(|(from, until)| *from < ended && *until > began), "{stood:?}");
    }
}
