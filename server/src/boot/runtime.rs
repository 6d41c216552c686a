//! Whether this machine lets us run at all, and what to do if not.

use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context as _, bail};
use glommio::{LocalExecutorBuilder, Placement};
use revd_member::cluster::membership::Membership;
use revd_member::urls;
use revd_proto::etcdserverpb::Member;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

use crate::config::Config;
use crate::limits;
use crate::observe::log;

/// glommio wants to be allowed to lock this much memory.
const LOCKED_BYTES_MIN: u64 = 512 * 1024;

/// Lets this process open as many files as it may, and has the kernel do at once, for a process of
/// one thread, what takes 10 to 20 ms where others run beside it (it waits for them): a table of
/// descriptors with room for all connections, and the fence between cores. So it comes before any
/// thread of a member.
pub fn prepare(cores: Option<usize>) {
    glommio::early_init();
    let limit = getrlimit(Resource::Nofile);
    // If this fails, fewer connections are accepted; nothing else depends on it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let cores = cores.or_else(|| allowed_cpus().ok().map(|cpus| cpus.len())).unwrap_or(1);
    let files_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    make_room_for_descriptors(limits::CONNECTIONS_PER_CORE_MAX.saturating_mul(cores), files_max);
}

/// Starts and ends one executor, so that a missing piece is named before anything else happens.
///
/// # Errors
/// When io_uring is missing or forbidden, or too little memory may be locked; the text says what to
/// do.
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

/// A core file would have passwords and keys in it that were in use: there is none unless the
/// operator asks for it. The process stays open to debuggers of its own user.
pub fn limit_core_files(are_wanted: bool) {
    if are_wanted {
        return;
    }
    let maximum = getrlimit(Resource::Core).maximum;
    if let Err(error) = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum }) {
        log::warn("core files cannot be forbidden", json!({"error": error.to_string()}));
    }
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

/// Connections that there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionPlaces {
    /// Of clients.
    pub clients: usize,
    /// That others open to the peer port.
    pub peers: usize,
    /// Of those that ask for metrics and health at addresses of their own.
    pub metrics: usize,
}

impl ConnectionPlaces {
    /// How `left` of them are shared. Those of metrics have places only where they have addresses.
    fn of(left: usize, has_metrics: bool) -> Self {
        let part = left / limits::PEER_CONNECTIONS_PART;
        let peers = part.min(limits::PEER_CONNECTIONS_MAX);
        let metrics = part.clamp(1, limits::METRICS_CONNECTIONS_MAX).min(left.saturating_sub(1));
        let metrics = if has_metrics { metrics } else { 0 };
        Self { clients: left - peers - metrics, peers, metrics }
    }
}

/// How many connections, each of which is an open file, there is room for beside what `cores` cores
/// and the sockets that it listens on need, and what is kept for the log and the tree.
///
/// # Errors
/// When there is no room for a client.
pub fn connection_places(cores: usize, config: &Config) -> anyhow::Result<ConnectionPlaces> {
    let has_metrics = !config.metrics_addresses.is_empty();
    let of_each_core = config.client_addresses.len() + config.metrics_addresses.len();
    let listeners = cores * of_each_core + config.cluster.peer_addresses.len();
    let Some(files_max) = getrlimit(Resource::Nofile).current else {
        return Ok(ConnectionPlaces::of(usize::MAX, has_metrics));
    };
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let of_cores = limits::FILES_PER_CORE * cores as u64 + listeners as u64;
    let left = files_max.saturating_sub(open + limits::FILES_RESERVED + of_cores);
    if left == 0 {
        bail!(
            "this process may open {files_max} files, the member itself needs {}, which leaves none for clients: allow more \
             (`ulimit -n`, LimitNOFILE= in systemd, --ulimit nofile= in docker)",
            open + limits::FILES_RESERVED + of_cores
        );
    }
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    Ok(ConnectionPlaces::of(left, has_metrics))
}

/// The kernel doubles the table of a process's descriptors when it is full, and while others of its
/// threads run, the one that asked for one more stands still for it: 10 to 22 ms (it waits for an
/// RCU grace period). It is large enough from here on; it never shrinks.
fn make_room_for_descriptors(connections: usize, files_max: u64) {
    let wanted = (connections as u64).saturating_add(limits::FILES_RESERVED).min(files_max);
    let least = RawFd::try_from(wanted.saturating_sub(1)).unwrap_or(RawFd::MAX);
    // If this fails, clients wait a moment when there are more of them than ever; nothing else
    // depends on it.
    let _ = UnixDatagram::unbound().map(|any| drop(rustix::io::fcntl_dupfd_cloexec(&any, least)));
}

