//! The addresses and files that a member listens at: which connections a URL of all addresses
//! hears, and what cannot stand beside it; as with an etcd.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::probes::ask;

/// Longer than a member needs to find that it cannot start.
const MOMENTS: Duration = Duration::from_secs(60);

/// A port that is free in both families; none where the machine has no IPv6. The system gives none
/// of these to connections, and the harness none to other tests.
fn port_of_both() -> Option<u16> {
    static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        eprintln!("without IPv6 there is nothing to be seen");
        return None;
    }
    loop {
        let number = std::process::id() % 50 * 50 + ATTEMPTS.fetch_add(1, Ordering::Relaxed) % 50;
        let port = u16::try_from(30_000 + number).unwrap();
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return Some(port);
        }
    }
}

fn products() -> impl Iterator<Item = Product> {
    let has_peers = peers().is_some();
    [Product::Revd, Product::Etcd].into_iter().filter(move |it| *it == Product::Revd || has_peers)
}

/// A member that is its own cluster, with these URLs of clients, members and metrics.
fn spawn(product: Product, home: &Path, urls: [&str; 3]) -> Server {
    let [clients, members, metrics] = urls;
    let advertised = "http://127.0.0.1:1";
    let mut flags = vec!["--listen-client-urls", clients, "--listen-peer-urls", members];
    let initial = format!("default={advertised}");
    flags.extend(["--initial-advertise-peer-urls", advertised, "--initial-cluster", &initial]);
    if !metrics.is_empty() {
        flags.extend(["--listen-metrics-urls", metrics]);
    }
    let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
    Server::spawn_member(product, free_address(), &home.join(format!("{product:?}")), &flags)
}

/// Whether it starts; what it has said if not.
fn starts(product: Product, home: &Path, urls: [&str; 3]) -> Result<(), String> {
    wait_until_serving(&mut spawn(product, home, urls))
}

/// The same of one that has been asked to. Both products say it in the same words.
fn wait_until_serving(server: &mut Server) -> Result<(), String> {
    let serves = |server: &Server| server.log().contains("ready to serve client requests");
    let is_decided = || !server.is_running() || serves(server);
    wait_until(MOMENTS, is_decided, || "it neither starts nor ends".to_owned());
    if serves(server) { Ok(()) } else { Err(server.log()) }
}

#[test]
fn a_url_of_all_addresses_hears_both_families_as_with_an_etcd() {
    let Some(clients) = port_of_both() else { return };
    let hosts = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    for all in ["0.0.0.0", "[::]", "[::ffff:0.0.0.0]"] {
        let [members, metrics] = [(); 2].map(|()| port_of_both().unwrap());
        for product in products() {
            let dir = TempDir::new();
            let url = |port: u16| format!("http://{all}:{port}");
            let mut server = spawn(product, dir.path(), [&url(clients), &url(members), &url(metrics)]);
            wait_until_serving(&mut server).unwrap();
            for host in hosts {
                let said = |port, path| ask(SocketAddr::new(host, port), &format!("GET {path}"));
                for (port, path) in [(clients, "/version"), (members, "/version"), (metrics, "/livez")] {
                    let reply = said(port, path);
                    assert!(reply.starts_with("HTTP/1.1 200"), "{product:?} {all} {host} {path}: {reply}");
                }
            }
        }
    }
}

#[test]
fn addresses_that_hear_each_other_do_not_stand_side_by_side_as_with_an_etcd() {
    let Some(port) = port_of_both() else { return };
    let (one, other) = (format!("http://[::1]:{port}"), format!("http://0.0.0.0:{port}"));
    let (four, all) = (format!("http://127.0.0.1:{port}"), format!("http://[::]:{port}"));
    let both = |first: &str, second: &str| format!("{first},{second}");
    let (free, members) = (format!("http://{}", free_address()), format!("http://{}", free_address()));
    for urls in [
        [&both(&other, &one), &members, ""],
        [&both(&other, &four), &members, ""],
        [&both(&all, &other), &members, ""],
        [&free, &both(&one, &other), ""],
        [&one, &members, &other],
        [&other, &one, ""],
    ] {
        for product in products() {
            let dir = TempDir::new();
            let why = starts(product, dir.path(), urls).expect_err("one address for two");
            let expected = if product == Product::Revd { "is taken by" } else { "address already in use" };
            assert!(why.contains(expected), "{product:?} {urls:?}: {why}");
        }
    }
    for product in products() {
        let dir = TempDir::new();
        starts(product, dir.path(), [&both(&one, &four), &members, ""]).expect("these are two");
        // Another program has one of the addresses that this one would hear.
        let held = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let all = format!("http://0.0.0.0:{}", held.local_addr().unwrap().port());
        let why = starts(product, dir.path(), [&all, &members, ""]).expect_err("it is taken");
        assert!(why.to_lowercase().contains("address already in use"), "{product:?}: {why}");
        drop(held);
    }
}

#[test]
fn a_file_under_two_names_is_one_before_anything_starts() {
    let dir = TempDir::new();
    let home = dir.path().display();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    let members = format!("http://{}", free_address());
    let (plain, detour) = (format!("unix://{home}/s"), format!("unix://{home}/link/./s"));
    let why = starts(Product::Revd, dir.path(), [&plain, &members, &detour]).expect_err("two purposes");
    assert!(why.contains("of --listen-client-urls: each of these needs an address of its own"), "{why}");
    assert!(!dir.path().join("Revd").exists() && !dir.path().join("s").exists(), "nothing has begun");
    starts(Product::Revd, dir.path(), [&format!("{plain},{detour}"), &members, ""]).expect("one purpose");
}
