//! Servers that a run starts itself: any program that takes etcd's flags, on a fresh directory,
//! ended with the run.

use std::ffi::OsStr;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::accounts;
use crate::certificates::ServerCertificate;
use crate::clock;
use crate::clock::SECOND;
use crate::cost::{CostSource, ProcessUsage};
use crate::disk::DiskRoom;
use crate::login;
use crate::probe;
use crate::started::{self, OwnFolder, OwnProcess};
use crate::wire::client::host;
use crate::wire::tls;
use crate::wire::users::{self, Credentials};

/// How long a server has to come up.
const PATIENCE: u64 = 60 * SECOND;

/// More than any measurement stores, in bytes.
const QUOTA: &str = "68719476736";

/// A server program that is there.
#[derive(Debug, Clone, Default)]
pub struct Program {
    /// Its label in tables.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
    /// Its version, from `--version`.
    pub version: String,
    /// It is revd, by its `--version`: etcd takes no flag for memory.
    pub is_revd: bool,
    /// Its members hear each other: builds of revd of before then have no flag for that.
    pub takes_peers: bool,
}

/// A server to start.
#[derive(Debug, Clone, Default)]
pub struct ServerSpec {
    /// The server.
    pub program: Program,
    /// Flags of its own.
    pub flags: Vec<String>,
    /// Members of the cluster.
    pub members: usize,
    /// CPUs it may use; empty: those that loadgen was started with.
    pub cpus: Vec<usize>,
    /// Where its data goes; none: the system's place for temporary files.
    pub below: Option<PathBuf>,
    /// Its protection.
    pub security: Security,
    /// With TLS: it asks callers for certificates, and those of loadgen show one.
    pub asks_callers: bool,
}

/// The protection of a server, beside flags of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Security {
    /// TLS for clients, with certificates that are made for it.
    pub tls: bool,
    /// Users, with all defaults; the load is one's that may read and write all keys.
    pub auth: bool,
}

/// A running server, or a cluster of them.
#[derive(Debug)]
pub struct Servers {
    /// As in [`Program`].
    pub name: String,
    /// Where clients go.
    pub endpoints: Vec<String>,
    /// Command and process of each member.
    members: Vec<(Command, OwnProcess)>,
    /// CPUs of all members.
    cpus: CpuSet,
    /// Its authority counts for as long as it lives.
    _trusted: Option<tls::Trusted>,
    /// Removed with it.
    data: OwnFolder,
}

/// Where a program is looked for: an etcd of the distribution, of any version, comes last.
fn folders(beside: Option<&Path>, path: &OsStr) -> Vec<PathBuf> {
    // Where this project builds the servers it compares itself with.
    let peers = beside.and_then(|own| Some(own.parent()?.join("peers")));
    beside.map(Path::to_owned).into_iter().chain(peers).chain(std::env::split_paths(path)).collect()
}

/// Reads `revd`, `etcd`, a path, or `name=path`.
///
/// # Errors
/// When there is no such program.
pub fn find(text: &str) -> anyhow::Result<Program> {
    let (name, program) = match text.split_once('=') {
        Some((name, program)) => (Some(name), program),
        None => (None, text),
    };
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = folders(beside.as_deref(), &path);
    let found = if program.contains('/') {
        Some(PathBuf::from(program)).filter(|path| path.is_file())
    } else {
        folders.iter().map(|folder| folder.join(program)).find(|path| path.is_file())
    };
    let found = found.with_context(|| {
        format!("there is no program `{program}`, neither beside loadgen, in target/peers nor on the PATH")
    })?;
    let own_name = found.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.map_or_else(|| own_name.unwrap_or_default(), str::to_owned);
    let said = Command::new(&found).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output();
    let said = said.with_context(|| format!("running {} --version", found.display()))?.stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let line = |start: &str| said.lines().find_map(|line| line.strip_prefix(start));
    let (revd, etcd) = (line("revd Version: "), line("etcd Version: "));
    let version = match (revd, etcd) {
        (Some(version), _) => format!("revd {version}"),
        (None, Some(version)) => format!("etcd {version}"),
        (None, None) => "of an unknown version".to_owned(),
    };
    let help = Command::new(&found).arg("--help").stdin(Stdio::null()).output();
    let help = help.with_context(|| format!("running {} --help", found.display()))?;
    let help = String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).into_owned();
    let takes_peers = help.contains("--listen-peer-urls");
    Ok(Program { name, path: found, version, is_revd: revd.is_some(), takes_peers })
}

