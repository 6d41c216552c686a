//! Processes and folders that this program has started and made, and that must not outlive it.
//!
//! Each is known here from when it is there until it is gone. At SIGINT, SIGTERM, and a
//! SIGHUP that is not ignored, the processes are ended, the folders are removed, and the program
//! exits with 128 and the number of the signal. A run that keeps its results ([`keep_results`]) is
//! told of the first signal instead, and ends by itself, with the same status; a second signal does
//! not wait for it. A program that is killed can do nothing: the system ends its processes
//! (`setpriv --pdeathsig`), and its folders stay.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::clock;

/// How long processes that were killed may take to be gone.
const GONE: Duration = Duration::from_secs(10);
/// A folder in which somebody still makes files is removed again, so often and after such rests.
const REMOVALS: usize = 100;
const REST: Duration = Duration::from_millis(10);

/// Of the whole program.
///
/// Invariant: while a signal is answered the lock is held, so that nothing is started or made any
/// more, and whoever has something that is known here does not get past letting go of it.
#[derive(Debug)]
struct Started {
    /// A thread listens for signals.
    listens: bool,
    /// The first one that came.
    signal: Option<i32>,
    /// Runs that keep their results, and have not been told.
    keeping: Vec<Arc<AtomicBool>>,
    /// By numbers of their own: processes are never mistaken for others with the same id.
    processes: BTreeMap<u64, OwnedFd>,
    folders: BTreeMap<u64, PathBuf>,
    next: u64,
}

static STARTED: Mutex<Started> = Mutex::new(Started {
    listens: false,
    signal: None,
    keeping: Vec::new(),
    processes: BTreeMap::new(),
    folders: BTreeMap::new(),
    next: 0,
});

fn started() -> MutexGuard<'static, Started> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It is known here for as long as this is there.
#[derive(Debug)]
struct Known(u64);

impl Drop for Known {
    fn drop(&mut self) {
        let mut all = started();
        all.processes.remove(&self.0);
        all.folders.remove(&self.0);
    }
}

/// A process that ends with this.
#[derive(Debug)]
pub(crate) struct OwnProcess {
    child: Child,
    _known: Known,
}

impl Deref for OwnProcess {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.child
    }
}

impl DerefMut for OwnProcess {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.child
    }
}

impl Drop for OwnProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that is removed with this: only then it is forgotten.
#[derive(Debug)]
pub(crate) struct OwnFolder {
    folder: TempDir,
    _known: Known,
}

impl OwnFolder {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The command of a program that the system ends when the thread that has started it is gone.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    if !has_setpriv() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}

/// util-linux has it; without it processes outlive a loadgen that is killed.
fn has_setpriv() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    let said = || Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).stdin(Stdio::null()).output();
    *HAS.get_or_init(|| said().is_ok_and(|said| said.status.success()))
}

/// Starts a process, in a group of its own: a Ctrl-C at the terminal reaches this program, which
/// ends the others when it has done with them.
pub(crate) fn spawn(command: &mut Command) -> io::Result<OwnProcess> {
    let mut all = started();
    all.listen()?;
    let mut child = command.process_group(0).spawn()?;
    match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
        Ok(process) => {
            let number = all.number();
            all.processes.insert(number, process);
            Ok(OwnProcess { child, _known: Known(number) })
        }
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(error.into())
        }
    }
}

/// Makes a folder with a name of its own that begins so.
pub(crate) fn folder_in(place: &Path, prefix: &str) -> io::Result<OwnFolder> {
    let mut all = started();
    all.listen()?;
    let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(place)?;
    let number = all.number();
    all.folders.insert(number, folder.path().to_owned());
    Ok(OwnFolder { folder, _known: Known(number) })
}

/// The first signal is not the end: this is set, whoever looks at it keeps what there is by then.
pub(crate) fn keep_results(interrupted: &Arc<AtomicBool>) -> io::Result<()> {
    let mut all = started();
    all.listen()?;
    all.keeping.push(Arc::clone(interrupted));
    Ok(())
}

/// The signal that should end the program, if one has come.
pub(crate) fn signal() -> Option<i32> {
    started().signal
}

/// The status of a program that a signal has ended, as shells say it.
pub(crate) const fn status_of(signal: i32) -> i32 {
    128 + signal
}

impl Started {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn listen(&mut self) -> io::Result<()> {
        if !self.listens {
            let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
            // Dropped, and deaf by that, if the thread cannot begin.
            let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))?;
            let answer = move || signals.forever().for_each(answer);
            std::thread::Builder::new().name("signals".to_owned()).spawn(answer)?;
            self.listens = true;
        }
        Ok(())
    }

    /// Ends the processes, then removes the folders, in which they cannot write any more. The
    /// program must exit then: whoever waits for one of the processes would not find it.
    fn end(&self) {
        for process in self.processes.values() {
            let _ = pidfd_send_signal(process, Signal::KILL); // or it has ended
        }
        let until = clock::nanos() + clock::in_nanos(GONE);
        self.processes.values().for_each(|process| wait_for_end(process, until));
        self.folders.values().for_each(|folder| remove(folder));
        for process in self.processes.values() {
            // Not every system has somebody who does this when the program is gone.
            let _ = waitid(WaitId::PidFd(process.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// Until it has ended, or the clock says so; further signals do not shorten this.
fn wait_for_end(process: &OwnedFd, until: u64) {
    loop {
        let left = Duration::from_nanos(until.saturating_sub(clock::nanos()));
        let left = Timespec::try_from(left).unwrap_or_default();
        if poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&left)) != Err(Errno::INTR) {
            return;
        }
    }
}

/// Whether this program was started so that a signal is nothing to it, as by `nohup`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn answer(signal: i32) {
    let mut all = started();
    all.signal.get_or_insert(signal);
    let keeping = std::mem::take(&mut all.keeping);
    keeping.iter().for_each(|interrupted| interrupted.store(true, Ordering::Relaxed));
    if keeping.is_empty() {
        all.end();
        signal_hook::low_level::exit(status_of(signal));
    }
}

/// Other threads may be at work in it, or remove it themselves.
fn remove(folder: &Path) {
    for _ in 0..REMOVALS {
        let _ = std::fs::remove_dir_all(folder);
        if !folder.exists() {
            return;
        }
        clock::rest(REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_forgotten() {
        let folder = folder_in(&std::env::temp_dir(), "loadgen-").unwrap();
        let process = spawn(command("sleep").arg("60")).unwrap();
        let (at, path, pid) = (process._known.0, folder.path().to_owned(), process.id());
        assert!(started().processes.contains_key(&at));
        assert!(started().folders.values().any(|known| *known == path));
        drop((process, folder));
        assert!(!started().processes.contains_key(&at));
        assert!(!started().folders.values().any(|known| *known == path));
        assert!(!path.exists() && !Path::new(&format!("/proc/{pid}")).exists());
    }
}
