//! Listening: every edge core has a socket of its own on the same port, and the kernel spreads
//! connections over them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use glommio::net::{TcpListener, TcpStream};
use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::json;

use crate::config::{Keepalive, ListenAddress, ListenPlace};
use crate::limits;
use crate::net::closing::ClosingLine;
use crate::net::connection;
use crate::net::context::EdgeContext;
use crate::net::permits::{ConnectionPermit, ConnectionPermits};
use crate::net::socket::{Opened, Socket};
use crate::net::unix::{self, UnixSockets};
use crate::observe::bounds::Bound;
use crate::observe::log;
use crate::queues::gate::{Gate, Pass};
use crate::queues::sleep::sleep;
use crate::queues::turn::give_way;

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

/// Accepts connections for as long as it is not dropped.
pub(super) async fn accept(
    (listener, address): (TcpListener, ListenAddress),
    edge: Rc<EdgeContext>,
    (gate, permits, closing): (Gate, Arc<ConnectionPermits>, Rc<ClosingLine<Opened>>),
) {
    let address = Rc::new(address);
    let mut told = None;
    let mut accepted = 0_usize;
    loop {
        let Ok(stream) = listener.accept().await else {
            sleep(limits::ACCEPT_RETRY_INTERVAL).await;
            continue;
        };
        accepted += 1;
        if accepted.is_multiple_of(limits::ACCEPTS_PER_TURN) {
            give_way().await; // the next connection may be there already
        }
        // A member that has too many connections closes new ones at once: clients try another
        // member.
        let Some((pass, permit)) = admit(&gate, &permits, &closing) else {
            drop(stream);
            edge.api.reached(Bound::Connections);
            tell_refused(&mut told, edge.clock.milliseconds(), &address, &permits);
            continue;
        };
        let pass = Rc::new(pass);
        let socket = Socket::new((stream, permit, Rc::clone(&pass)), &closing);
        glommio::spawn_local(connection::serve(socket, Rc::clone(&address), Rc::clone(&edge), pass)).detach();
    }
}

/// A place for one more connection, and a permit, if there are. One whose client has gone may be
/// closed for it before its turn, if it waits on this core: one that waits on another core has a
/// permit of all cores for some milliseconds more.
fn admit<T>(
    gate: &Gate,
    permits: &Arc<ConnectionPermits>,
    closing: &ClosingLine<T>,
) -> Option<(Pass, ConnectionPermit)> {
    let enter = || Some((gate.enter(limits::CONNECTIONS_PER_CORE_MAX)?, permits.take()?));
    enter().or_else(|| closing.close_one().then(enter).flatten())
}

/// Logs that connections are refused, once in `REFUSED_INTERVAL`.
fn tell_refused(told: &mut Option<u64>, now: u64, address: &ListenAddress, permits: &ConnectionPermits) {
    let interval = u64::try_from(limits::REFUSED_INTERVAL.as_millis()).unwrap_or(u64::MAX);
    if told.is_some_and(|told| now.saturating_sub(told) < interval) {
        return;
    }
    *told = Some(now);
    log::warn(
        "too many connections: new connections are closed",
        json!({
            "address": address.place.to_string(), "connections-max": permits.max(),
            "connections-per-core-max": limits::CONNECTIONS_PER_CORE_MAX,
        }),
    );
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;
    use crate::queues::sleep::on_a_core;

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

    #[test]
    fn one_that_waits_to_be_closed_makes_room_for_a_new_one() {
        for (permits_max, inside_max) in [(2, 2), (usize::MAX, limits::CONNECTIONS_PER_CORE_MAX)] {
            let (gate, permits, line) =
                (Gate::default(), ConnectionPermits::new(permits_max), ClosingLine::new());
            let mut open: Vec<_> =
                std::iter::from_fn(|| admit(&gate, &permits, &line)).take(inside_max + 1).collect();
            assert_eq!(open.len(), inside_max, "all that there may be, none of which has gone");
            // Two clients go away: each of them has its place and its permit until it is closed.
            open.drain(..2).for_each(|gone| line.push(gone));
            assert_eq!(gate.inside(), inside_max);
            for _ in 0..2 {
                // One is closed for each that comes, and no more than that.
                open.push(admit(&gate, &permits, &line).unwrap());
                assert_eq!(gate.inside(), inside_max);
            }
            assert!(admit(&gate, &permits, &line).is_none() && !line.close_one());
            // Where there is room nothing is closed before its turn.
            drop(open.pop());
            line.push(open.pop().unwrap());
            assert!(admit(&gate, &permits, &line).is_some());
            assert!(line.close_one());
            assert_eq!(gate.inside(), inside_max - 2);
        }
    }

    #[test]
    fn a_socket_that_waits_to_be_closed_has_its_permit_and_its_place() {
        on_a_core(async {
            let (gate, permits, line) = (Gate::default(), ConnectionPermits::new(1), ClosingLine::new());
            let dir = tempfile::tempdir().unwrap();
            let listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
            let stream = connect_file(&dir.path().join("socket")).unwrap();
            let mut theirs = listener.accept().unwrap().0;
            theirs.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
            let pass = Rc::new(gate.enter(1).unwrap());
            let socket = Socket::new((stream, permits.take().unwrap(), Rc::clone(&pass)), &line);
            drop((socket, pass));
            theirs.write_all(&[1]).expect("it is open");
            assert!(permits.take().is_none() && gate.inside() == 1);
            assert!(line.close_one());
            assert!(permits.take().is_some() && gate.inside() == 0);
            // Reset, as a rule: there is a byte that nobody has read.
            let closed = theirs.read(&mut [0]).map_err(|error| error.kind());
            assert!(matches!(closed, Ok(0) | Err(io::ErrorKind::ConnectionReset)), "{closed:?}");
        });
    }
}
