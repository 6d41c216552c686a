//! TLS of connections: what every connection of this process shows and trusts, and a session over
//! a socket that does not wait.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme, SupportedProtocolVersion,
};

use crate::certificates::ServerCertificate;

/// More plaintext than this is read before more records are.
const UNREAD_BYTES_MAX: usize = 12 * 1024;

/// Certificates, as etcdctl names them.
#[derive(Args, Clone, Debug, Default)]
pub struct TlsArgs {
    /// Authorities that sign certificates of servers, for https:// endpoints
    #[arg(long, global = true, value_name = "FILE", help_heading = "TLS")]
    cacert: Option<String>,
    /// Certificate to show
    #[arg(long, global = true, value_name = "FILE", requires = "key", help_heading = "TLS")]
    cert: Option<String>,
    /// Its private key
    #[arg(long, global = true, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    key: Option<String>,
    /// Take any certificate of a server
    #[arg(long, global = true, help_heading = "TLS")]
    insecure_skip_tls_verify: bool,
}

/// A chain of certificates, and the private key of its first one.
#[derive(Debug)]
pub(crate) struct Identity(pub Vec<CertificateDer<'static>>, pub PrivateKeyDer<'static>);

/// Certificates of a server that loadgen has started, read: its files end with it.
#[derive(Debug)]
struct OwnServer {
    authorities: Vec<CertificateDer<'static>>,
    /// Connections show the server's own certificate to servers that ask for one.
    shown: Option<Identity>,
}

/// The settings of connections, and what follows from them.
#[derive(Debug)]
struct Settings {
    args: TlsArgs,
    /// By the number of their [`Trusted`].
    own: BTreeMap<u64, OwnServer>,
    made: Arc<ClientConfig>,
}

static SETTINGS: Mutex<Option<Settings>> = Mutex::new(None);

/// Takes the certificates of all connections that follow.
///
/// # Errors
/// With the file in it.
pub fn set(args: &TlsArgs) -> anyhow::Result<()> {
    change(|settings| settings.args = args.clone()).map(drop)
}

/// Connections believe the authority of a server for as long as this is there.
#[derive(Debug)]
pub struct Trusted(u64);

/// Believes the authority of a server, on connections that follow; `is_shown`: they show its
/// certificate too, which the same authority has signed.
///
/// # Errors
/// With the file in it.
pub fn trust(certificate: &ServerCertificate, is_shown: bool) -> anyhow::Result<Trusted> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let authorities = certificates(&certificate.authority)?;
    let shown = if is_shown { Some(identity(&certificate.cert, &certificate.key)?) } else { None };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    change(|settings| {
        settings.own.insert(number, OwnServer { authorities, shown });
    })?;
    Ok(Trusted(number))
}

impl Drop for Trusted {
    fn drop(&mut self) {
        // The other settings were good before, too.
        let _ = change(|settings| {
            settings.own.remove(&self.0);
        });
    }
}

fn change(change: impl FnOnce(&mut Settings)) -> anyhow::Result<Arc<ClientConfig>> {
    let mut known = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut settings = match known.take() {
        Some(settings) => settings,
        None => {
            let made = Arc::new(made(&TlsArgs::default(), &BTreeMap::new())?);
            Settings { args: TlsArgs::default(), own: BTreeMap::new(), made }
        }
    };
    change(&mut settings);
    settings.made = Arc::new(made(&settings.args, &settings.own)?);
    Ok(Arc::clone(&known.insert(settings).made))
}

fn config() -> anyhow::Result<Arc<ClientConfig>> {
    let known =
        SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|it| Arc::clone(&it.made));
    known.map_or_else(|| change(|_| {}), Ok)
}

fn made(args: &TlsArgs, own: &BTreeMap<u64, OwnServer>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    if let Some(file) = &args.cacert {
        for certificate in certificates(file)? {
            roots.add(certificate).with_context(|| file.clone())?;
        }
    }
    for authority in own.values().flat_map(|server| &server.authorities) {
        roots.add(authority.clone())?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = if args.insecure_skip_tls_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)))
    } else {
        builder.with_root_certificates(roots)
    };
    let newest = own.values().rev().find_map(|server| server.shown.as_ref());
    let shown = match (newest, &args.cert, &args.key) {
        (Some(Identity(chain, key)), ..) => Some(Identity(chain.clone(), key.clone_key())),
        (None, Some(cert), Some(key)) => Some(identity(cert, key)?),
        _ => None,
    };
    finished(builder, shown)
}

