//! Pages of a mapped file that the disk does not give: the system interrupts the thread that reads
//! one, and would end the process without a word (SIGBUS). The tree file is mapped, and a state
//! that another member has sent.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use revd_engine::disk::offset_of;
use signal_hook::consts::SIGBUS;
use signal_hook::low_level::exit;

/// Longer than any line of [`say`].
const LINE_BYTES: usize = 512;

/// From now on such a read ends the process with a line that names the page.
///
/// # Errors
/// When the system refuses.
pub fn say_which() -> std::io::Result<()> {
    // SAFETY: the handler does what a handler may do: it takes no lock and no memory, and it does
    // not return. The system has set the address that it asks for: this signal has one.
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "the handler is inside the registration")]
    unsafe {
        signal_hook_registry::register_sigaction(SIGBUS, |info| {
            say(offset_of(info.si_addr().addr()));
            exit(1)
        })
    }
    .map(drop)
}

/// Writes a line of the log, past its queue.
fn say(offset: Option<usize>) {
    let mut line = [0; LINE_BYTES];
    let mut rest = &mut line[..];
    let _ = write!(
        rest,
        r#"{{"level":"fatal","caller":"disk/unreadable.rs","msg":"the disk does not give a page of the tree file or of a received state""#
    );
    if let Some(offset) = offset {
        let _ = write!(rest, r#","offset":{offset}"#);
    }
    let _ = writeln!(rest, "}}");
    let len = LINE_BYTES - rest.len();
    let _ = rustix::io::write(std::io::stderr().as_fd(), &line[..len]);
}
