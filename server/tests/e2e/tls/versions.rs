//! Versions of TLS and cipher suites that flags name, as callers find them at both ports of a
//! member; beside an etcd.

use rustls::{CipherSuite, ProtocolVersion};

use crate::harness::{Server, TempDir, free_address, said_of_both};
use crate::tls::certificates::{Authority, Wanted};
use crate::tls::members::flags_of_cluster;
use crate::tls::session::Caller;

/// Suites of TLS 1.2.
const AES_128: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
const AES_256: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384;
const CHACHA20: CipherSuite = CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
/// A suite of TLS 1.3.
const NEWER: CipherSuite = CipherSuite::TLS13_AES_256_GCM_SHA384;

type Agreed = Option<(ProtocolVersion, CipherSuite)>;

/// The version and the suite on which callers with these suites agree with a member of these flags;
/// none where they do not.
fn agreed(flags: &[&str], callers: &[&[CipherSuite]]) -> Vec<Agreed> {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let peers = free_address();
    let of_clients = ["--cert-file", &own.cert, "--key-file", &own.key];
    let of_peers = ["--peer-cert-file", &own.cert, "--peer-key-file", &own.key];
    let more = [&of_clients[..], &of_peers, flags].concat();
    let flags = flags_of_cluster(0, &[format!("https://{peers}")], &more);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let said = said_of_both(&flags, async |server: &Server| {
        [server.address, peers].map(|address| {
            let call = |suites: &&[CipherSuite]| {
                let agreed = Caller::new(&authority, None, suites).call(address).ok()?;
                Some((agreed.version, agreed.suite))
            };
            callers.iter().map(call).collect::<Vec<Agreed>>()
        })
    });
    let [at_clients, at_peers] = said;
    assert_eq!(at_clients, at_peers);
    at_clients
}

#[test]
fn versions_are_those_that_flags_leave_as_with_an_etcd() {
    let old = Some((ProtocolVersion::TLSv1_2, AES_128));
    let new = Some((ProtocolVersion::TLSv1_3, NEWER));
    for (flags, expected) in [
        (&[][..], [old, new, new]),
        (&["--tls-min-version", "TLS1.3"], [None, new, new]),
        (&["--tls-max-version", "TLS1.2"], [old, None, old]),
        (&["--tls-min-version", "TLS1.2", "--tls-max-version", "TLS1.3"], [old, new, new]),
    ] {
        assert_eq!(agreed(flags, &[&[AES_128], &[NEWER], &[NEWER, AES_128]]), expected, "{flags:?}");
    }
}

#[test]
fn a_list_of_cipher_suites_is_all_there_is_of_tls_1_2_as_with_an_etcd() {
    let old = |suite| Some((ProtocolVersion::TLSv1_2, suite));
    let new = Some((ProtocolVersion::TLSv1_3, NEWER));
    let callers: &[&[CipherSuite]] = &[&[AES_128], &[AES_256], &[CHACHA20], &[AES_256, CHACHA20], &[NEWER]];
    let all = agreed(&[], callers);
    assert_eq!(all[..3], [old(AES_128), old(AES_256), old(CHACHA20)]);
    // Go's HTTP/2 does not do without the first one.
    let list = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let named = agreed(&["--cipher-suites", list], callers);
    assert_eq!(named, [old(AES_128), None, old(CHACHA20), old(CHACHA20), new]);
}