/// Gives two programs of one name, such as two builds of one server, different labels.
pub fn tell_apart(a: &mut Program, b: &mut Program) {
    if a.name == b.name {
        a.name += " (a)";
        b.name += " (b)";
    }
}

/// Reads a list of CPUs: `0`, `0-3`, `0,2`.
///
/// # Errors
/// When it is none.
pub fn cpus(text: &str) -> anyhow::Result<Vec<usize>> {
    let number = |text: &str| {
        text.trim()
            .parse::<usize>()
            .with_context(|| format!("`{text}` is no CPU: 0, 0-3 or 0,2 are lists of them"))
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
            None => cpus.push(number(part)?),
        }
    }
    Ok(cpus)
}

/// Keeps this thread, and threads it starts later, on these CPUs. Servers stay on their own.
///
/// # Errors
/// When the system refuses.
pub fn pin(cpus: &[usize]) -> anyhow::Result<()> {
    at_start()?;
    if !cpus.is_empty() {
        sched_setaffinity(None, &cpu_set(cpus)).with_context(|| format!("keeping to CPUs {cpus:?}"))?;
    }
    Ok(())
}

/// The CPUs that loadgen was started with, and how many of them it may keep busy: asked for before
/// any thread is pinned.
fn at_start() -> anyhow::Result<(CpuSet, usize)> {
    static AT_START: OnceLock<(CpuSet, usize)> = OnceLock::new();
    let now = sched_getaffinity(None)?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(*AT_START.get_or_init(|| (now, cores)))
}

/// Cores of the machine, also when loadgen keeps to some of them.
#[must_use]
pub fn cores() -> usize {
    at_start().map_or(1, |(_, cores)| cores)
}

fn cpu_set(cpus: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

/// So many addresses that are free. All are taken before the first is given back: the system may
/// give an address again at once.
fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let taken: io::Result<Vec<_>> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    Ok(taken?.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?)
}

impl ServerSpec {
    /// Where its data goes.
    #[must_use]
    pub fn data_folder(&self) -> PathBuf {
        self.below.clone().unwrap_or_else(std::env::temp_dir)
    }
}

impl Servers {
    /// Starts all members and waits until each answers.
    ///
    /// # Errors
    /// With the last lines of its log, when it does not come up.
    pub fn start(spec: &ServerSpec) -> anyhow::Result<Self> {
        let folder = spec.data_folder();
        let data = started::folder_in(&folder, "loadgen-");
        let data = data.with_context(|| format!("making a folder in {}", folder.display()))?;
        let certificate = if spec.security.tls { Some(ServerCertificate::make(data.path())?) } else { None };
        let trusted = certificate.as_ref().map(|own| tls::trust(own, spec.asks_callers)).transpose()?;
        let members = spec.members.max(1);
        let mut peers = Vec::new();
        let mut clients = Vec::new();
        for pair in free_addresses(2 * members)?.chunks_exact(2) {
            peers.push(format!("http://{}", pair[0]));
            // A server with a certificate is asked over TLS; `--cacert` has its authority.
            let is_secure = spec.security.tls
                || spec.flags.iter().any(|flag| flag.starts_with("--cert-file") || flag == "--auto-tls");
            let scheme = if is_secure { "https" } else { "http" };
            clients.push(format!("{scheme}://{}", pair[1]));
        }
        // Its own users are made later, if it has any: those of the command line are not its.
        clients.iter().try_for_each(|endpoint| host(endpoint).map(users::set_nobody_for))?;
        let cluster: Vec<_> = peers.iter().enumerate().map(|(at, peer)| format!("m{at}={peer}")).collect();
        let cpus = if spec.cpus.is_empty() { at_start()?.0 } else { cpu_set(&spec.cpus) };
        let mut servers = Self {
            name: spec.program.name.clone(),
            endpoints: clients.clone(),
            members: Vec::new(),
            cpus,
            _trusted: trusted,
            data,
        };
        for (at, (peer, client)) in peers.iter().zip(&clients).enumerate() {
            let folder = servers.data.path().join(format!("m{at}"));
            let mut command = started::command(&spec.program.path);
            command.args(["--name", &format!("m{at}"), "--data-dir"]).arg(&folder);
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--initial-advertise-peer-urls", peer, "--initial-cluster", &cluster.join(",")]);
            if members > 1 || spec.program.takes_peers {
                command.args(["--listen-peer-urls", peer]);
            }
            command.args(["--log-level", "error", "--quota-backend-bytes", QUOTA]).args(&spec.flags);
            command.args(certificate.iter().flat_map(ServerCertificate::flags));
            if let Some(own) = certificate.as_ref().filter(|_| spec.asks_callers) {
                command.args(["--client-cert-auth", "--trusted-ca-file", &own.authority]);
            }
            let child = servers.spawn(&mut command, at)?;
            servers.members.push((command, child));
        }
        servers.wait()?;
        let leader = servers.leader()?;
        if spec.security.auth {
            let user = accounts::set_up(&servers.endpoints[leader])?;
            servers.endpoints.iter().try_for_each(|endpoint| servers.belongs_to(endpoint, &user))?;
        }
        Ok(servers)
    }

