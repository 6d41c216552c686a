//! Memory, time and files of this process, as the kernel knows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::limits;
use crate::observe::exposition::{Exposition, Kind};
use crate::threads;

/// Bytes and seconds of this process, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Usage {
    resident_bytes: u64,
    virtual_bytes: u64,
    cpu: Duration,
    /// Since the machine's start.
    started: Duration,
}

/// Node view: figures of this process as they were at the last look, which is never a core's: the
/// kernel takes its time for some, the longer the more sockets are open.
#[derive(Debug, Default)]
pub struct ProcessFigures {
    resident_bytes: AtomicU64,
    virtual_bytes: AtomicU64,
    cpu_milliseconds: AtomicU64,
    /// Since 1970.
    started_milliseconds: AtomicU64,
    open_files: AtomicU64,
}

/// Looks at this process from time to time, on a thread of its own, as long as there are readers.
///
/// # Errors
/// When the system has no thread.
pub fn watch(figures: &Arc<ProcessFigures>) -> std::io::Result<()> {
    let boot = boot_time(&std::fs::read_to_string("/proc/stat").unwrap_or_default());
    figures.look(boot);
    let figures = Arc::downgrade(figures);
    let watching = move || {
        loop {
            std::thread::park_timeout(limits::PROCESS_INTERVAL);
            let Some(figures) = figures.upgrade() else { return };
            figures.look(boot);
        }
    };
    threads::begin("process", watching)
}

impl ProcessFigures {
    /// Asks the kernel; the machine was started at `boot`. Figures that it does not tell stay 0.
    fn look(&self, boot: Option<u64>) {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Some(usage) = usage(&stat, page, rustix::param::clock_ticks_per_second()) {
            self.resident_bytes.store(usage.resident_bytes, Ordering::Relaxed);
            self.virtual_bytes.store(usage.virtual_bytes, Ordering::Relaxed);
            self.cpu_milliseconds.store(milliseconds(usage.cpu), Ordering::Relaxed);
            let started = boot.map(|boot| milliseconds(Duration::from_secs(boot) + usage.started));
            self.started_milliseconds.store(started.unwrap_or(0), Ordering::Relaxed);
        }
        self.open_files.store(open_files().unwrap_or(0), Ordering::Relaxed);
    }

    /// Adds the metrics of the process, under the names that Prometheus's own clients give them.
    /// Figures that the kernel does not tell are left out.
    pub fn write(&self, to: &mut Exposition) {
        let get = |figure: &AtomicU64| Some(figure.load(Ordering::Relaxed)).filter(|figure| *figure > 0);
        if let (Some(resident), Some(taken)) = (get(&self.resident_bytes), get(&self.virtual_bytes)) {
            let help = "Memory of this process that is in RAM, in bytes. Pages of the mapped store count.";
            to.one("process_resident_memory_bytes", Kind::Gauge, help, resident);
            let help = "Addresses that this process has taken, in bytes.";
            to.one("process_virtual_memory_bytes", Kind::Gauge, help, taken);
            let help = "CPU time of this process, in seconds.";
            let cpu = Duration::from_millis(self.cpu_milliseconds.load(Ordering::Relaxed));
            to.one("process_cpu_seconds_total", Kind::Counter, help, cpu.as_secs_f64());
        }
        if let Some(started) = get(&self.started_milliseconds) {
            let help = "When this process was started, in seconds since 1970.";
            let at = Duration::from_millis(started).as_secs_f64();
            to.one("process_start_time_seconds", Kind::Gauge, help, at);
        }
        if let Some(open) = get(&self.open_files) {
            to.one("process_open_fds", Kind::Gauge, "Files and sockets that are open.", open);
            to.one("os_fd_used", Kind::Gauge, "Files and sockets that are open.", open);
        }
        if let Some(limit) = getrlimit(Resource::Nofile).current {
            to.one("process_max_fds", Kind::Gauge, "Files and sockets that may be open.", limit);
            to.one("os_fd_limit", Kind::Gauge, "Files and sockets that may be open.", limit);
        }
    }
}

/// Fields of `/proc/self/stat`; the second one is a name that may hold anything.
fn usage(stat: &str, page: u64, ticks: u64) -> Option<Usage> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // The first of these fields is the third of the file.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let time = |count: u64| Duration::from_millis(count.saturating_mul(1000) / ticks.max(1));
    Some(Usage {
        resident_bytes: field(24)?.saturating_mul(page),
        virtual_bytes: field(23)?,
        cpu: time(field(14)?.saturating_add(field(15)?)),
        started: time(field(22)?),
    })
}

/// When the machine was started, in seconds since 1970, by `/proc/stat`.
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Kernels since 6.2 say it at once; to count them takes as long as there are many.
fn open_files() -> Option<u64> {
    let told = std::fs::metadata("/proc/self/fd").map_or(0, |folder| folder.len());
    if told > 0 {
        return Some(told);
    }
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    u64::try_from(entries.count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let stat = "77 (a) b) (c) S 1 2 3 4 5 6 7 8 9 10 250 150 13 14 15 16 17 18 4200 1048576 300 21 22";
        let usage = usage(stat, 4096, 100).unwrap();
        assert_eq!(usage.resident_bytes, 300 * 4096);
        assert_eq!(usage.virtual_bytes, 1_048_576);
        assert_eq!(usage.cpu, Duration::from_secs(4));
        assert_eq!(usage.started, Duration::from_secs(42));
        for cut in ["", "77 (revd", "77 (revd) S 1 2"] {
            assert_eq!(super::usage(cut, 4096, 100), None);
        }
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_000));
    }

    #[test]
    fn this_process_has_memory_and_files() {
        let figures = Arc::new(ProcessFigures::default());
        let mut before = Exposition::default();
        figures.write(&mut before);
        assert!(!before.into_text().contains("process_open_fds"), "a scrape asks the kernel nothing");
        watch(&figures).unwrap();
        let mut text = Exposition::default();
        figures.write(&mut text);
        let text = text.into_text();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") <= value("process_max_fds"));
        assert!(value("process_start_time_seconds") > 1_600_000_000.0);
    }
}
