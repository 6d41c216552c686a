//! Listening: every edge core has a socket of its own on the same port, and the kernel spreads
//! connections over them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use glommio::net::{TcpListener, TcpStream};
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::config::{Keepalive, ListenPlace};
use crate::limits;
use crate::net::unix::{self, UnixSockets};

/// Waits until no other process listens there.
///
/// # Errors
/// When it stays taken or does not exist here.
pub fn wait_until_free(place: &ListenPlace) -> io::Result<()> {
    // After a crash the kernel closes the sockets of an io_uring a moment later than the process
    // ends.
    for _ in 0..limits::BIND_TRIES {
        match take(place) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::park_timeout(limits::BIND_INTERVAL)
            }
            result => return result,
        }
    }
    take(place)
}

/// Whether no other process listens there. Our own sockets share the port (SO_REUSEPORT), so that
/// binding them does not fail.
fn take(place: &ListenPlace) -> io::Result<()> {
    match place {
        // Bound but not listening: no client can meet this socket.
        ListenPlace::Tcp(address) => {
            let (socket, address) = new_socket(*address)?;
            Ok(rustix::net::bind(socket, &address)?)
        }
        ListenPlace::Unix(path) => unix::take(path),
    }
}

/// A socket that may use an address where connections of an earlier process are still dying, and
/// the address to bind it to. As with etcd, a socket of all addresses hears both families.
fn new_socket(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let address = match address.ip().to_canonical() {
        all if all.is_unspecified() && hears_both_families() => {
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port()))
        }
        mapped if mapped.is_ipv4() => SocketAddr::new(mapped, address.port()),
        _ => address, // with its scope
    };
    let socket = stream_socket(address)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == Ipv6Addr::UNSPECIFIED {
        // The default of the system does not count.
        sockopt::set_ipv6_v6only(&socket, !hears_both_families())?;
    }
    Ok((socket, address))
}

fn stream_socket(address: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
}

/// Whether sockets of IPv6 hear those that connect by IPv4: not where the kernel has no IPv6. Go
/// asks so too.
fn hears_both_families() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0));
        let bound = || -> rustix::io::Result<()> {
            let socket = stream_socket(mapped)?;
            sockopt::set_ipv6_v6only(&socket, false)?;
            rustix::net::bind(socket, &mapped)
        };
        bound().is_ok()
    })
}

/// Opens this core's socket. Connections inherit its options: replies leave at once, and a client
/// that vanished is noticed.
///
/// # Errors
/// When the address cannot be listened on.
pub fn bind(place: &ListenPlace, keepalive: &Keepalive, sockets: &UnixSockets) -> io::Result<TcpListener> {
    let socket = match place {
        ListenPlace::Tcp(address) => listening(*address, keepalive)?,
        // The runtime's type is named after TCP, and works with any socket of streams.
        ListenPlace::Unix(path) => sockets.listening(path)?,
    };
    // SAFETY: the descriptor is a listening socket that has no other owner.
    Ok(unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) })
}

/// Connects to the socket of a file.
///
/// # Errors
/// When it takes no connection now.
pub(crate) fn connect_file(path: &Path) -> io::Result<TcpStream> {
    let socket = unix::connect(path)?;
    // SAFETY: the descriptor is a connected socket that has no other owner.
    Ok(unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) })
}

fn listening(address: SocketAddr, keepalive: &Keepalive) -> io::Result<OwnedFd> {
    let (socket, bound) = new_socket(address)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, limits::KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, limits::KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, limits::KEEPALIVE_PROBES)?;
    if !keepalive.interval.is_zero() {
        // As in grpc-go: sent bytes must be acknowledged within the timeout of a ping.
        let timeout = u32::try_from(keepalive.timeout.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(&socket, timeout)?;
    }
    let listening = rustix::net::bind(&socket, &bound)
        .and_then(|()| rustix::net::listen(&socket, limits::LISTEN_BACKLOG));
    listening.map_err(|error| {
        io::Error::new(io::Error::from(error).kind(), format!("listening on {address}: {error}"))
    })?;
    Ok(socket)
}

/// The socket of a connection that another core is to serve.
pub(super) fn release(stream: TcpStream) -> OwnedFd {
    // SAFETY: the stream gives its descriptor up, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(stream.into_raw_fd()) }
}

/// A connection that another core has accepted.
pub(super) fn adopt(socket: OwnedFd) -> TcpStream {
    // SAFETY: the descriptor is a connected socket that has no other owner.
    unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_inherits_the_timeouts_of_the_listening_socket() {
        let seconds = std::time::Duration::from_secs;
        let keepalive = Keepalive { min_time: seconds(5), interval: seconds(7200), timeout: seconds(20) };
        let listener = listening("127.0.0.1:0".parse().unwrap(), &keepalive).unwrap();
        let listener = std::net::TcpListener::from(listener);
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (connection, _) = listener.accept().unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&connection).unwrap(), 20_000);
        assert_eq!(sockopt::tcp_keepidle(&connection).unwrap(), limits::KEEPALIVE_IDLE);
    }

    #[test]
    fn a_socket_of_all_addresses_hears_both_families() {
        let bound = |text: &str| new_socket(text.parse().unwrap()).unwrap();
        for all in ["0.0.0.0:7", "[::]:7", "[::ffff:0.0.0.0]:7"] {
            let (socket, address) = bound(all);
            if hears_both_families() {
                assert_eq!(address, "[::]:7".parse().unwrap(), "{all}");
                assert!(!sockopt::ipv6_v6only(&socket).unwrap(), "{all}");
            }
        }
        for (one, expected) in [("127.0.0.1:7", "127.0.0.1:7"), ("[::ffff:127.0.0.1]:7", "127.0.0.1:7")] {
            assert_eq!(bound(one).1, expected.parse().unwrap(), "{one}");
        }
        if hears_both_families() {
            let one: SocketAddr = "[fe80::1%3]:7".parse().unwrap();
            assert_eq!(new_socket(one).unwrap().1, one, "with its scope");
        }
    }

    #[test]
    fn a_socket_that_is_a_file_is_waited_for_until_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let waiting = std::thread::spawn(move || wait_until_free(&ListenPlace::Unix(path)));
        // Tried once at least: then a connection waits.
        drop(other.accept().unwrap());
        drop(other);
        waiting.join().unwrap().expect("it is free by now");
        assert!(!dir.path().join("socket").exists());
    }
}