    /// Calls to a member are this user's, from when it knows of it on.
    fn belongs_to(&self, endpoint: &str, user: &Credentials) -> anyhow::Result<()> {
        users::set_for(host(endpoint)?, user.clone());
        let until = clock::nanos() + PATIENCE;
        while let Err(error) = login::token(endpoint) {
            anyhow::ensure!(clock::nanos() < until, "{}: {error:#}", self.name);
            clock::rest(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Starts a member on the CPUs of the servers, whatever those of this thread are.
    fn spawn(&self, command: &mut Command, member: usize) -> anyhow::Result<OwnProcess> {
        let log = std::fs::File::options().create(true).append(true).open(self.log(member))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let own = sched_getaffinity(None)?;
        sched_setaffinity(None, &self.cpus).context("keeping a server to its CPUs")?;
        let child = started::spawn(command);
        sched_setaffinity(None, &own)?;
        child.with_context(|| format!("starting {}", self.name))
    }

    fn log(&self, member: usize) -> PathBuf {
        self.data.path().join(format!("m{member}.log"))
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        (0..self.members.len()).try_for_each(|member| self.wait_for(member))
    }

    /// Waits until a member answers.
    ///
    /// # Errors
    /// With the last lines of its log, when it does not.
    pub fn wait_for(&mut self, member: usize) -> anyhow::Result<()> {
        let until = clock::nanos() + PATIENCE;
        while probe::status(&self.endpoints[member]).is_err() {
            anyhow::ensure!(started::signal().is_none(), "interrupted");
            let ended = self.members[member].1.try_wait()?;
            if ended.is_some() || clock::nanos() > until {
                let said = std::fs::read_to_string(self.log(member)).unwrap_or_default();
                let last: Vec<_> = said.lines().rev().take(5).collect();
                let last: Vec<_> = last.into_iter().rev().collect();
                let what = ended
                    .map_or_else(|| "does not answer".to_owned(), |status| format!("has ended ({status})"));
                bail!("{} {what}; its last log lines:\n{}", self.name, last.join("\n"));
            }
            clock::rest(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The member that leads, as soon as one does.
    ///
    /// # Errors
    /// When none does for long.
    pub fn leader(&self) -> anyhow::Result<usize> {
        let until = clock::nanos() + PATIENCE;
        let leads = |endpoint: &String| probe::status(endpoint).is_ok_and(|status| status.is_leader);
        loop {
            if let Some(leader) = self.endpoints.iter().position(leads) {
                return Ok(leader);
            }
            anyhow::ensure!(clock::nanos() < until, "{}: no member leads", self.name);
            clock::rest(Duration::from_millis(10));
        }
    }

    /// All addresses, that of the leader first: a single caller calls the leader of any cluster.
    ///
    /// # Errors
    /// As [`Self::leader`].
    pub fn endpoints_from_leader(&self) -> anyhow::Result<Vec<String>> {
        let mut endpoints = self.endpoints.clone();
        endpoints.rotate_left(self.leader()?);
        Ok(endpoints)
    }

    /// The address of a member that does not lead; of the only one, if there is no other.
    ///
    /// # Errors
    /// As [`Self::leader`].
    pub fn follower_endpoint(&self) -> anyhow::Result<&str> {
        Ok(&self.endpoints[(self.leader()? + 1) % self.endpoints.len()])
    }

    /// The processes.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.members.iter().map(|(_, child)| child.id()).collect()
    }

    /// Where their cost is seen.
    #[must_use]
    pub fn cost_source(&self) -> CostSource {
        CostSource { pids: self.pids(), data_folder: Some(self.data.path().to_owned()) }
    }

    /// The first member's address.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoints[0]
    }

    /// Where its data, logs and certificates are.
    #[must_use]
    pub fn data_folder(&self) -> &Path {
        self.data.path()
    }

    /// CPU, memory and disk of all members so far.
    #[must_use]
    pub fn usage(&self) -> ProcessUsage {
        ProcessUsage::of(&self.pids())
    }

    /// CPU time of all members so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.usage().cpu)
    }

    /// Bytes that the data directories take on disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        DiskRoom::below(self.data.path()).allocated
    }

    /// Asks all members to stop, waits until they have, and starts them again; returns when each
    /// answers.
    ///
    /// # Errors
    /// With the last lines of its log, when a member does not come up again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        (0..self.members.len()).try_for_each(|member| self.stop(member))?;
        (0..self.members.len()).try_for_each(|member| self.start_again(member))?;
        self.wait()
    }

    /// Has all members stand still until the returned value is dropped: the CPU that a server takes
    /// by itself, as for its garbage, is then not missed by another one that is measured.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn paused(&self) -> anyhow::Result<PausedServers> {
        let mut paused = PausedServers(Vec::new());
        for pid in self.pids().into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            kill_process(pid, Signal::STOP).with_context(|| format!("pausing {}", self.name))?;
            paused.0.push(pid);
        }
        Ok(paused)
    }

    /// Ends a member at once, as kill -9 does.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn kill(&mut self, member: usize) -> anyhow::Result<()> {
        let child = &mut self.members[member].1;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks a member to stop, and waits until it has.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn stop(&mut self, member: usize) -> anyhow::Result<()> {
        let child = &mut self.members[member].1;
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).context("asking a server to stop")?;
        }
        child.wait()?;
        Ok(())
    }

    /// Starts a member that has ended, and does not wait for it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn start_again(&mut self, member: usize) -> anyhow::Result<()> {
        let mut command = std::mem::replace(&mut self.members[member].0, Command::new(""));
        self.members[member].1 = self.spawn(&mut command, member)?;
        self.members[member].0 = command;
        Ok(())
    }
}

