//! Server processes: started on free ports, ended and cleaned up whatever happens to the test.

use std::ffi::{OsStr, OsString};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::clients::{Client, connect};
use super::failure;
use super::peers::peers;

/// A directory that is gone when the test is over.
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    pub fn new() -> Self {
        Self(tempfile::Builder::new().prefix("revd-test-").tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A small file system in memory that only the processes on it see,
/// and which is gone with the test.
pub struct SmallDisk {
    holder: Child,
}

impl SmallDisk {
    /// Mounts one there; none where the system does not let us.
    pub fn mount(at: &Path, bytes: u64) -> Option<Self> {
        let script =
            format!("mount -t tmpfs -o size={bytes} none '{}' && echo mounted && exec cat", at.display());
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
        let mut said = [0; 8];
        let heard = std::io::Read::read_exact(holder.stdout.as_mut()?, &mut said);
        let disk = Self { holder };
        heard.is_ok().then_some(disk)
    }

    /// A program as a process that sees the file system.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.holder.id().to_string(),
            "--user",
            "--mount",
            "--preserve-credentials",
        ]);
        command.arg("--wd=/").args(words_of(program));
        command
    }

    /// A file on it, as others see it.
    pub fn path(&self, inside: &Path) -> PathBuf {
        let inside = inside.strip_prefix("/").unwrap();
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(inside)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A server program that tests start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    Revd,
    Etcd,
}

impl Product {
    /// Its program; that of etcd is that of the peers, or what `REVD_ETCD_BINARY` names.
    fn program(self) -> PathBuf {
        let other = std::env::var_os("REVD_ETCD_BINARY").map(PathBuf::from);
        match self {
            Self::Revd => env!("CARGO_BIN_EXE_revd").into(),
            Self::Etcd => other.unwrap_or_else(|| peers().expect("a test of etcd has it").path("etcd")),
        }
    }
}

/// No flag of a server: has it listen without TLS as well, on the same address.
pub const MIXED: &str = "--mixed";

/// A running server.
pub struct Server {
    product: Product,
    command: Command,
    /// The command of another version, while this one runs as that, or the other way round.
    other: Option<Command>,
    child: Child,
    pub address: SocketAddr,
    scheme: &'static str,
    data_dir: PathBuf,
    log: PathBuf,
    /// Length of the log before this start.
    log_start: usize,
}

/// Longer than any start on a busy machine; only a server that never comes up waits for it.
pub const START_DEADLINE: Duration = Duration::from_secs(60);
/// Longer than a line takes to the log, or a port to be free, on a busy machine; only one that
/// never comes is waited for.
const LINE_DEADLINE: Duration = Duration::from_secs(20);

impl Server {
    /// revd on a data directory.
    pub fn revd(data_dir: &Path, flags: &[&str]) -> Self {
        let address = free_address();
        Self::revd_at(address, data_dir, flags)
    }

    /// revd on an address that was used before.
    pub fn revd_at(address: SocketAddr, data_dir: &Path, flags: &[&str]) -> Self {
        let mut server = Self::spawn_revd(address, data_dir, flags);
        server.wait_until_ready();
        server
    }

    /// revd on a disk of its own.
    pub fn revd_on(disk: &SmallDisk, data_dir: &Path, flags: &[&str]) -> Self {
        let mut server = Self::spawn_revd_on(disk, data_dir, flags);
        server.wait_until_ready();
        server
    }

    /// The same, not waited for.
    pub fn spawn_revd_on(disk: &SmallDisk, data_dir: &Path, flags: &[&str]) -> Self {
        Self::spawn_as(Product::Revd, disk.command(&Product::Revd.program()), free_address(), data_dir, flags)
    }

    /// revd that may open so many files.
    pub fn revd_with_files(files: u32, data_dir: &Path, flags: &[&str]) -> Self {
        Self::revd_limited(&format!("--nofile={files}:{files}"), data_dir, flags)
    }

    /// revd with a limit of the system, as `prlimit` takes it.
    pub fn revd_limited(limit: &str, data_dir: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(limit).args(words_of(&Product::Revd.program()));
        let mut server = Self::spawn_as(Product::Revd, command, free_address(), data_dir, flags);
        server.wait_until_ready();
        server
    }

    /// revd, not waited for.
    pub fn spawn_revd(address: SocketAddr, data_dir: &Path, flags: &[&str]) -> Self {
        let command = command_of(&Product::Revd.program());
        Self::spawn_as(Product::Revd, command, address, data_dir, flags)
    }

    /// A member of a cluster, not waited for: the others may have to be there first.
    pub fn spawn_member(product: Product, address: SocketAddr, data_dir: &Path, flags: &[String]) -> Self {
        Self::spawn_member_on(None, product, address, data_dir, flags)
    }

    /// The same, perhaps on a disk of its own.
    pub fn spawn_member_on(
        disk: Option<&SmallDisk>,
        product: Product,
        address: SocketAddr,
        data_dir: &Path,
        flags: &[String],
    ) -> Self {
        let program = product.program();
        let command = disk.map_or_else(|| command_of(&program), |disk| disk.command(&program));
        Self::spawn_as(product, command, address, data_dir, flags)
    }

