//! Servers that a run starts itself: anything that takes etcd's flags, on a fresh directory, ended with the run.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::clock;
use crate::probe;
use crate::record::SECOND;

/// How long a server has to come up.
const PATIENCE: u64 = 60 * SECOND;

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    /// What it is called in tables.
    pub name: String,
    /// Its program.
    pub program: PathBuf,
    /// Flags of its own.
    pub flags: Vec<String>,
    /// Members of the cluster.
    pub members: usize,
    /// CPUs it may use; empty: all.
    pub cpus: Vec<usize>,
    /// Where its data goes; none: the system's place for temporary files.
    pub below: Option<PathBuf>,
}

/// A running server, or a cluster of them.
#[derive(Debug)]
pub struct Servers {
    /// As in [`Spec`].
    pub name: String,
    /// Where clients go.
    pub endpoints: Vec<String>,
    children: Vec<Child>,
    /// Removed with it.
    data: tempfile::TempDir,
}

/// Reads `revd`, `etcd`, a path, or `name=path`.
///
/// # Errors
/// When there is no such program.
pub fn find(text: &str) -> anyhow::Result<(String, PathBuf)> {
    let (name, program) = match text.split_once('=') {
        Some((name, program)) => (Some(name), program),
        None => (None, text),
    };
    let beside = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = beside.iter().cloned().collect();
    folders.extend(std::env::split_paths(&path));
    // Where this project builds the servers it compares itself with.
    folders.extend(beside.and_then(|own| Some(own.parent()?.join("peers"))));
    let found = if program.contains('/') {
        Some(PathBuf::from(program)).filter(|path| path.is_file())
    } else {
        folders.iter().map(|folder| folder.join(program)).find(|path| path.is_file())
    };
    let found = found.with_context(|| {
        format!("there is no program `{program}`, neither beside loadgen nor on the PATH")
    })?;
    let own_name = found.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok((name.map_or_else(|| own_name.unwrap_or_default(), str::to_owned), found))
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

/// Keeps this thread, and what it starts, on these CPUs; what it had before.
///
/// # Errors
/// When the system refuses.
pub fn pin(cpus: &[usize]) -> anyhow::Result<CpuSet> {
    let before = sched_getaffinity(None)?;
    if !cpus.is_empty() {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set).with_context(|| format!("keeping to CPUs {cpus:?}"))?;
    }
    Ok(before)
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

impl Servers {
    /// Starts all members and waits until each answers.
    ///
    /// # Errors
    /// With what the server said last, when it does not come up.
    pub fn start(spec: &Spec) -> anyhow::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("loadgen-");
        let data = match &spec.below {
            Some(folder) => {
                builder.tempdir_in(folder).with_context(|| format!("making a folder in {}", folder.display()))
            }
            None => builder.tempdir().context("making a folder for data"),
        }?;
        let members = spec.members.max(1);
        let mut peers = Vec::new();
        let mut clients = Vec::new();
        for _ in 0..members {
            peers.push(format!("http://{}", free_address()?));
            clients.push(format!("http://{}", free_address()?));
        }
        let cluster: Vec<_> = peers.iter().enumerate().map(|(at, peer)| format!("m{at}={peer}")).collect();
        let mut servers =
            Self { name: spec.name.clone(), endpoints: clients.clone(), children: Vec::new(), data };
        let before = pin(&spec.cpus)?;
        for (at, (peer, client)) in peers.iter().zip(&clients).enumerate() {
            let folder = servers.data.path().join(format!("m{at}"));
            let log = std::fs::File::create(servers.log(at))?;
            let mut command = Command::new(&spec.program);
            command.args(["--name", &format!("m{at}"), "--data-dir"]).arg(&folder);
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--initial-advertise-peer-urls", peer, "--initial-cluster", &cluster.join(",")]);
            if !is_alone(spec, members) {
                command.args(["--listen-peer-urls", peer]);
            }
            command.args(["--log-level", "error", "--quota-backend-bytes", "17179869184"]).args(&spec.flags);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn().with_context(|| format!("starting {}", spec.program.display()))?;
            servers.children.push(child);
        }
        sched_setaffinity(None, &before)?;
        servers.wait()?;
        Ok(servers)
    }

    fn log(&self, member: usize) -> PathBuf {
        self.data.path().join(format!("m{member}.log"))
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let until = clock::nanos() + PATIENCE;
        for at in 0..self.children.len() {
            while probe::status(&self.endpoints[at]).is_err() {
                let ended = self.children[at].try_wait()?;
                if ended.is_some() || clock::nanos() > until {
                    let said = std::fs::read_to_string(self.log(at)).unwrap_or_default();
                    let last: Vec<_> = said.lines().rev().take(5).collect();
                    let last: Vec<_> = last.into_iter().rev().collect();
                    let what = ended.map_or_else(
                        || "does not answer".to_owned(),
                        |status| format!("has ended ({status})"),
                    );
                    bail!("{} {what}; it said:\n{}", self.name, last.join("\n"));
                }
                clock::rest(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// The processes.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }
}

/// revd alone has no port for peers yet, and takes no flag for one.
fn is_alone(spec: &Spec, members: usize) -> bool {
    members == 1 && spec.program.file_name().is_some_and(|name| name == "revd")
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0,2-4").unwrap(), [0, 2, 3, 4]);
        assert!(cpus("a").is_err() && cpus("").is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = find("no-such-server").unwrap_err().to_string();
        assert!(error.contains("no-such-server"), "{error}");
        let (name, program) = find("shell=/bin/sh").unwrap();
        assert_eq!((name.as_str(), program.as_path()), ("shell", Path::new("/bin/sh")));
    }
}