/// Members that stand still; they go on when this is dropped.
#[derive(Debug)]
pub struct PausedServers(Vec<Pid>);

impl Drop for PausedServers {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = kill_process(*pid, Signal::CONT); // or it has ended
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0,2-4").unwrap(), [0, 2, 3, 4]);
        assert!(cpus("a").is_err() && cpus("").is_err());
    }

    #[test]
    fn a_server_that_is_started_again_keeps_its_cpus() {
        let (all, cores) = at_start().unwrap();
        let there: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
        let (first, last) = (there[0], there[there.len() - 1]);
        let mut servers = Servers {
            name: "fake".to_owned(),
            endpoints: vec!["http://127.0.0.1:1".to_owned()],
            members: Vec::new(),
            cpus: cpu_set(&[first]),
            _trusted: None,
            data: started::folder_in(&std::env::temp_dir(), "loadgen-").unwrap(),
        };
        let mut sleeps = Command::new("sleep");
        let child = servers.spawn(sleeps.arg("60"), 0).unwrap();
        let mut tells = Command::new("grep");
        tells.args(["Cpus_allowed_list", "/proc/self/status"]);
        servers.members.push((tells, child));
        pin(&[last]).unwrap();
        let ended = servers.restart().unwrap_err().to_string();
        assert!(ended.ends_with(&format!("Cpus_allowed_list:\t{first}")), "{ended}");
        assert!(sched_getaffinity(None).unwrap() == cpu_set(&[last]));
        assert!(at_start().unwrap() == (all, cores), "servers without CPUs of their own have all");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = find("no-such-server").unwrap_err().to_string();
        assert!(error.contains("no-such-server"), "{error}");
        let found = find("shell=/bin/sh").unwrap();
        assert_eq!((found.name.as_str(), found.path.as_path()), ("shell", Path::new("/bin/sh")));
        assert!(!found.is_revd);
    }

    #[test]
    fn our_own_peers_come_before_those_of_the_distribution() {
        let folders = folders(Some(Path::new("/t/release")), OsStr::new("/usr/bin:/bin"));
        let expected = ["/t/release", "/t/peers", "/usr/bin", "/bin"].map(PathBuf::from);
        assert_eq!(folders, expected);
    }

    #[test]
    fn two_builds_of_one_server_have_two_labels() {
        let named = |name: &str| Program { name: name.to_owned(), ..Program::default() };
        let (mut a, mut b) = (named("revd"), named("revd"));
        tell_apart(&mut a, &mut b);
        assert_eq!((a.name.as_str(), b.name.as_str()), ("revd (a)", "revd (b)"));
        let mut c = named("etcd");
        tell_apart(&mut a, &mut c);
        assert_eq!((a.name.as_str(), c.name.as_str()), ("revd (a)", "etcd"));
    }
}