/// Settings of an attacker, who believes every server and shows this chain; the keys of its
/// sessions can be taken out.
pub(crate) fn careless(
    versions: &[&'static SupportedProtocolVersion],
    shown: Option<Identity>,
) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_protocol_versions(versions)?.dangerous();
    let mut config = finished(builder.with_custom_certificate_verifier(Arc::new(Anyone(provider))), shown)?;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

fn finished(
    builder: ConfigBuilder<ClientConfig, WantsClientCert>,
    shown: Option<Identity>,
) -> anyhow::Result<ClientConfig> {
    let mut config = match shown {
        Some(Identity(chain, key)) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // As Go's clients: each connection has a handshake of its own.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn identity(cert: &str, key: &str) -> anyhow::Result<Identity> {
    let read = PrivateKeyDer::from_pem_file(key);
    let read = read.map_err(|_| anyhow::anyhow!("{key}: no private key in PEM"))?;
    Ok(Identity(certificates(cert)?, read))
}

fn certificates(file: &str) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(file).with_context(|| file.to_owned())?.collect();
    let found = found.with_context(|| file.to_owned())?;
    anyhow::ensure!(!found.is_empty(), "{file}: no certificate in PEM");
    Ok(found)
}

/// A socket, with TLS on it or not.
#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Secure(TcpStream, Box<ClientConnection>),
}

impl Socket {
    /// A session with a host, within this time.
    pub(super) fn secure(mut socket: TcpStream, host: &str, patience: Duration) -> anyhow::Result<Self> {
        let mut session = session(host)?;
        socket.set_read_timeout(Some(patience))?;
        while session.is_handshaking() {
            session.complete_io(&mut socket)?;
        }
        Ok(Self::Secure(socket, Box::new(session)))
    }

    /// A session with a host whose handshake goes on with reading and writing; what is written
    /// before it has ended is sent then.
    pub(super) fn begin_secure(socket: TcpStream, host: &str) -> anyhow::Result<Self> {
        Ok(Self::Secure(socket, Box::new(session(host)?)))
    }

    /// There is TLS on it.
    pub(super) fn is_secure(&self) -> bool {
        matches!(self, Self::Secure(..))
    }

    /// Says that nothing follows, as far as the socket takes it at once.
    pub(super) fn close(&mut self) {
        if let Self::Secure(socket, session) = self {
            session.send_close_notify();
            let _ = send(socket, session);
        }
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) | Self::Secure(socket, _) => socket,
        }
    }

    pub(super) fn never_wait(&self) -> io::Result<()> {
        self.tcp().set_nodelay(true)?;
        self.tcp().set_nonblocking(true)
    }

    /// Takes what it can of the pieces.
    pub(super) fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write_vectored(pieces),
            Self::Secure(socket, session) => {
                send(socket, session)?;
                let taken = session.writer().write_vectored(pieces)?;
                match send(socket, session) {
                    Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                    _ => Ok(taken),
                }
            }
        }
    }

    /// Sends records that wait.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Secure(socket, session) => send(socket, session),
        }
    }

    /// Reads; how much, and whether there may be more.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<(usize, bool)> {
        let Self::Secure(socket, session) = self else {
            let read = self.tcp().read(buffer)?;
            return Ok((read, read == buffer.len()));
        };
        let (mut is_dry, mut is_over, mut unread) = (false, false, 0);
        while unread < UNREAD_BYTES_MAX && !is_dry && !is_over {
            match session.read_tls(socket) {
                Ok(0) => is_over = true,
                Ok(_) => {
                    let state = session.process_new_packets();
                    let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                    unread = state.plaintext_bytes_to_read();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => is_dry = true,
                Err(error) => return Err(error),
            }
        }
        match session.reader().read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_over => Ok((0, false)),
            Err(error) => Err(error),
            Ok(read) => Ok((read, !is_dry && !is_over || read == buffer.len())),
        }
    }
}

fn session(host: &str) -> anyhow::Result<ClientConnection> {
    Ok(ClientConnection::new(config()?, server_name(host)?)?)
}

/// The name of the server at `host:port`.
pub(crate) fn server_name(host: &str) -> anyhow::Result<ServerName<'static>> {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    Ok(ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?)
}

fn send(socket: &mut TcpStream, session: &mut ClientConnection) -> io::Result<()> {
    while session.wants_write() {
        session.write_tls(socket)?;
    }
    Ok(())
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

/// Takes every certificate.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
