//! TLS of connections: what every connection of this process shows and trusts, and a session over
//! a socket that does not wait.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

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

/// The settings of connections, and what follows from them.
#[derive(Debug)]
struct Settings {
    args: TlsArgs,
    /// Authorities of servers that loadgen starts itself.
    more: Vec<String>,
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

/// Believes one authority more, on connections that follow.
///
/// # Errors
/// With the file in it.
pub fn trust(file: &str) -> anyhow::Result<()> {
    change(|settings| settings.more.push(file.to_owned())).map(drop)
}

fn change(change: impl FnOnce(&mut Settings)) -> anyhow::Result<Arc<ClientConfig>> {
    let mut known = SETTINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut settings = match known.take() {
        Some(settings) => settings,
        None => {
            let made = Arc::new(made(&TlsArgs::default(), &[])?);
            Settings { args: TlsArgs::default(), more: Vec::new(), made }
        }
    };
    change(&mut settings);
    settings.made = Arc::new(made(&settings.args, &settings.more)?);
    Ok(Arc::clone(&known.insert(settings).made))
}

fn config() -> anyhow::Result<Arc<ClientConfig>> {
    let known =
        SETTINGS.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|it| Arc::clone(&it.made));
    known.map_or_else(|| change(|_| {}), Ok)
}

fn made(args: &TlsArgs, more: &[String]) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for file in args.cacert.iter().chain(more) {
        for certificate in certificates(file)? {
            roots.add(certificate).with_context(|| file.clone())?;
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = if args.insecure_skip_tls_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anyone(provider)))
    } else {
        builder.with_root_certificates(roots)
    };
    let mut config = match (&args.cert, &args.key) {
        (Some(cert), Some(file)) => {
            let key = PrivateKeyDer::from_pem_file(file);
            let key = key.map_err(|_| anyhow::anyhow!("{file}: no private key in PEM"))?;
            builder.with_client_auth_cert(certificates(cert)?, key)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    // As Go's clients: each connection has a handshake of its own.
    config.resumption = Resumption::disabled();
    Ok(config)
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
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let host = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())?;
    Ok(ClientConnection::new(config()?, host)?)
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
