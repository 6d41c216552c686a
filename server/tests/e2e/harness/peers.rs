//! The real etcd and its tools, built on first use by `bench/peers/build.sh`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Where the peers are.
#[derive(Clone, Debug)]
pub struct Peers {
    dir: PathBuf,
    pub version: String,
}

impl Peers {
    pub fn path(&self, program: &str) -> PathBuf {
        self.dir.join(program)
    }
}

/// The peers, in the version this project compares itself with; without them the
/// test is skipped, or fails in CI.
pub fn peers() -> Option<&'static Peers> {
    static PEERS: OnceLock<Result<Peers, String>> = OnceLock::new();
    match PEERS.get_or_init(build) {
        Ok(peers) if peers.version == "3.7.1" => Some(peers),
        Ok(peers) => skip(&format!("only etcd {} could be had, 3.7.1 is needed", peers.version)),
        Err(why) => skip(why),
    }
}

fn skip(why: &str) -> Option<&'static Peers> {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!in_ci, "CI needs the peers: {why}");
    eprintln!("skipped: {why}");
    None
}

/// Builds a program of `bench/peers` that drives servers with etcd's Go client, into this
/// directory; none where there is no Go. (`build.sh` builds the one that many tests run.)
pub fn go_program(dir: &Path, name: &str) -> Option<PathBuf> {
    let program = dir.join(name);
    let mut go = Command::new("go");
    go.args(["build", "-trimpath", "-mod=readonly", "-o"]).arg(&program).arg(format!("./{name}"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers");
    let Ok(built) = go.current_dir(folder).output() else {
        eprintln!("skipped: no Go");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

fn build() -> Result<Peers, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/peers/build.sh");
    let output = Command::new(&script).output().map_err(|error| format!("{}: {error}", script.display()))?;
    if !output.status.success() {
        return Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.trim().lines().next_back().unwrap_or_default();
    let (dir, version) = line.rsplit_once(' ').ok_or_else(|| format!("the build said {text:?}"))?;
    Ok(Peers { dir: dir.into(), version: version.to_owned() })
}
