//! Sessions that go on from earlier ones: where no certificate is asked for alone (decision 0026).

use rustls::CipherSuite;

use crate::harness::{Server, TempDir};
use crate::tls::certificates::{Authority, Wanted};
use crate::tls::session::Caller;

/// Suites of TLS 1.2 and of TLS 1.3, whose tickets differ.
const SUITES: [CipherSuite; 2] =
    [CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, CipherSuite::TLS13_AES_128_GCM_SHA256];

#[test]
fn sessions_are_resumed_where_no_certificate_is_asked_for_alone() {
    let dir = TempDir::new();
    let authority = Authority::new(&dir.path().join("c"), "authority");
    let own = authority.issue(Wanted::default());
    let client = authority.issue(Wanted { file: "client", serial: 8, ..Wanted::default() });
    let flags = ["--cert-file", &own.cert, "--key-file", &own.key];
    // A bundle alone asks for certificates too.
    let asking = ["--trusted-ca-file", &authority.file, "--client-cert-auth"];
    for (at, more) in [&asking[..0], &asking[..2], &asking].into_iter().enumerate() {
        let data = dir.path().join(format!("{at}"));
        let server = Server::revd(&data, &[&flags[..], more].concat());
        let asks = !more.is_empty();
        for suite in SUITES {
            let caller = Caller::new(&authority, asks.then_some(&client), &[suite]);
            let resumed = [(); 3].map(|()| caller.call(server.address).unwrap().is_resumed);
            assert_eq!(resumed, [false, !asks, !asks], "{suite:?} with {more:?}");
        }
    }
}
