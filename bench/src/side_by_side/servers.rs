//! The two servers: built, started on fresh directories, ended with the program.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A running server.
pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    child: Child,
    _data: tempfile::TempDir,
}

impl Server {
    /// CPU time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        let tasks =
            std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let nanoseconds = tasks.filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed");
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn spawn(name: &'static str, command: &mut Command, address: SocketAddr) -> anyhow::Result<Server> {
    let data = tempfile::Builder::new().prefix("revd-bench-").tempdir_in(root().join("target"))?;
    command.arg("--data-dir").arg(data.path().join(name)).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let server = Server { name, address, child, _data: data };
    let start = Instant::now();
    while TcpStream::connect(address).is_err() {
        if start.elapsed() > Duration::from_secs(30) {
            bail!("{name} does not come up");
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    Ok(server)
}

/// Builds and starts both, revd first.
pub fn start(revd_flags: &[String]) -> anyhow::Result<(Server, Server)> {
    run(Command::new(env!("CARGO")).args(["build", "--release", "-p", "revd"]).current_dir(root()))?;
    let peers = run(&mut Command::new(root().join("bench/peers/build.sh")))?;
    let (peers, version) = peers.rsplit_once(' ').context("bench/peers/build.sh says where the peers are")?;
    if version != "3.7.1" {
        bail!("the figures are about etcd 3.7.1, only {version} could be built");
    }
    let urls = |address: SocketAddr| {
        let url = format!("http://{address}");
        ["--listen-client-urls".to_owned(), url.clone(), "--advertise-client-urls".to_owned(), url]
    };
    let address = free_address()?;
    let revd = spawn(
        "revd",
        Command::new(root().join("target/release/revd")).args(urls(address)).args(revd_flags),
        address,
    )?;
    let (address, peer) = (free_address()?, format!("http://{}", free_address()?));
    let mut command = Command::new(Path::new(peers).join("etcd"));
    command.args(urls(address)).args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
    command.args(["--quota-backend-bytes", "8589934592"]);
    let etcd = spawn("etcd", &mut command, address)?;
    Ok((revd, etcd))
}
