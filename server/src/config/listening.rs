//! Where a member listens: addresses and files, and what is spoken there.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::{bad, list, text};
use crate::resolve;

/// A place to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenPlace {
    /// An address of this machine.
    Tcp(SocketAddr),
    /// The file of a unix socket.
    Unix(PathBuf),
}

impl ListenPlace {
    /// Whether both are one, also if they are spelled differently.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix(one), Self::Unix(other)) => {
                one == other || resolve::file(one) == resolve::file(other)
            }
            (one, other) => one == other,
        }
    }

    /// Whether a connection to one of them may come to a socket of the other.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                let (ours, theirs) = (one.ip().to_canonical(), other.ip().to_canonical());
                // A socket of all addresses hears both families, whichever it is named after.
                // One address of a link may stand on each of two.
                let is_one = ours == theirs && scope(one) == scope(other);
                let is_one = is_one || ours.is_unspecified() || theirs.is_unspecified();
                // Of port 0 each socket gets one that is free.
                is_one && one.port() == other.port() && one.port() != 0
            }
            (one, other) => one.is_same(other),
        }
    }
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

    /// Whether bytes go over a network as they are.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.is_plain
            && matches!(self.place, ListenPlace::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }

    /// Adds a place; one that is there already, under whatever name, speaks both.
    pub(super) fn add(addresses: &mut Vec<Self>, place: ListenPlace, is_secure: bool, served: Served) {
        match addresses.iter_mut().find(|known| known.place.is_same(&place)) {
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

/// All that a member listens on.
pub(super) struct Listening<'a> {
    pub clients: &'a [ListenAddress],
    pub metrics: &'a [ListenAddress],
    pub peers: &'a [ListenAddress],
}

impl Listening<'_> {
    /// Refuses an address that has two purposes, and as etcd one that another of the same purpose
    /// hears as well. Our sockets share their port, one for each core: the kernel would not refuse
    /// the second one, and spread connections over both.
    pub(super) fn refuse_shared(&self, settings: &Settings) -> Result<(), ConfigError> {
        let purposes = [
            ("listen-peer-urls", self.peers),
            ("listen-client-urls", self.clients),
            ("listen-metrics-urls", self.metrics),
        ];
        for (at, (flag, addresses)) in purposes.iter().enumerate() {
            let mut own = addresses
                .iter()
                .enumerate()
                .flat_map(|(at, one)| addresses[..at].iter().map(move |earlier| (one, earlier)));
            if let Some((one, earlier)) = own.find(|(one, earlier)| one.place.overlaps(&earlier.place)) {
                let problem = format!(
                    "{} is taken by {} of the same flag: one of them is enough",
                    one.place, earlier.place
                );
                return Err(bad(settings, flag, problem));
            }
            let before = purposes[..at].iter();
            let mut pairs = before.flat_map(|(flag, others)| others.iter().map(move |other| (flag, other)));
            let shared = pairs.find_map(|(other_flag, other)| {
                let ours = addresses.iter().find(|address| address.place.overlaps(&other.place))?;
                Some((ours, other_flag, other))
            });
            if let Some((ours, other_flag, other)) = shared {
                let problem = format!(
                    "{} is taken by {} of --{other_flag}: each of these needs an address of its own",
                    ours.place, other.place
                );
                return Err(bad(settings, flag, problem));
            }
        }
        Ok(())
    }
}

/// With URLs for plain requests, the others are for calls alone, as with etcd.
pub(super) fn client_addresses(settings: &Settings) -> Result<Vec<ListenAddress>, ConfigError> {
    let (flag, http_flag) = ("listen-client-urls", "listen-client-http-urls");
    let http_urls = list(&text(settings, http_flag));
    let served = if http_urls.is_empty() { Served::All } else { Served::Calls };
    let mut addresses = Vec::new();
    for url in list(&text(settings, flag)) {
        add_url(settings, flag, &url, &mut addresses, served)?;
    }
    if addresses.is_empty() {
        return Err(bad(settings, flag, "at least one URL is needed".to_owned()));
    }
    let mut plain = Vec::new();
    for url in http_urls {
        add_url(settings, http_flag, &url, &mut plain, Served::Plain)?;
        let is_shared = |own: &ListenAddress| addresses.iter().any(|known| known.place.overlaps(&own.place));
        if plain.iter().any(is_shared) {
            return Err(ConfigError::SharedUrl(url));
        }
    }
    addresses.append(&mut plain);
    Ok(addresses)
}

