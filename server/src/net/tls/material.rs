//! One loading of the files that flags name, made into what handshakes use.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
use zeroize::Zeroize as _;

use crate::config::{TlsConfig, TlsVersions};
use crate::net::tls::der::{self, Certificate};
use crate::net::tls::names;
use crate::net::tls::rules::{Authorities, CallerVerifier, ListenerVerifier, Rules};

/// Where systems keep the authorities that they trust; the first one there is.
const SYSTEM_BUNDLES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Node view: configurations of both sides of handshakes; another value after each loading.
pub(crate) struct Material {
    /// For connections that others open; none without a certificate.
    pub(super) server: Option<Arc<ServerConfig>>,
    /// For connections to other members.
    pub(crate) client: Arc<ClientConfig>,
    /// Looks at the certificates of those who are dialed.
    pub(super) listeners: Arc<dyn ServerCertVerifier>,
    /// Looks at the certificates of those who connect; none if they show none.
    pub(super) callers: Option<Arc<dyn ClientCertVerifier>>,
    /// Callers are known by the common names of their certificates: those are asked for, not only
    /// looked at because there is an authority.
    pub(super) names_callers: bool,
    /// Addresses of callers are compared with the names in their certificates.
    pub(super) compares_addresses: bool,
    /// The end of each certificate, by its file, in seconds since 1970.
    pub(super) ends: Vec<(String, i64)>,
}

impl Material {
    /// Reads all files; nothing is taken of what is not whole.
    ///
    /// # Errors
    /// For the operator; no part of a key is in it.
    pub(crate) fn load(config: &TlsConfig) -> Result<Self, String> {
        let provider = Arc::new(names::provider(&config.cipher_suites)?);
        let versions = versions(config.versions);
        let rules = Arc::new(Rules {
            revoked: revoked(&config.crl_file)?,
            allowed_names: config.allowed_names.clone(),
            allowed_hosts: hosts(&config.allowed_hosts)?,
        });
        let own = KeyPair::load(&config.cert_file, &config.key_file)?;
        let dialing = match KeyPair::load(&config.client_cert_file, &config.client_key_file)? {
            None => own.as_ref().map(KeyPair::copy),
            other => other,
        };
        let asks = config.asks_for_certificates || !config.trusted_ca_file.is_empty();
        let mut callers = None;
        let mut ends = Vec::new();
        for (file, pair) in [(&config.cert_file, &own), (&config.client_cert_file, &dialing)] {
            let first = pair.as_ref().and_then(|pair| pair.chain.first());
            let read = first.filter(|_| !file.is_empty()).and_then(|first| Certificate::read(first));
            ends.extend(read.map(|read| (file.clone(), read.not_after)));
        }
        if own.is_some() && asks {
            let verifier = CallerVerifier::new(authorities(config)?, Arc::clone(&rules), &provider)?;
            callers = Some(Arc::new(verifier) as Arc<dyn ClientCertVerifier>);
        }
        let server =
            own.map(|own| own.server(&provider, &versions, callers.clone(), config.has_http2)).transpose()?;
        let verifies = config.own.is_none() && !config.verifies_nobody;
        let verifier = ListenerVerifier::new(authorities(config)?, rules, &provider, verifies)?;
        let listeners: Arc<dyn ServerCertVerifier> = Arc::new(verifier);
        let mut client = client(dialing, &provider, &versions, Arc::clone(&listeners))?;
        if config.calls_http2 {
            client.alpn_protocols = vec![b"h2".to_vec()];
        }
        let client = Arc::new(client);
        let (names_callers, compares_addresses) = (config.asks_for_certificates, config.compares_addresses);
        Ok(Self { server, client, listeners, callers, names_callers, compares_addresses, ends })
    }
}

fn versions(versions: TlsVersions) -> Vec<&'static SupportedProtocolVersion> {
    let of_12 = versions.has_12.then_some(&TLS12);
    of_12.into_iter().chain(versions.has_13.then_some(&TLS13)).collect()
}

