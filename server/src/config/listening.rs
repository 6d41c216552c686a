//! Where a member listens: addresses and files, and what is spoken there.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A place to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenPlace {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// The file of a unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ListenPlace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(out),
            Self::Unix(path) => path.display().fmt(out),
        }
    }
}

/// The requests that are answered there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Calls, and plain requests.
    All,
    /// Calls alone: plain requests have URLs of their own.
    Calls,
    /// Plain requests alone.
    Plain,
    /// Metrics and health alone.
    Metrics,
}

/// A place to listen at, and what is spoken there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenAddress {
    /// Where.
    pub place: ListenPlace,
    /// Bytes as they are.
    pub is_plain: bool,
    /// TLS; with `is_plain` either is heard.
    pub is_secure: bool,
    /// Which requests are answered.
    pub served: Served,
}

impl ListenAddress {
    /// An address without TLS.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        let place = ListenPlace::Tcp(address);
        Self { place, is_plain: true, is_secure: false, served: Served::All }
    }

    /// Adds a place; one that is there already speaks both.
    pub(super) fn add(addresses: &mut Vec<Self>, place: ListenPlace, is_secure: bool, served: Served) {
        match addresses.iter_mut().find(|known| known.place == place) {
            Some(known) => {
                known.is_plain |= !is_secure;
                known.is_secure |= is_secure;
            }
            None => addresses.push(Self { place, is_plain: !is_secure, is_secure, served }),
        }
    }

    /// A URL of it, with TLS.
    pub(super) fn secure_url(&self) -> String {
        match &self.place {
            ListenPlace::Tcp(address) => format!("https://{address}"),
            ListenPlace::Unix(path) => format!("unixs://{}", path.display()),
        }
    }
}

/// A URL to listen on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Listened<'u> {
    /// Host and port.
    Host(&'u str),
    /// A file.
    File(&'u str),
}

/// The place to listen at that a URL names, and whether TLS is spoken there; none for other
/// schemes.
pub(crate) fn listened(url: &str) -> Option<(Listened<'_>, bool)> {
    let (scheme, rest) = url.split_once("://")?;
    // As with etcd, what looks like a host is the beginning of the file's path.
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some((Listened::Host(rest), false)),
        "https" => Some((Listened::Host(rest), true)),
        "unix" if !path.is_empty() => Some((Listened::File(path), false)),
        "unixs" if !path.is_empty() => Some((Listened::File(path), true)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_host_or_a_file() {
        for (url, expected) in [
            ("http://h:1", Some((Listened::Host("h:1"), false))),
            ("HTTPS://h:1", Some((Listened::Host("h:1"), true))),
            ("unix:///run/s", Some((Listened::File("/run/s"), false))),
            ("unixs://localhost:m1", Some((Listened::File("localhost:m1"), true))),
            ("unix://a/b?c", Some((Listened::File("a/b"), false))),
            ("unix://", None),
            ("unix:x", None),
            ("ftp://h:1", None),
        ] {
            assert_eq!(listened(url), expected, "{url}");
        }
    }
}
