//! The two servers: built, started on fresh directories, ended with the program.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use revd_loadgen::cost::Usage;

/// More than any benchmark stores.
const QUOTA: [&str; 2] = ["--quota-backend-bytes", "68719476736"];

/// A running server.
pub struct Server {
    pub name: &'static str,
    pub address: SocketAddr,
    command: Command,
    child: Child,
    data: tempfile::TempDir,
}

impl Server {
    fn usage(&self) -> Usage {
        Usage::of(&[self.child.id()])
    }

    /// CPU time of all its threads so far.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.usage().cpu)
    }

    /// Bytes of memory that no file backs.
    pub fn anonymous_memory(&self) -> u64 {
        self.usage().memory
    }

    /// Bytes that the data directory takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        fn blocks(path: &Path) -> u64 {
            let own = std::fs::metadata(path).map_or(0, |data| data.blocks());
            let inside = std::fs::read_dir(path).into_iter().flatten().flatten();
            own + inside.map(|entry| blocks(&entry.path())).sum::<u64>()
        }
        blocks(self.data.path()) * 512
    }

    /// Bytes it has had written to disks since it was started.
    pub fn written_bytes(&self) -> u64 {
        self.usage().written
    }

    /// Asks it to stop, waits until it has, and starts it again.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        run(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        self.child.wait()?;
        self.child = self.command.spawn()?;
        Ok(())
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

fn spawn(name: &'static str, mut command: Command, address: SocketAddr) -> anyhow::Result<Server> {
    let data = tempfile::Builder::new().prefix("revd-bench-").tempdir_in(root().join("target"))?;
    command.arg("--data-dir").arg(data.path().join(name)).stdout(Stdio::null());
    let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let server = Server { name, address, command, child, data };
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
    let mut command = Command::new(root().join("target/release/revd"));
    command.args(urls(address)).args(["--log-level", "error"]).args(QUOTA).args(revd_flags);
    let revd = spawn("revd", command, address)?;
    let (address, peer) = (free_address()?, format!("http://{}", free_address()?));
    let mut command = Command::new(Path::new(peers).join("etcd"));
    command.args(urls(address)).args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
    command.args(QUOTA);
    let etcd = spawn("etcd", command, address)?;
    Ok((revd, etcd))
}
