//! Sockets that are files: for clients and members of one machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::limits;

/// Node view: the sockets that are listened on. A file has one, of which each core has a
/// descriptor; the files go with the last of these.
#[derive(Debug, Default)]
pub struct UnixSockets(Mutex<BTreeMap<PathBuf, OwnedFd>>);

impl UnixSockets {
    /// A descriptor of the socket of a file, which [`take`] has found free.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn listening(&self, path: &Path) -> io::Result<OwnedFd> {
        let mut sockets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = sockets.get(path) {
            return known.try_clone();
        }
        let listen = || -> io::Result<OwnedFd> {
            let socket = new_socket()?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
            rustix::net::listen(&socket, limits::LISTEN_BACKLOG)?;
            Ok(socket)
        };
        let socket = listen().map_err(|error| {
            io::Error::new(error.kind(), format!("listening on {}: {error}", path.display()))
        })?;
        let own = socket.as_fd().try_clone_to_owned()?;
        sockets.insert(path.to_owned(), socket);
        Ok(own)
    }
}

impl Drop for UnixSockets {
    fn drop(&mut self) {
        for path in self.0.get_mut().unwrap_or_else(PoisonError::into_inner).keys() {
            let _ = fs::remove_file(path);
        }
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Makes way for a socket: the file that a process left behind that is gone is removed. etcd
/// removes whatever is there.
///
/// # Errors
/// When somebody listens there, or something else is there.
pub(super) fn take(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // It listens, and accepts nothing: so many wait already.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => Err(error),
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Connects, or says at once why not: a socket of this machine that takes no connection now has too
/// many that wait.
pub(super) fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_left_behind_is_replaced_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        take(&path).unwrap();
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "left behind");
        take(&path).unwrap();
        let sockets = UnixSockets::default();
        let (first, _second) = (sockets.listening(&path).unwrap(), sockets.listening(&path).unwrap());
        assert_eq!(take(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse, "somebody listens");
        let connected = connect(&path).unwrap();
        drop((first, connected));
        drop(sockets);
        assert!(!path.exists(), "it goes with the sockets");
        fs::write(&path, "precious").unwrap();
        assert_eq!(take(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert!(connect(&path).is_err());
    }
    #[test]
    fn a_process_that_accepts_nothing_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let hung = new_socket().unwrap();
        rustix::net::bind(&hung, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&hung, 0).unwrap();
        let waiting: Vec<OwnedFd> = std::iter::from_fn(|| connect(&path).ok()).take(100).collect();
        assert!(!waiting.is_empty() && waiting.len() < 100);
        assert_eq!(take(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
    }
}
