//! The addresses that a name stands for, and the one path among those that lead to a file.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Component, Path, PathBuf};

/// The addresses of `host:port`, those of IPv4 first, as Go takes them and members listen on them.
/// Blocks while the system is asked for a name.
///
/// # Errors
/// When the text is no `host:port`, or the name is not known.
pub fn addresses(host: &str) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = host.to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    Ok(addresses)
}

/// The first address of `host:port`; none if the name is not known.
#[must_use]
pub fn first_address(host: &str) -> Option<String> {
    addresses(host).ok()?.first().map(ToString::to_string)
}

/// The names of an address; none if the system knows none. Blocks while it is asked.
#[must_use]
pub fn names(address: IpAddr) -> Vec<String> {
    // Without a name the text of the address comes back.
    let name = dns_lookup::lookup_addr(&address).ok();
    name.filter(|name| name.parse::<IpAddr>().is_err()).into_iter().collect()
}

/// The path of a file without detours: equal for all spellings of it. The file itself need not be
/// there, and is not followed if it is a link, for sockets are not bound through links.
#[must_use]
pub fn file(path: &Path) -> PathBuf {
    let Some(name) = path.file_name() else { return path.to_owned() };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    directory(parent).join(name)
}

/// The same for a directory. Names that are not there yet can be no links: they are taken as they
/// are.
fn directory(path: &Path) -> PathBuf {
    let mut missing: Vec<OsString> = Vec::new();
    for known in path.ancestors() {
        let known = if known.as_os_str().is_empty() { Path::new(".") } else { known };
        if let Ok(mut found) = known.canonicalize() {
            for name in missing.iter().rev() {
                if name == ".." {
                    found.pop();
                } else {
                    found.push(name);
                }
            }
            return found;
        }
        let last = known.components().next_back();
        missing
            .extend(last.filter(|last| *last != Component::CurDir).map(|last| last.as_os_str().to_owned()));
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_one_path_however_it_is_spelled() {
        let dir = tempfile::tempdir().unwrap();
        let at = |end: &str| dir.path().join(end);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        let expected = dir.path().canonicalize().unwrap().join("real/s");
        for spelled in ["real/s", "link/s", "./real/../link/./s", "real//s", "real/../real/s"] {
            assert_eq!(file(&at(spelled)), expected, "{spelled}");
        }
        assert_ne!(file(&at("real/t")), expected);
        std::os::unix::fs::symlink(at("real/s"), at("t")).unwrap();
        assert_ne!(file(&at("t")), expected, "a socket is not bound through a link");
        assert_eq!(file(Path::new("s")), file(Path::new("./s")));
        assert_eq!(file(Path::new("s")), std::env::current_dir().unwrap().canonicalize().unwrap().join("s"));
        for absent in ["link/new/x/../s", "real/./new/s", "link/new/s"] {
            assert_eq!(file(&at(absent)), expected.with_file_name("new").join("s"), "{absent}");
        }
        assert_eq!(file(Path::new("absent/s")), file(Path::new("./absent/s")));
        assert_eq!(file(Path::new("/s")), Path::new("/s"));
        assert_eq!(file(Path::new("..")), Path::new(".."), "no name of a file");
    }
}