/// Where nothing but metrics and health is asked for.
pub(super) fn metrics_addresses(settings: &Settings) -> Result<Vec<ListenAddress>, ConfigError> {
    let flag = "listen-metrics-urls";
    let mut addresses = Vec::new();
    for url in list(&text(settings, flag)) {
        add_url(settings, flag, &url, &mut addresses, Served::Metrics)?;
    }
    Ok(addresses)
}

fn add_url(
    settings: &Settings,
    flag: &'static str,
    url: &str,
    addresses: &mut Vec<ListenAddress>,
    served: Served,
) -> Result<(), ConfigError> {
    let (host, is_secure) = match listened(url) {
        Some((Listened::Host(host), is_secure)) => (host.trim_end_matches('/'), is_secure),
        Some((Listened::File(path), is_secure)) => {
            ListenAddress::add(addresses, ListenPlace::Unix(path.into()), is_secure, served);
            return Ok(());
        }
        None => {
            let problem = format!("URL scheme must be http, https, unix, or unixs: {url}");
            return Err(bad(settings, flag, problem));
        }
    };
    // As Go does: a name that stands for several addresses means its IPv4 one.
    let resolved = resolve::addresses(host)
        .map_err(|error| bad(settings, flag, format!("{host}: {error}; write http://host:port")))?;
    if let Some(address) = resolved.first() {
        ListenAddress::add(addresses, ListenPlace::Tcp(*address), is_secure, served);
    }
    Ok(())
}

