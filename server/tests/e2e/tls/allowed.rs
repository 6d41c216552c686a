//! Names that the certificates of callers must have, where flags ask for them; beside an etcd.

use crate::harness::{Server, TempDir, free_address, said_of_both};
use crate::tls::certificates::{Authority, Issued, Wanted};
use crate::tls::members::flags;
use crate::tls::session::Caller;

/// Ports of a member.
#[derive(Clone, Copy)]
enum Port {
    Clients,
    Peers,
}

/// Which callers are served at a port of a member with these flags: of each, the names in its
/// certificate are given.
fn served(port: Port, more: &[&str], callers: &[&[&str]]) -> Vec<bool> {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let issue = |(at, names): (usize, &&[&str])| {
        // A common name is no host name.
        let common_name = Some("a.test");
        let wanted = Wanted { names, common_name, serial: 20 + at as u64, ..Wanted::default() };
        authority.issue(Wanted { file: &format!("caller{at}"), ..wanted })
    };
    let issued: Vec<Issued> = callers.iter().enumerate().map(issue).collect();
    let peers = free_address();
    let of_clients = ["--cert-file", &own.cert, "--key-file", &own.key, "--trusted-ca-file", &authority.file];
    let more = [&of_clients[..], &["--client-cert-auth"], more].concat();
    let flags = flags(0, &[format!("https://{peers}")], &authority.file, &own, &more);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    said_of_both(&flags, async |server: &Server| {
        let address = match port {
            Port::Clients => server.address,
            Port::Peers => peers,
        };
        let is_served = |own: &Issued| Caller::new(&authority, Some(own), &[]).call(address).is_ok();
        issued.iter().map(is_served).collect()
    })
}

#[test]
fn clients_need_one_of_the_host_names_that_are_allowed_as_with_an_etcd() {
    let callers: &[&[&str]] =
        &[&["a.test"], &["c.test", "x.b.test"], &["*.b.test"], &["c.test"], &["b.test", "127.0.0.1"], &[]];
    let allowed = ["--client-cert-allowed-hostname", "a.test,x.b.test"];
    assert_eq!(served(Port::Clients, &[], callers), [true; 6]);
    assert_eq!(served(Port::Clients, &allowed, callers), [true, true, true, false, false, false]);
    assert_eq!(served(Port::Clients, &["--peer-cert-allowed-hostname", "a.test"], callers), [true; 6]);
}

#[test]
fn members_need_one_of_the_host_names_that_are_allowed_as_with_an_etcd() {
    let callers: &[&[&str]] =
        &[&["a.test", "127.0.0.1"], &["x.b.test", "127.0.0.1"], &["c.test", "127.0.0.1"], &["127.0.0.1"]];
    let allowed = ["--peer-cert-allowed-hostname", "a.test,x.b.test"];
    assert_eq!(served(Port::Peers, &[], callers), [true; 4]);
    assert_eq!(served(Port::Peers, &allowed, callers), [true, true, false, false]);
}

#[test]
fn callers_of_members_come_from_where_their_certificates_say_unless_that_is_skipped_as_with_an_etcd() {
    let callers: &[&[&str]] = &[&["127.0.0.1"], &["10.1.2.3"]];
    assert_eq!(served(Port::Peers, &[], callers), [true, false]);
    assert_eq!(served(Port::Peers, &["--peer-skip-client-san-verification"], callers), [true, true]);
}
