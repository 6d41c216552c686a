//! TLS sessions of a client that is not etcdctl: what is in them, a test says byte by byte.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm, Chacha20Poly1305};
use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, ContentType, HandshakeKind, ProtocolVersion, RootCertStore,
    StreamOwned, SupportedCipherSuite,
};

use crate::harness::Server;
use crate::tls::certificates::{Authority, Issued};

/// A session with a socket under it.
pub(super) type Session = StreamOwned<ClientConnection, TcpStream>;

/// A session without a certificate.
pub(super) fn session(server: &Server, authority: &Authority) -> Session {
    let mut session = begin(server, builder(authority, &[]).with_no_client_auth());
    session.flush().unwrap();
    session
}

/// A session that begins with this certificate, and so many copies of the authority's behind it.
pub(super) fn session_with(
    server: &Server,
    authority: &Authority,
    client: &Issued,
    copies: usize,
) -> Session {
    let other = CertificateDer::from_pem_file(&authority.file).unwrap();
    begin(server, shown(builder(authority, &[]), client, &vec![other; copies]))
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

/// With these cipher suites alone, if there are any.
fn builder(authority: &Authority, suites: &[CipherSuite]) -> Builder {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&authority.file).unwrap()).unwrap();
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| suites.is_empty() || suites.contains(&suite.suite()));
    let builder = ClientConfig::builder_with_provider(Arc::new(provider));
    builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots)
}

/// Shows a certificate, and others behind it.
fn shown(builder: Builder, client: &Issued, others: &[CertificateDer<'static>]) -> ClientConfig {
    let own = CertificateDer::from_pem_file(&client.cert).unwrap();
    let chain = std::iter::once(own).chain(others.iter().cloned()).collect();
    let key = PrivateKeyDer::from_pem_file(&client.key).unwrap();
    builder.with_client_auth_cert(chain, key).unwrap()
}

fn begin(server: &Server, mut config: ClientConfig) -> Session {
    config.alpn_protocols = vec![b"h2".to_vec()];
    over(server.address, Arc::new(config)).unwrap()
}

fn over(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<Session> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let host = ServerName::from(address.ip());
    Ok(StreamOwned::new(ClientConnection::new(config, host).unwrap(), socket))
}

/// The answer over HTTP/1.1 to a request at an address, in a session of its own.
pub(super) fn ask(address: SocketAddr, authority: &Authority, line: &str) -> std::io::Result<String> {
    answer(&mut over(address, Arc::new(builder(authority, &[]).with_no_client_auth()))?, line)
}

fn answer(session: &mut Session, line: &str) -> std::io::Result<String> {
    write!(session, "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut told = String::new();
    session.read_to_string(&mut told)?;
    Ok(told)
}

/// A client with tickets: a session of it may go on from an earlier one.
pub(super) struct Caller(Arc<ClientConfig>);

/// The version and the suite that both sides of a session have agreed on, and how it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) version: ProtocolVersion,
    pub(super) suite: CipherSuite,
    pub(super) is_resumed: bool,
}

impl Caller {
    /// With these cipher suites alone, if there are any; those of TLS 1.3 and those of TLS 1.2 say
    /// which version it speaks.
    pub(super) fn new(authority: &Authority, own: Option<&Issued>, suites: &[CipherSuite]) -> Self {
        let builder = builder(authority, suites);
        let config = match own {
            Some(own) => shown(builder, own, &[]),
            None => builder.with_no_client_auth(),
        };
        Self(Arc::new(config))
    }

    /// The terms of a session in which a request was answered, or why it was not.
    pub(super) fn call(&self, address: SocketAddr) -> Result<Agreed, String> {
        let mut session = over(address, Arc::clone(&self.0)).map_err(|error| error.to_string())?;
        let told = answer(&mut session, "GET /version").map_err(|error| error.to_string())?;
        if !told.starts_with("HTTP/1.1 200") {
            return Err(format!("it was told {told:?}"));
        }
        let conn = &session.conn;
        Ok(Agreed {
            version: conn.protocol_version().unwrap(),
            suite: conn.negotiated_cipher_suite().unwrap().suite(),
            is_resumed: conn.handshake_kind() == Some(HandshakeKind::Resumed),
        })
    }
}

/// A session of TLS 1.3 whose records a test makes, of any kind; nothing is read.
pub(super) struct RawSession {
    pub socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    sent: u64,
}

/// A session without a certificate, after its handshake.
pub(super) fn raw_session(server: &Server, authority: &Authority) -> RawSession {
    let mut config = builder(authority, &[]).with_no_client_auth();
    config.enable_secret_extraction = true;
    let mut session = begin(server, config);
    session.flush().unwrap();
    let Some(SupportedCipherSuite::Tls13(suite)) = session.conn.negotiated_cipher_suite() else {
        panic!("a session of TLS 1.3")
    };
    let StreamOwned { conn, sock: socket } = session;
    let (sent, secrets) = conn.dangerous_extract_secrets().unwrap().tx;
    let (Aes128Gcm { key, iv } | Aes256Gcm { key, iv } | Chacha20Poly1305 { key, iv }) = secrets else {
        panic!("keys of a cipher that is known")
    };
    RawSession { socket, encrypter: suite.aead_alg.encrypter(key, iv), sent }
}

impl RawSession {
    /// Sends one record; the session may have ended.
    pub(super) fn send(&mut self, typ: ContentType, content: &[u8]) {
        let version = ProtocolVersion::TLSv1_3;
        let message = OutboundPlainMessage { typ, version, payload: OutboundChunks::Single(content) };
        let record = self.encrypter.encrypt(message, self.sent).unwrap().encode();
        self.sent += 1;
        let _ = self.socket.write_all(&record);
    }
}