/// Members on one machine begin with different CPUs, so that their log cores do not share one.
/// Each holds a name for the CPU that its first core is on, which ends with the process: a socket
/// without a file, bound to nothing else.
pub struct FirstCpu(#[expect(dead_code, reason = "it is held")] Option<UnixDatagram>);

/// Puts the CPU first that the fewest members on this machine begin with.
pub fn take_first_cpu(cpus: &mut [usize]) -> FirstCpu {
    for members in 0..limits::MEMBERS_PER_CPU_MAX {
        for (at, cpu) in cpus.iter().enumerate() {
            let name = format!("revd/first-cpu/{cpu}/{members}");
            let address = SocketAddr::from_abstract_name(name);
            if let Ok(held) = address.and_then(|address| UnixDatagram::bind_addr(&address)) {
                cpus.rotate_left(at);
                return FirstCpu(Some(held));
            }
        }
    }
    FirstCpu(None)
}

/// Members with a URL that has a host of this member's, itself among them: they share the CPUs of
/// one machine.
pub fn members_on_host(membership: &Membership, own: u64) -> usize {
    let hosts = |member: &Member| -> Vec<String> {
        let authorities = member.peer_ur_ls.iter().map(|url| urls::authority(url));
        let hosts = authorities.map(|it| it.rsplit_once(':').map_or(it, |(host, _)| host));
        hosts.map(str::to_owned).collect()
    };
    let here = membership.member(own).map(hosts).unwrap_or_default();
    let members = membership.members();
    members.filter(|member| hosts(member).iter().any(|host| here.contains(host))).count().max(1)
}

/// The CPUs this process may run on.
///
/// # Errors
/// When the kernel does not say.
pub fn allowed_cpus() -> anyhow::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).context("asking which CPUs this process may use")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_members_and_metrics_have_places_of_their_own() {
        let of = |left, has_metrics| {
            let ConnectionPlaces { clients, peers, metrics } = ConnectionPlaces::of(left, has_metrics);
            (clients, peers, metrics)
        };
        assert_eq!((of(80, false), of(80, true)), ((70, 10, 0), (60, 10, 10)));
        assert_eq!(of(100_000, true), (100_000 - 256 - 64, 256, 64));
        assert_eq!((of(1, true), of(2, true), of(2, false)), ((1, 0, 0), (1, 0, 1), (2, 0, 0)));
    }

    #[test]
    fn the_table_of_descriptors_has_room_for_the_connections_that_there_may_be() {
        let slots = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        };
        let files_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(40_000);
        make_room_for_descriptors(usize::try_from(files_max).unwrap() / 2, files_max);
        assert!(slots() >= files_max / 2, "{} of {files_max}", slots());
        make_room_for_descriptors(usize::MAX, files_max);
        assert!(slots() >= files_max, "{} of {files_max}", slots());
    }

    #[test]
    fn members_of_one_host_are_counted() {
        let member = |id, urls: &[&str]| {
            let urls = urls.iter().map(|url| (*url).to_owned()).collect();
            Member { id, peer_ur_ls: urls, ..Member::default() }
        };
        let of = |members: &[Member], own| {
            members_on_host(&Membership::new(members.iter().cloned(), std::iter::empty()), own)
        };
        let three = [
            member(1, &["http://10.0.0.1:2380"]),
            member(2, &["http://10.0.0.2:2380"]),
            member(3, &["http://10.0.0.1:2480", "http://h:1"]),
        ];
        assert_eq!((of(&three, 1), of(&three, 2), of(&three, 3)), (2, 1, 2));
        assert_eq!((of(&[], 1), of(&three, 4)), (1, 1));
    }

    #[test]
    fn members_begin_with_the_cpu_that_the_fewest_others_begin_with() {
        // CPUs that there are not, so that members on this machine have no part in it.
        let mut members = Vec::new();
        let mut begin = || {
            let mut cpus = [5_001, 5_002];
            members.push(take_first_cpu(&mut cpus));
            cpus
        };
        assert_eq!([begin(), begin(), begin()], [[5_001, 5_002], [5_002, 5_001], [5_001, 5_002]]);
        members.remove(0);
        let mut cpus = [5_001, 5_002];
        let _first = take_first_cpu(&mut cpus);
        assert_eq!(cpus, [5_001, 5_002], "a member that ends makes room");
    }
}
