//! Certificates, authorities and lists that change while a member runs.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::harness::{Server, TempDir, peers, wait_until};
use crate::tls::certificates::{Authority, Issued, Wanted};
use crate::tls::etcdctl;

const SOON: Duration = Duration::from_secs(30);

/// Puts one pair in the place of another, its certificate first.
fn replace(old: &Issued, new: &Issued) {
    fs::copy(&new.cert, &old.cert).unwrap();
    fs::copy(&new.key, &old.key).unwrap();
}

#[test]
fn certificates_change_under_load_and_no_request_is_lost() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let next = Authority::new(&dir.path().join("n"), "next");
    let own = authority.issue(Wanted { file: "server", ..Wanted::default() });
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    let server = Server::revd(&dir.path().join("revd"), &flags);
    let both = dir.path().join("both.pem").to_str().unwrap().to_owned();
    fs::write(&both, [fs::read(&authority.file).unwrap(), fs::read(&next.file).unwrap()].concat()).unwrap();
    let (endpoint, is_over) = (server.endpoint(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut puts = 0;
            while !is_over.load(Ordering::Relaxed) {
                let (is_served, text) = etcdctl(&endpoint, &both, None, &format!("put k {puts}"));
                assert!(is_served, "{text}");
                puts += 1;
            }
            puts
        });
        let rotate = |times: usize| {
            let loaded = || server.log().matches("certificates were loaded anew").count() >= times;
            wait_until(SOON, loaded, || format!("not loaded: {}", server.log()));
        };
        replace(&own, &authority.issue(Wanted { file: "second", serial: 8, ..Wanted::default() }));
        rotate(1);
        replace(&own, &next.issue(Wanted { file: "third", serial: 9, ..Wanted::default() }));
        rotate(2);
        is_over.store(true, Ordering::Relaxed);
        assert!(load.join().unwrap() > 0);
    });
    let refused = etcdctl(&endpoint, &authority.file, None, "get k --command-timeout 2s");
    assert!(!refused.0, "the new certificate is another authority's: {}", refused.1);
    assert!(etcdctl(&endpoint, &next.file, None, "get k").0);
    // A broken file is told, and changes nothing.
    fs::write(&own.cert, "-----BEGIN CERTIFICATE-----\nbroken").unwrap();
    let told = || server.log().contains("the former ones stay");
    wait_until(SOON, told, || server.log());
    assert!(etcdctl(&endpoint, &next.file, None, "get k").0);
    assert!(!server.log().contains("PRIVATE"), "no key is in a log");
}

#[test]
fn a_list_and_a_bundle_that_change_count_for_the_next_connection() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let next = Authority::new(&dir.path().join("n"), "next");
    let wanted = |file, serial| Wanted { file, serial, ..Wanted::default() };
    let own = authority.issue(wanted("server", 2));
    let (client, later) = (authority.issue(wanted("client", 30)), next.issue(wanted("later", 31)));
    let (list, bundle) = (authority.revoke("list.der", &[5]), dir.path().join("bundle.pem"));
    fs::copy(&authority.file, &bundle).unwrap();
    let flags = [
        "--cert-file",
        &own.cert,
        "--key-file",
        &own.key,
        "--trusted-ca-file",
        bundle.to_str().unwrap(),
        "--client-crl-file",
        &list,
    ];
    let server = Server::revd(&dir.path().join("revd"), &flags);
    let is_served = |client: &Issued| {
        etcdctl(&server.endpoint(), &authority.file, Some(client), "get k --command-timeout 2s").0
    };
    assert!(is_served(&client) && !is_served(&later));
    fs::write(&bundle, [fs::read(&authority.file).unwrap(), fs::read(&next.file).unwrap()].concat()).unwrap();
    wait_until(SOON, || is_served(&later), || "the new authority is not known".to_owned());
    authority.revoke("list.der", &[5, 30]);
    wait_until(SOON, || !is_served(&client), || "it is revoked".to_owned());
    fs::write(&list, "no list").unwrap();
    wait_until(SOON, || server.log().contains("not a list of revoked"), || server.log());
    assert!(!is_served(&client) && is_served(&later), "the former list stays");
}
