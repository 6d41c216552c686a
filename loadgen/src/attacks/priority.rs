//! Priorities of threads. Attackers and honest callers stand for other machines: their own CPU time
//! should take nothing from the server and from each other, as far as the system lets them.

use std::process::{Command, Stdio};
use std::sync::Once;

/// Gives this thread, and those that it will start, the lowest priority. A thread that is only nice
/// runs its slice of some milliseconds to its end when others wake; an idle one (`SCHED_IDLE`)
/// gives way at once.
pub(super) fn give_way_to_all() {
    let _ = rustix::process::setpriority_process(None, 19);
    static TOLD: Once = Once::new();
    if let Err(why) = change(&["--idle", "0"]) {
        TOLD.call_once(|| eprintln!("attackers take others' CPU for milliseconds: {why}"));
    }
}

/// Has this thread run as soon as it wakes (`SCHED_RR`): otherwise the wait of an honest caller for
/// its own CPU is taken for the server's.
pub(super) fn come_first() {
    static TOLD: Once = Once::new();
    if let Err(why) = change(&["--rr", "1"]) {
        TOLD.call_once(|| eprintln!("honest callers wait for their own CPU, too: {why}"));
    }
}

/// Has this thread run before every other program's, if that is allowed.
pub(super) fn come_first_of_all() -> bool {
    change(&["--rr", "2"]).is_ok()
}

/// By `chrt` of util-linux.
fn change(policy: &[&str; 2]) -> Result<(), String> {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let [policy, priority] = policy;
    let changing = Command::new("chrt")
        .args([policy, "--pid", priority, &own])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output();
    let said = changing.map_err(|error| format!("chrt (util-linux): {error}"))?;
    if said.status.success() {
        return Ok(());
    }
    Err(format!("chrt {policy}: {}", String::from_utf8_lossy(&said.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of this thread's policy.
    fn policy() -> String {
        let own = rustix::thread::gettid().as_raw_nonzero();
        let stat = std::fs::read_to_string(format!("/proc/self/task/{own}/stat")).unwrap();
        // The 41st field of proc_pid_stat(5); the second one, a name, ends with a bracket.
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap().to_owned()
    }

    #[test]
    fn an_attacker_is_idle_and_so_are_its_threads() {
        let attacker = std::thread::spawn(|| {
            give_way_to_all();
            [policy(), std::thread::spawn(policy).join().unwrap()]
        });
        assert_eq!(attacker.join().unwrap(), ["5", "5"]);
    }

    #[test]
    fn an_honest_caller_comes_first_where_that_is_allowed() {
        let (changed, found) = std::thread::spawn(|| (change(&["--rr", "1"]), policy())).join().unwrap();
        let expected = if changed.is_ok() { "2".to_owned() } else { policy() };
        assert_eq!(found, expected, "{changed:?}");
    }
}