    /// revd that asks this name server, not waited for.
    pub fn spawn_asking(
        name_server: SocketAddr,
        address: SocketAddr,
        data_dir: &Path,
        flags: &[&str],
    ) -> Self {
        let mut command = command_of(&Product::Revd.program());
        command.env("REVD_TEST_NAME_SERVER", name_server.to_string());
        Self::spawn_as(Product::Revd, command, address, data_dir, flags)
    }

    /// etcd on a data directory.
    pub fn etcd(program: &Path, data_dir: &Path, flags: &[&str]) -> Self {
        let peer = format!("http://{}", free_address());
        let initial = format!("default={peer}");
        let own = ["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer];
        let flags = [&own[..], &["--initial-cluster", &initial, "--log-level", "error"], flags].concat();
        let mut server = Self::spawn_as(Product::Etcd, command_of(program), free_address(), data_dir, &flags);
        server.wait_until_ready();
        server
    }

    fn spawn_as<S: AsRef<OsStr>>(
        product: Product,
        mut command: Command,
        address: SocketAddr,
        data_dir: &Path,
        flags: &[S],
    ) -> Self {
        let has_peers = flags.iter().any(|flag| flag.as_ref() == "--listen-peer-urls");
        if product == Product::Revd && !has_peers {
            command.args(["--listen-peer-urls", "http://127.0.0.1:0"]); // where no other server is
        }
        let is_secure =
            flags.iter().any(|flag| ["--cert-file", "--auto-tls"].map(OsStr::new).contains(&flag.as_ref()));
        let scheme = if is_secure { "https" } else { "http" };
        let mut urls = format!("{scheme}://{address}");
        command.args(["--advertise-client-urls", &urls]);
        if flags.iter().any(|flag| flag.as_ref() == MIXED) {
            urls.push_str(&format!(",http://{address}"));
        }
        command
            .args(["--listen-client-urls", &urls])
            .args(flags.iter().filter(|flag| flag.as_ref() != MIXED));
        let peers = "--listen-peer-urls";
        if !flags.iter().any(|flag| flag.as_ref() == peers) {
            // The usual port is that of any other test.
            command.args([peers, &format!("http://{}", free_address())]);
        }
        let mut server = Self::spawn(product, command, address, data_dir);
        server.scheme = scheme;
        server
    }

    fn spawn(product: Product, mut command: Command, address: SocketAddr, data_dir: &Path) -> Self {
        let log = data_dir.with_extension("log");
        let log_start = std::fs::metadata(&log).map_or(0, |log| usize::try_from(log.len()).unwrap());
        command.arg("--data-dir").arg(data_dir);
        if product == Product::Etcd {
            wait_until_silent(&command);
        }
        let child = attached(&mut command, &log).spawn().unwrap();
        let data_dir = data_dir.to_owned();
        Self { product, command, other: None, child, address, scheme: "http", data_dir, log, log_start }
    }

    /// The next start is that of another version: of the program that `REVD_OTHER_BINARY` names,
    /// else of this one with other flags. The start after the next such call is of this version
    /// again.
    pub fn becomes_another(&mut self) {
        let other = self.other.take().unwrap_or_else(|| {
            let own = self.product.program();
            let program = std::env::var_os("REVD_OTHER_BINARY").map_or(own.clone(), PathBuf::from);
            let words = [self.command.get_program()].into_iter().chain(self.command.get_args());
            let mut words = words.map(|word| if own == word { program.as_os_str() } else { word });
            let mut command = Command::new(words.next().unwrap());
            command.args(words);
            if own == program {
                command.args(["--pre-vote=false", "--max-txn-ops=100"]);
            }
            attached(&mut command, &self.log);
            command
        });
        self.other = Some(std::mem::replace(&mut self.command, other));
    }

    /// The server again as it was started before: on the same address and data, with the same
    /// flags.
    pub fn start_again(&mut self) {
        self.spawn_again();
        self.wait_until_ready();
    }

    /// The same, not waited for.
    pub fn spawn_again(&mut self) {
        assert!(!self.is_running(), "it is not killed or stopped");
        self.log_start = usize::try_from(std::fs::metadata(&self.log).unwrap().len()).unwrap();
        self.note("started again");
        self.child = self.command.spawn().unwrap();
    }

    /// A new connection to it.
    pub async fn client(&self) -> Client {
        connect(&self.endpoint()).await
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of memory of its own that the process has.
    pub fn resident(&self) -> u64 {
        self.status("RssAnon") * 1024
    }

    /// The same with its files and what it shares.
    pub fn all_resident(&self) -> u64 {
        self.status("VmRSS") * 1024
    }

    /// The most memory that the process ever had, in bytes.
    pub fn most_resident(&self) -> u64 {
        self.status("VmHWM") * 1024
    }

    /// Descriptors that there is room for in the process's table.
    pub fn descriptor_slots(&self) -> u64 {
        self.status("FDSize")
    }

    /// A number of proc_pid_status(5).
    fn status(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Its log since it was started.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map_or_else(
            |_| String::new(),
            |log| String::from_utf8_lossy(&log[self.log_start.min(log.len())..]).into_owned(),
        )
    }

    /// Waits until clients are served.
    pub fn wait_until_ready(&mut self) {
        let address = self.address;
        wait_until(START_DEADLINE, || self.is_ready(), || format!("{address} does not become ready"));
    }

    /// Waits until its log has these words, and fails with `otherwise` where they never come. A
    /// thread of its own writes lines: perhaps behind the answer to a call.
    pub fn wait_until_says(&self, words: &str, otherwise: &str) {
        let why = || format!("{otherwise}, as there is no {words:?} in its log: {}", self.log());
        wait_until(LINE_DEADLINE, || self.log().contains(words), why);
    }

    /// Whether clients are served. revd's own word counts: a port may still be open from a process
    /// that was killed. The tests' etcd is silent; it has its port before it answers.
    pub fn is_ready(&mut self) -> bool {
        let is_running = self.is_running();
        let is_ready = self.has_been_ready();
        assert!(is_ready || is_running, "the server at {} has ended: {}", self.address, self.log());
        is_ready
    }

    /// The same of a server that may have ended.
    pub fn has_been_ready(&self) -> bool {
        match self.product {
            Product::Revd => self.log().contains("ready to serve client requests"),
            Product::Etcd => TcpStream::connect(self.address).is_ok(),
        }
    }

    /// The process is gone at once, as after a power cut of the program.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.note("killed");
    }

    /// A line of the test in its log.
    fn note(&self, what: &str) {
        let mut file = std::fs::File::options().append(true).open(&self.log).unwrap();
        std::io::Write::write_all(&mut file, format!("--- {what} by the test\n").as_bytes()).unwrap();
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.wait()
    }

    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status().unwrap();
        assert!(done.success());
        self.note(&format!("sent SIG{name}"));
    }

    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until(
            START_DEADLINE,
            || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            },
            || "the server does not end".to_owned(),
        );
        status.unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

