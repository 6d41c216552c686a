//! Listening: every edge core has a socket of its own on the same port, and the kernel spreads connections over them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::rc::Rc;

use glommio::net::{TcpListener, TcpStream};
use rustix::net::sockopt;

use crate::limits;
use crate::net::connection::{self, Shared};
use crate::xcore::gate::Gate;

/// After a failed accept (most likely too many open files) the next try waits this long.
const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// Fails if another process listens on the address. Our own sockets share the port, so they cannot tell.
///
/// # Errors
/// When the address is taken or does not exist here.
pub fn check_free(address: SocketAddr) -> io::Result<()> {
    std::net::TcpListener::bind(address).map(drop)
}

/// Opens this core's socket.
///
/// # Errors
/// When the address cannot be listened on.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| io::Error::other(format!("listening on {address}: {error}")))
}

/// Accepts connections for as long as it is not dropped.
pub async fn accept(listener: TcpListener, shared: Shared, gate: Gate) {
    loop {
        let Ok(stream) = listener.accept().await else {
            glommio::timer::sleep(RETRY).await;
            continue;
        };
        // A core that has too many connections closes new ones at once: clients try another member.
        let Some(pass) = gate.enter(limits::CONNECTIONS_PER_CORE_MAX) else { continue };
        if prepare(&stream).is_ok() {
            let shared = Shared { api: Rc::clone(&shared.api), ..shared.clone() };
            glommio::spawn_local(connection::serve(stream, shared, pass)).detach();
        }
    }
}

/// Replies leave at once, and a client that vanished is noticed.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    // SAFETY: the descriptor belongs to `stream`, which outlives this function.
    let socket = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, limits::KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, limits::KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, limits::KEEPALIVE_PROBES)?;
    Ok(())
}
