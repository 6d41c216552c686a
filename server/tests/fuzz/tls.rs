//! Targets about what a TLS listener hears before it knows who speaks.

use std::sync::{Arc, OnceLock};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use revd::config::TlsConfig;
use revd::net::tls::{TlsDomain, hostile};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// A listener, and a certificate that counts there.
struct Listener {
    domain: Arc<TlsDomain>,
    good: Vec<u8>,
}

fn listener() -> &'static Listener {
    static LISTENER: OnceLock<Listener> = OnceLock::new();
    LISTENER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| {
            let file = dir.path().join(name).to_str().unwrap().to_owned();
            std::fs::write(&file, text).unwrap();
            file
        };
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let [authority_key, key] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let authority = params.self_signed(&authority_key).unwrap();
        let own = CertificateParams::new(["h".to_owned(), "10.0.0.7".to_owned()]).unwrap();
        let own = own.signed_by(&key, &Issuer::from_params(&params, &authority_key)).unwrap();
        let config = TlsConfig {
            cert_file: write("cert", own.pem()),
            key_file: write("key", key.serialize_pem()),
            trusted_ca_file: write("ca", authority.pem()),
            has_http2: true,
            ..TlsConfig::default()
        };
        let domain = TlsDomain::open("client", config).unwrap();
        Listener { domain, good: own.der().to_vec() }
    })
}

/// A certificate that was changed in any byte does not count.
pub fn certificate(bytes: &[u8]) {
    let Listener { domain, good } = listener();
    assert_eq!(hostile::is_caller(domain, bytes), bytes == good);
}

pub fn certificate_seeds() -> Vec<Vec<u8>> {
    vec![listener().good.clone()]
}

pub fn handshake(bytes: &[u8]) {
    assert!(hostile::taken(&listener().domain, bytes) <= bytes.len());
}

/// The first words of clients.
pub fn handshake_seeds() -> Vec<Vec<u8>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let hello = |versions: &[&'static rustls::SupportedProtocolVersion]| {
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_protocol_versions(versions).unwrap();
        let config = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        let host = ServerName::try_from("h").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), host).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        assert_eq!(hostile::taken(&listener().domain, &bytes), bytes.len());
        bytes
    };
    let (new, old) = (hello(&[&rustls::version::TLS13]), hello(&[&rustls::version::TLS12]));
    vec![[&new[..], &old].concat(), new, old, vec![0x16, 3, 1, 0xff, 0xff, 1, 0xff, 0xff, 0xff]]
}
