//! The member that has opened a connection: found through the process that owns its other end.

use std::net::SocketAddr;
use std::path::Path;

/// The number of the member whose process, a child of this one, has the dialling end of a
/// connection.
pub fn member_at(from: SocketAddr, proxy: SocketAddr) -> Option<usize> {
    let inode = inode_of(from, proxy)?;
    let target = format!("socket:[{inode}]");
    let own = format!("PPid:\t{}", std::process::id());
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let status = std::fs::read_to_string(process.path().join("status")).unwrap_or_default();
        if status.lines().any(|line| line == own) && has_file(&process.path(), &target) {
            let command = std::fs::read_to_string(process.path().join("cmdline")).ok()?;
            let mut words = command.split('\0').skip_while(|word| *word != "--name");
            return words.nth(1)?.strip_prefix('m')?.parse().ok();
        }
    }
    None
}

fn has_file(process: &Path, target: &str) -> bool {
    let files = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == target))
}

/// The inode of the dialling end of a connection, from the system's table of IPv4 connections
/// (proc_net(5)). Both addresses count: connections to different ones may begin at the same port.
fn inode_of(from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let ends = [as_in_table(from)?, as_in_table(to)?];
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let is_it = |line: &&str| line.split_whitespace().skip(1).take(2).eq(ends.iter().map(String::as_str));
    let inode = table.lines().find(is_it)?.split_whitespace().nth(9)?.parse().ok()?;
    (inode != 0).then_some(inode) // else the process has closed it
}

/// An address as a number of the machine: a little-endian one, as all that revd runs on.
fn as_in_table(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    Some(format!("{:08X}:{:04X}", u32::from_le_bytes(address.ip().octets()), address.port()))
}