/// The interface of an address of a link.
fn scope(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, resolve, sources};

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

    #[test]
    fn what_goes_over_a_network_without_tls_is_exposed() {
        for (listen, exposed) in [
            ("http://127.0.0.1:2379", false),
            ("http://[::ffff:127.0.0.1]:2379", false),
            ("http://[::1]:2379", false),
            ("unix:///run/s", false),
            ("http://10.0.0.1:2379", true),
            ("http://0.0.0.0:2379", true),
        ] {
            let config = config(&format!("--listen-client-urls {listen}")).unwrap();
            assert_eq!(config.client_addresses[0].is_exposed(), exposed, "{listen}");
        }
        let place = ListenPlace::Tcp("10.0.0.1:2379".parse().unwrap());
        let (mut secure, mut both) = (Vec::new(), Vec::new());
        ListenAddress::add(&mut secure, place.clone(), true, Served::All);
        ListenAddress::add(&mut both, place.clone(), true, Served::All);
        ListenAddress::add(&mut both, place, false, Served::All);
        assert!(!secure[0].is_exposed() && both[0].is_exposed());
    }

    fn config(line: &str) -> Result<Config, ConfigError> {
        let line = format!("--advertise-client-urls x {line}");
        resolve(sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap())
    }

    #[test]
    fn plain_requests_may_have_urls_of_their_own() {
        let base = "--listen-client-urls http://127.0.0.1:1,unix:///a";
        let served = |line: &str| -> Vec<(String, Served)> {
            let config = config(&format!("{base} {line}")).unwrap();
            config.client_addresses.iter().map(|it| (it.place.to_string(), it.served)).collect()
        };
        let owned = |place: &str, served| (place.to_owned(), served);
        assert_eq!(served(""), [owned("127.0.0.1:1", Served::All), owned("/a", Served::All)]);
        assert_eq!(
            served("--listen-client-http-urls http://127.0.0.1:2")[1..],
            [owned("/a", Served::Calls), owned("127.0.0.1:2", Served::Plain)]
        );
        let error = config(&format!("{base} --listen-client-http-urls http://127.0.0.1:1")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url http://127.0.0.1:1"
        );
    }

    #[test]
    fn metrics_have_addresses_of_their_own() {
        let of = |line: &str| {
            let addresses = config(line).unwrap().metrics_addresses;
            addresses.iter().map(|it| (it.place.to_string(), it.is_plain, it.is_secure)).collect::<Vec<_>>()
        };
        let line = "--cert-file c --key-file k --listen-metrics-urls http://127.0.0.1:3,https://127.0.0.1:3,unix:///m";
        assert_eq!(of(line), [("127.0.0.1:3".to_owned(), true, true), ("/m".to_owned(), true, false)]);
        assert_eq!(of(""), []);
    }

    #[test]
    fn a_file_that_is_named_twice_is_one_place_that_speaks_both() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
        let line =
            format!("--cert-file c --key-file k --listen-metrics-urls unix://{at}/s,unixs://{at}/link/./s");
        let addresses = config(&line).unwrap().metrics_addresses;
        assert_eq!(addresses.len(), 1);
        assert!(addresses[0].is_plain && addresses[0].is_secure);
    }

    #[test]
    fn an_address_has_one_purpose() {
        let refused = |clients: &str, peers: &str, metrics: &str| {
            let flags = [("client", clients), ("peer", peers), ("metrics", metrics)];
            let line: String =
                flags.iter().map(|(kind, urls)| format!(" --listen-{kind}-urls {urls}")).collect();
            config(&line).err().map(|error| error.to_string())
        };
        let (one, two, three) = ("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3");
        assert_eq!(refused(one, two, three), None);
        assert_eq!(refused("http://127.0.0.2:3,unix:///s", two, "http://127.0.0.1:3,unix:///t"), None);
        assert_eq!(refused("http://127.0.0.1:0", "http://127.0.0.1:0", "http://127.0.0.1:0"), None);
        assert_eq!(refused("http://127.0.0.1:1,http://localhost:1", two, three), None, "one address");
        for (clients, peers, metrics, expected) in [
            (
                one,
                two,
                one,
                "--listen-metrics-urls \"http://127.0.0.1:1\": 127.0.0.1:1 is taken by 127.0.0.1:1 of --listen-client-urls",
            ),
            (
                one,
                two,
                two,
                "--listen-metrics-urls \"http://127.0.0.1:2\": 127.0.0.1:2 is taken by 127.0.0.1:2 of --listen-peer-urls",
            ),
            (
                one,
                one,
                three,
                "--listen-client-urls \"http://127.0.0.1:1\": 127.0.0.1:1 is taken by 127.0.0.1:1 of --listen-peer-urls",
            ),
            ("http://0.0.0.0:3", two, three, "127.0.0.1:3 is taken by 0.0.0.0:3 of --listen-client-urls"),
            (
                "http://127.0.0.1:3",
                two,
                "http://0.0.0.0:3",
                "0.0.0.0:3 is taken by 127.0.0.1:3 of --listen-client-urls",
            ),
            (
                "http://[::1]:3",
                two,
                "http://0.0.0.0:3",
                "0.0.0.0:3 is taken by [::1]:3 of --listen-client-urls",
            ),
            (
                "http://0.0.0.0:1,http://127.0.0.1:1",
                two,
                three,
                "127.0.0.1:1 is taken by 0.0.0.0:1 of the same flag",
            ),
            (one, "http://[::1]:2,http://0.0.0.0:2", three, "[::1]:2 is taken by 0.0.0.0:2 of the same flag"),
            (one, two, "http://0.0.0.0:3,http://[::]:3", "[::]:3 is taken by 0.0.0.0:3 of the same flag"),
            (one, "http://[::]:3", three, "127.0.0.1:3 is taken by [::]:3 of --listen-peer-urls"),
            ("http://[::ffff:127.0.0.1]:3", two, three, "127.0.0.1:3 is taken by [::ffff:127.0.0.1]:3"),
            ("unix:///s", two, "unix:///s", "/s is taken by /s of --listen-client-urls"),
        ] {
            let error = refused(clients, peers, metrics).expect("it is refused");
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(refused("unix://a/s", two, "unix://./b/../s"), None);
        for (one, other) in [("unix://s", "unix://./s"), ("unix:///d/../s", "unixs:///s")] {
            let error = refused(one, two, other).expect("one file under two names");
            assert!(error.contains("of --listen-client-urls"), "{error}");
            let error = refused("http://127.0.0.1:1", other, one).expect("also of members");
            assert!(error.contains("of --listen-peer-urls"), "{error}");
        }
        let own = format!("--listen-client-http-urls {two} --listen-metrics-urls {two}");
        assert!(config(&own).is_err(), "also of plain requests");
    }
}
