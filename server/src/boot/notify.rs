//! Telling systemd that the service is up (`Type=notify`, see sd_notify(3)).

use std::os::unix::net::UnixDatagram;

/// Reports readiness if a supervisor asked for it.
pub(super) fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    // A supervisor that cannot be reached will say so itself.
    let _ = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1\n", path));
}
