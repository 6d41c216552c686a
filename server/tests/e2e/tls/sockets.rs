//! Sockets that are files, and URLs for plain requests alone, beside an etcd; connections that come
//! to one core and are served by another one.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::tls::certificates::{Authority, Wanted, WithRevoked};
use crate::tls::etcdctl;
use crate::tls::session::session;

/// A server that listens at these URLs beside its own.
fn start(product: Product, dir: &Path, urls: impl Fn(&Path) -> String, flags: &[&str]) -> Server {
    let name = if product == Product::Revd { "r" } else { "e" };
    let home = dir.join(name);
    std::fs::create_dir_all(&home).unwrap();
    let peer = format!("http://{}", free_address());
    let address = free_address();
    let scheme = if flags.contains(&"--cert-file") { "https" } else { "http" };
    let listen = format!("{scheme}://{address},{}", urls(&home));
    let own = ["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer];
    let more = ["--initial-cluster", &format!("default={peer}"), "--listen-client-urls", &listen];
    let all: Vec<String> = [&own[..], &more, flags].concat().into_iter().map(str::to_owned).collect();
    let mut server = Server::spawn_member(product, address, &home.join("data"), &all);
    server.wait_until_ready();
    server
}

/// The same of each product.
fn both(dir: &Path, urls: impl Fn(&Path) -> String, flags: &[&str]) -> Vec<Server> {
    [Product::Revd, Product::Etcd].map(|product| start(product, dir, &urls, flags)).into_iter().collect()
}

#[test]
fn clients_come_through_files_as_to_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted { names: &["localhost", "127.0.0.1"], ..Wanted::default() });
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    let urls = |home: &Path| {
        let home = home.display();
        format!("unix://{home}/plain,unixs://{home}/secure")
    };
    let mut servers = both(dir.path(), urls, &flags);
    for server in &mut servers {
        let home = server.data_dir().parent().unwrap().to_owned();
        let plain = format!("unix://{}/plain", home.display());
        let (is_served, text) = etcdctl(&plain, "", None, "put k v");
        assert!(is_served, "{text}");
        assert_eq!(etcdctl(&plain, "", None, "get k"), (true, "k\nv\n".to_owned()));
        let secure = format!("unixs://{}/secure", home.display());
        let line = "get k --insecure-skip-tls-verify";
        assert_eq!(etcdctl(&secure, &authority.file, None, line), (true, "k\nv\n".to_owned()));
        let health = |socket: &str, url: &str| {
            let mut curl = Command::new("curl");
            curl.args(["-sSk", "--max-time", "10", "--unix-socket"]).arg(home.join(socket)).arg(url);
            String::from_utf8(curl.output().unwrap().stdout).unwrap()
        };
        assert!(health("plain", "http://localhost/health").contains("\"true\""));
        assert!(health("secure", "https://localhost/health").contains("\"true\""));
        server.stop();
        assert!(!home.join("plain").exists() && !home.join("secure").exists(), "they go with it");
    }
    // Killed, it leaves its files, and makes them anew.
    servers[0].start_again();
    servers[0].kill();
    servers[0].start_again();
    let plain = format!("unix://{}/r/plain", dir.path().display());
    assert!(etcdctl(&plain, "", None, "get k").0);
}

#[test]
fn members_find_each_other_through_files() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let urls: Vec<String> = (0..3).map(|at| format!("unix://{}/p{at}", dir.path().display())).collect();
    let start = |at: usize| {
        let flags = crate::tls::members::flags_of_cluster(at, &urls, &[]);
        Server::spawn_member(Product::Revd, free_address(), &dir.path().join(format!("m{at}")), &flags)
    };
    let mut servers: Vec<Server> = (0..3).map(start).collect();
    for server in &mut servers {
        server.wait_until_ready();
        assert!(etcdctl(&server.endpoint(), "", None, "put k v").0);
    }
    servers[2].kill();
    let put = || etcdctl(&servers[0].endpoint(), "", None, "put k w").0;
    wait_until(std::time::Duration::from_secs(60), put, || "two of three go on".to_owned());
}