/// The words that start a server which the system ends as soon as the thread that has started it is
/// gone: a test that is killed cannot end it.
fn words_of(program: &Path) -> Vec<OsString> {
    let mut words = vec![program.as_os_str().to_owned()];
    if has_setpriv() {
        words.splice(0..0, ["setpriv", "--pdeathsig", "KILL"].map(OsString::from));
    }
    words
}

fn command_of(program: &Path) -> Command {
    let words = words_of(program);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// util-linux has it, wherever tests run; without it servers only end with a test that can end
/// them.
fn has_setpriv() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    let said = || Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).output();
    *HAS.get_or_init(|| said().is_ok_and(|said| said.status.success()))
}

/// A command that writes to a log, in a group of its own: a Ctrl-C at the terminal reaches the
/// test, which then ends its servers.
fn attached<'c>(command: &'c mut Command, log: &Path) -> &'c mut Command {
    let file = std::fs::File::options().create(true).append(true).open(log).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).process_group(0)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("log of the server at {}:\n{}", self.address, self.log());
            failure::keep(&self.log);
        }
    }
}

/// An address nobody else uses: test processes each have a loopback address of their own.
pub fn free_address() -> SocketAddr {
    static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    let [.., high, low] = pid.to_be_bytes();
    loop {
        let port = 10_000 + (ATTEMPTS.fetch_add(1, Ordering::Relaxed) % 20_000);
        let address = SocketAddr::from(([127, 77, high, low], u16::try_from(port).unwrap()));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// Waits until nothing listens where this command says that it will. The kernel closes the sockets
/// of an io_uring a moment later than its process ends: of a revd that was on the same port before.
/// revd waits for that itself, etcd does not start.
fn wait_until_silent(command: &Command) {
    let words = command.get_args().filter_map(OsStr::to_str).flat_map(|word| word.splitn(2, '='));
    let words: Vec<_> = words.collect();
    let listens = words.windows(2).filter(|pair| pair[0].starts_with("--listen-"));
    for url in listens.flat_map(|pair| pair[1].split(',')) {
        let address = url.split_once("://").and_then(|(_, address)| address.parse::<SocketAddr>().ok());
        let Some(address) = address else { continue };
        let is_silent = || TcpListener::bind(address).is_ok();
        wait_until(LINE_DEADLINE, is_silent, || format!("another server goes on at {address}"));
    }
}

/// Waits for a condition; fails with `why` when it does not come true.
pub fn wait_until(deadline: Duration, mut condition: impl FnMut() -> bool, why: impl FnOnce() -> String) {
    #[expect(clippy::disallowed_methods, reason = "a deadline for what may never happen, no measurement")]
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < deadline, "{}", why());
        #[expect(clippy::disallowed_methods, reason = "a test polls another process")]
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// As it is when a test is killed: nothing of it runs any more.
#[test]
fn a_server_ends_with_the_thread_that_has_started_it() {
    let dir = TempDir::new();
    let data = dir.path().join("revd");
    let start = move || Server::revd(&data, &[]);
    let mut server = std::thread::spawn(start).join().unwrap();
    assert!(!has_setpriv() || !server.wait().success());
}
