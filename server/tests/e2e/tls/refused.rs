//! Members whose certificates the others refuse: they take no part, until the reason is gone.

use std::path::Path;
use std::time::Duration;

use crate::harness::{Product, Server, TempDir, free_address, peers, wait_until};
use crate::tls::certificates::{Authority, HERE, Issued, Wanted};
use crate::tls::etcdctl;
use crate::tls::members::flags;

const SOON: Duration = Duration::from_secs(60);

/// The serial number of the third member's certificate.
const OF_THIRD: u64 = 12;

/// Members whose certificates have these names.
fn start(dir: &Path, authority: &Authority, names: &[&[&str]], more: &[&str]) -> (Vec<Server>, Vec<Issued>) {
    let urls: Vec<String> = names.iter().map(|_| format!("https://{}", free_address())).collect();
    let own = |(at, names): (usize, &&[&str])| {
        let file = format!("m{at}");
        authority.issue(Wanted { file: &file, names, serial: 10 + at as u64, ..Wanted::default() })
    };
    let owns: Vec<Issued> = names.iter().enumerate().map(own).collect();
    let start = |(at, own): (usize, &Issued)| {
        let flags = flags(at, &urls, &authority.file, own, more);
        Server::spawn_member(Product::Revd, free_address(), &dir.join(format!("m{at}")), &flags)
    };
    let servers = owns.iter().enumerate().map(start).collect();
    (servers, owns)
}

/// Whether a member takes part: a linearizable read needs the others.
fn takes_part(server: &Server) -> bool {
    etcdctl(&server.endpoint(), "", None, "get k --command-timeout 2s").0
}

/// Two members go on without the third one, which they refuse for this reason. After `mend`, which
/// is given its certificate's files, it takes part.
fn third_takes_part_after(
    (mut servers, owns): (Vec<Server>, Vec<Issued>),
    why: &str,
    mend: impl FnOnce(&Issued),
) {
    for server in &mut servers[..2] {
        server.wait_until_ready();
        assert!(etcdctl(&server.endpoint(), "", None, "put k v").0, "two have the quorum");
    }
    for server in &servers[..2] {
        wait_until(SOON, || server.log().contains(why), || server.log());
    }
    assert!(!takes_part(&servers[2]), "it is alone");
    mend(&owns[2]);
    wait_until(SOON, || takes_part(&servers[2]), || "the reason is gone, and it stays alone".to_owned());
}

#[test]
fn a_member_whose_certificate_is_revoked_takes_no_part() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let list = authority.revoke("list.der", &[OF_THIRD, 99]);
    let names = &["127.0.0.1", HERE][..];
    let members = start(dir.path(), &authority, &[names; 3], &["--peer-crl-file", &list]);
    third_takes_part_after(members, "invalid peer certificate: Revoked", |_| {
        authority.revoke("list.der", &[99]);
    });
}

#[test]
fn a_member_without_a_host_name_that_is_allowed_takes_no_part() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let [one, two, other] = ["one.test", "two.test", "other.test"].map(|name| [name, "127.0.0.1", HERE]);
    let allowed = ["--peer-cert-allowed-hostname", "one.test,two.test"];
    let members = start(dir.path(), &authority, &[&one, &two, &other], &allowed);
    let why = "invalid peer certificate: ApplicationVerificationFailure";
    third_takes_part_after(members, why, |old| {
        let wanted = Wanted { file: "new", names: &one, serial: 20, ..Wanted::default() };
        let new = authority.issue(wanted);
        std::fs::copy(&new.cert, &old.cert).unwrap();
        std::fs::copy(&new.key, &old.key).unwrap();
    });
}

/// The certificates of two members name the addresses that they listen on, not the one that they
/// call from: they refuse each other, unless that does not count or they call with another one.
#[test]
fn members_that_call_from_elsewhere_need_a_flag_or_another_certificate_to_call_with() {
    if peers().is_none() {
        return;
    }
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let calling = Wanted { file: "calling", names: &["127.0.0.1"], serial: 30, ..Wanted::default() };
    let calling = authority.issue(calling);
    let another = ["--peer-client-cert-file", &calling.cert, "--peer-client-key-file", &calling.key];
    let names = &[HERE][..];
    for (at, more) in [&[][..], &["--peer-skip-client-san-verification"], &another].into_iter().enumerate() {
        let dir = dir.path().join(format!("{at}"));
        std::fs::create_dir_all(&dir).unwrap();
        let (mut servers, _owns) = start(&dir, &authority, &[names; 2], more);
        if more.is_empty() {
            let refused = || servers[0].log().contains("is not valid for 127.0.0.1");
            wait_until(SOON, refused, || servers[0].log());
            assert!(!takes_part(&servers[0]) && !takes_part(&servers[1]), "there is no quorum");
        } else {
            servers.iter_mut().for_each(Server::wait_until_ready);
            assert!(takes_part(&servers[0]) && takes_part(&servers[1]), "{more:?}");
        }
    }
}
