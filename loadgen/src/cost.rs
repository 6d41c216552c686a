//! The cost of a run for the server, read from /proc (proc(5)) and from its metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::wire::client::addresses;

/// Where the cost of servers is seen.
#[derive(Debug, Clone, Default)]
pub struct CostSource {
    /// Their processes; none if they are not known.
    pub pids: Vec<u32>,
    /// The folder with all their data, if loadgen has made it.
    pub data_folder: Option<PathBuf>,
}

/// CPU, memory and disk of processes so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessUsage {
    /// CPU time of all threads, in nanoseconds.
    pub cpu: u64,
    /// Bytes of memory that no file backs.
    pub memory: u64,
    /// Bytes written to disks.
    pub written: u64,
    /// Context switches.
    pub switches: u64,
    /// Syncs of the log and of the store, where the server counts them.
    pub syncs: Option<u64>,
}

/// The cost of a measured interval for the server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cost {
    /// CPU seconds.
    pub cpu_seconds: f64,
    /// CPU microseconds for each operation.
    pub cpu_us_per_op: f64,
    /// Memory at the end, in bytes.
    pub memory_bytes: u64,
    /// Bytes written for each operation.
    pub written_bytes_per_op: f64,
    /// Context switches in a million operations.
    pub switches_per_million: f64,
    /// Syncs in a million operations, where the server counts them.
    pub syncs_per_million: Option<f64>,
}

impl ProcessUsage {
    /// Of these processes together.
    #[must_use]
    pub fn of(pids: &[u32]) -> Self {
        let mut sum = Self::default();
        for pid in pids {
            let read =
                |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
            sum.memory += value(&read("status"), "RssAnon:") * 1024;
            sum.written += value(&read("io"), "write_bytes:");
            for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                let running = read("schedstat");
                sum.cpu += running.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
                let status = read("status");
                sum.switches += value(&status, "voluntary_ctxt_switches:");
                sum.switches += value(&status, "nonvoluntary_ctxt_switches:");
            }
        }
        sum
    }

    /// The difference to `before`, spread over so many operations.
    #[must_use]
    pub fn since(&self, before: &Self, ops: u64) -> Cost {
        let each = |amount: u64| amount as f64 / ops.max(1) as f64;
        let cpu = self.cpu.saturating_sub(before.cpu);
        let syncs = self.syncs.zip(before.syncs).map(|(now, before)| now.saturating_sub(before));
        Cost {
            cpu_seconds: cpu as f64 / 1e9,
            cpu_us_per_op: each(cpu) / 1e3,
            memory_bytes: self.memory,
            written_bytes_per_op: each(self.written.saturating_sub(before.written)),
            switches_per_million: each(self.switches.saturating_sub(before.switches)) * 1e6,
            syncs_per_million: syncs.map(|syncs| each(syncs) * 1e6),
        }
    }
}

/// The number behind a word at the start of a line; 0 if there is none.
fn value(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A process that is there and may be looked at.
///
/// # Errors
/// With the id in it.
pub fn check(pid: u32) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io"));
    text.map_err(|error| anyhow::anyhow!("--server-pid {pid}: cannot read /proc/{pid}/io: {error}"))?;
    Ok(())
}

/// The syncs that the servers at these endpoints have counted; none if one does not count them.
#[must_use]
pub fn syncs(endpoints: &[String]) -> Option<u64> {
    endpoints.iter().map(|endpoint| syncs_of(endpoint)).sum()
}

/// How many syncs a server has counted in its metrics.
fn syncs_of(endpoint: &str) -> Option<u64> {
    const COUNTS: [&str; 2] =
        ["etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count"];
    /// Metrics are no longer than this.
    const BYTES_MAX: u64 = 16 << 20;
    let address = *addresses(endpoint).ok()?.first()?;
    let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(2)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: loadgen\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = Vec::new();
    socket.take(BYTES_MAX).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<f64>().ok()
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    let sum = COUNTS.into_iter().map(count).sum::<Option<f64>>()? as u64;
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_costs_something() {
        let pid = std::process::id();
        check(pid).unwrap();
        assert!(check(0).is_err());
        let before = ProcessUsage::of(&[pid]);
        let mut sum = 0_u64;
        while ProcessUsage::of(&[pid]).cpu < before.cpu + 20_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let after = ProcessUsage::of(&[pid]);
        assert!(after.memory > 0);
        let cost = after.since(&before, 1000);
        assert!(cost.cpu_us_per_op >= 20.0 && cost.syncs_per_million.is_none(), "{cost:?}");
    }
}