/// Row 85 of the bugs never to have: the list of revoked certificates counts on both kinds of URLs.
#[test]
fn bug_085_plain_requests_have_urls_of_their_own_as_with_an_etcd() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let WithRevoked { authority, own, good, revoked, list } = WithRevoked::new(&dir.path().join("c"));
    let tls = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
    for is_secure in [false, true] {
        let said = [Product::Revd, Product::Etcd].map(|product| {
            let (peer, calls, http) = (format!("http://{}", free_address()), free_address(), free_address());
            let scheme = if is_secure { "https" } else { "http" };
            let http_url = format!("{scheme}://{http}");
            let peer_flags = ["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer];
            let initial = format!("default={peer}");
            let more = ["--initial-cluster", &initial, "--listen-client-http-urls", &http_url];
            let mut flags = [&peer_flags[..], &more].concat();
            if is_secure {
                flags.extend(tls);
                flags.extend(["--client-cert-auth", "--client-crl-file", &list]);
            }
            let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
            let data = dir.path().join(format!("{product:?}-{is_secure}"));
            let mut server = Server::spawn_member(product, calls, &data, &flags);
            server.wait_until_ready();
            let authority = if is_secure { &authority.file[..] } else { "" };
            let call = |url: &str, client| etcdctl(url, authority, client, "get k --command-timeout 3s").0;
            let health = |url: &str, client: &crate::tls::certificates::Issued| {
                let mut curl = Command::new("curl");
                curl.args(["-sS", "--http1.1", "--max-time", "10"]);
                if is_secure {
                    curl.args(["--cacert", authority, "--cert", &client.cert, "--key", &client.key]);
                }
                let answer = curl.arg(format!("{url}/health")).output().unwrap().stdout;
                String::from_utf8_lossy(&answer).contains("\"true\"")
            };
            let client = is_secure.then_some(&good);
            let mut said = vec![call(&server.endpoint(), client), call(&http_url, client)];
            said.extend([health(&server.endpoint(), &good), health(&http_url, &good)]);
            if is_secure {
                said.extend([call(&server.endpoint(), Some(&revoked)), health(&http_url, &revoked)]);
            }
            said
        });
        assert_eq!(said[0], said[1]);
        assert_eq!(said[0][..4], [true, false, false, true]);
        assert!(!said[0][4..].contains(&true), "revoked");
    }
}

/// Longer than an answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks over a connection, which is answered and closed, or closed.
fn ask_once<S: Read + Write>(mut connection: S) {
    let _ = connection.write_all(b"GET /version HTTP/1.0\r\n\r\n");
    let read = connection.read_to_end(&mut Vec::new());
    assert!(!read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "neither answered nor closed");
}

/// Asks for the version over a connection, which stays open.
fn ask_version<S: Read + Write>(mut connection: S, whose: &str) -> S {
    write!(connection, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let (mut told, mut buffer) = (Vec::new(), [0; 1024]);
    while !told.ends_with(b"}") {
        let read = connection.read(&mut buffer).unwrap();
        assert!(read > 0, "{whose}: {}", String::from_utf8_lossy(&told));
        told.extend_from_slice(&buffer[..read]);
    }
    assert!(told.starts_with(b"HTTP/1.1 200"), "{whose}: {}", String::from_utf8_lossy(&told));
    connection
}

/// The core of the log hands most of what it accepts to other cores: each connection speaks what
/// its own address speaks. A stop answers or closes all that are on their way.
#[test]
fn connections_are_served_as_at_their_address_on_any_core_until_a_stop() {
    const OF_EACH: usize = 32;
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let (plain, file) = (free_address(), dir.path().join("file"));
    let urls = |_: &Path| format!("http://{plain},unix://{}", file.display());
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key, "--cores", "2"];
    let mut server = start(Product::Revd, dir.path(), urls, &flags);
    let mut open = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..OF_EACH {
        open.0.push(ask_version(session(&server, &authority), "https"));
        open.1.push(ask_version(TcpStream::connect(plain).unwrap(), "http"));
        open.2.push(ask_version(UnixStream::connect(&file).unwrap(), "file"));
    }
    // The first ones are still served behind all that came later.
    open.0.drain(..).for_each(|it| drop(ask_version(it, "https")));
    open.1.drain(..).for_each(|it| drop(ask_version(it, "http")));
    open.2.drain(..).for_each(|it| drop(ask_version(it, "file")));

    let connected = [const { AtomicUsize::new(0) }; 2];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Ok(connection) = TcpStream::connect(plain) {
                    connected[0].fetch_add(1, Ordering::Relaxed);
                    connection.set_read_timeout(Some(PATIENCE)).unwrap();
                    ask_once(connection);
                }
            });
            scope.spawn(|| {
                while let Ok(connection) = UnixStream::connect(&file) {
                    connected[1].fetch_add(1, Ordering::Relaxed);
                    connection.set_read_timeout(Some(PATIENCE)).unwrap();
                    ask_once(connection);
                }
            });
        }
        let are_many = || connected.iter().all(|connected| connected.load(Ordering::Relaxed) > 100);
        // The threads end with the server, whatever is wrong.
        let waiting = || wait_until(PATIENCE, are_many, || "hardly a connection is answered".to_owned());
        let waited = std::panic::catch_unwind(AssertUnwindSafe(waiting));
        assert_eq!(server.stop().signal(), Some(15));
        waited.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    });
}