/// A certificate with those that sign it, and its key.
struct KeyPair {
    files: [String; 2],
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl KeyPair {
    fn load(cert_file: &str, key_file: &str) -> Result<Option<Self>, String> {
        if cert_file.is_empty() {
            return Ok(None);
        }
        let chain = certificates(cert_file)?;
        let mut pem = read(key_file)?;
        // The text of a key is not repeated, also not the part that is broken.
        let key = PrivateKeyDer::from_pem_slice(&pem)
            .map_err(|_| format!("{key_file}: no private key in PEM (PKCS#8, PKCS#1 or SEC1)"))?;
        pem.zeroize(); // before its memory is used again
        Ok(Some(Self { files: [cert_file, key_file].map(str::to_owned), chain, key }))
    }

    fn copy(&self) -> Self {
        Self { files: self.files.clone(), chain: self.chain.clone(), key: self.key.clone_key() }
    }

    fn server(
        self,
        provider: &Arc<CryptoProvider>,
        versions: &[&'static SupportedProtocolVersion],
        callers: Option<Arc<dyn ClientCertVerifier>>,
        has_http2: bool,
    ) -> Result<Arc<ServerConfig>, String> {
        let problem = |error: rustls::Error| format!("{}: {error}", self.files.join(", "));
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
        let builder = builder.with_protocol_versions(versions).map_err(problem)?;
        let asks = callers.is_some();
        let builder = match callers {
            Some(callers) => builder.with_client_cert_verifier(callers),
            None => builder.with_no_client_auth(),
        };
        let mut server = builder.with_single_cert(self.chain, self.key).map_err(problem)?;
        server.alpn_protocols = vec![b"http/1.1".to_vec()];
        if has_http2 {
            server.alpn_protocols.insert(0, b"h2".to_vec());
        }
        // Tickets alone, which need no memory, and one each: clients keep a connection for long.
        // Where callers are asked for certificates there are none: a session that is resumed shows
        // no certificate, and one that was revoked since would be refused behind the handshake,
        // without a word why.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = usize::from(!asks);
        if !asks {
            server.ticketer = Ticketer::new().map_err(|error| error.to_string())?;
        }
        Ok(Arc::new(server))
    }
}

fn client(
    own: Option<KeyPair>,
    provider: &Arc<CryptoProvider>,
    versions: &[&'static SupportedProtocolVersion],
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_protocol_versions(versions).map_err(|error| error.to_string())?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    Ok(match own {
        Some(KeyPair { files, chain, key }) => {
            let problem = |error: rustls::Error| format!("{}: {error}", files.join(", "));
            builder.with_client_auth_cert(chain, key).map_err(problem)?
        }
        None => builder.with_no_client_auth(),
    })
}

/// Of the bundle that is named, or of the system.
fn authorities(config: &TlsConfig) -> Result<Authorities, String> {
    if !config.trusted_ca_file.is_empty() {
        let found = Authorities::new(certificates(&config.trusted_ca_file)?);
        let problem = || format!("{}: no certificate of an authority in PEM", config.trusted_ca_file);
        return if found.is_empty() { Err(problem()) } else { Ok(found) };
    }
    let bundle = SYSTEM_BUNDLES.iter().find_map(|file| certificates(file).ok());
    Ok(Authorities::new(bundle.unwrap_or_default()))
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(file)?).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(format!("{file}: no certificate in PEM")),
        Err(error) => Err(format!("{file}: {error}")),
    }
}

/// The numbers in a list of revoked certificates, in DER as etcd reads it, or in PEM.
fn revoked(file: &str) -> Result<BTreeSet<der::Serial>, String> {
    if file.is_empty() {
        return Ok(BTreeSet::new());
    }
    let bytes = read(file)?;
    if let Some(found) = der::revoked(&bytes) {
        return Ok(found);
    }
    let mut found = BTreeSet::new();
    let mut lists = CertificateRevocationListDer::pem_slice_iter(&bytes).peekable();
    let problem = || format!("{file}: not a list of revoked certificates");
    lists.peek().ok_or_else(problem)?;
    for list in lists {
        found.extend(der::revoked(&list.map_err(|_| problem())?).ok_or_else(problem)?);
    }
    Ok(found)
}

fn hosts(names: &[String]) -> Result<Vec<ServerName<'static>>, String> {
    let host = |name: &String| {
        let host = ServerName::try_from(name.clone());
        host.map_err(|_| format!("{name:?} is neither a host name nor an address"))
    };
    names.iter().map(host).collect()
}

fn read(file: &str) -> Result<Vec<u8>, String> {
    // As Go words it.
    fs::read(file).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("open {file}: no such file or directory"),
        _ => format!("open {file}: {error}"),
    })
}
