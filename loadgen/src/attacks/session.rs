//! TLS sessions of attackers: handshakes that are begun and left, records that are made by hand.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::ConnectionTrafficSecrets::{Aes128Gcm, Aes256Gcm};
use rustls::crypto::cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::version::TLS12;
use rustls::{
    ClientConfig, ClientConnection, ContentType, ProtocolVersion, StreamOwned, SupportedCipherSuite,
};

use super::attack::AttackTarget;
use crate::wire::tls::{careless, server_name};

/// In front of each record: its kind, a version and its length.
pub(super) const HEAD_BYTES: usize = 5;

/// A session with a socket under it.
pub(super) type Session = StreamOwned<ClientConnection, TcpStream>;

/// Connects, and sends the first message of a handshake.
pub(super) fn begin(target: &AttackTarget, config: &Arc<ClientConfig>) -> anyhow::Result<Session> {
    let conn = ClientConnection::new(Arc::clone(config), server_name(target.address())?)?;
    let mut session = StreamOwned::new(conn, target.silent()?);
    while session.conn.wants_write() {
        session.conn.write_tls(&mut session.sock)?;
    }
    Ok(session)
}

/// Does the rest of the handshake.
pub(super) fn finish(session: &mut Session) -> io::Result<()> {
    while session.conn.is_handshaking() {
        session.conn.complete_io(&mut session.sock)?;
    }
    Ok(())
}

/// The first message of a handshake, in its record.
pub(super) fn hello(target: &AttackTarget) -> anyhow::Result<Vec<u8>> {
    let config = careless(rustls::ALL_VERSIONS, None)?;
    let mut session = ClientConnection::new(config, server_name(target.address())?)?;
    let mut bytes = Vec::new();
    session.write_tls(&mut bytes)?;
    Ok(bytes)
}

/// A session of TLS 1.2 whose records are made by hand, of any kind; nothing that comes is
/// decrypted.
pub(super) struct RawSession {
    pub socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    sent: u64,
}

impl RawSession {
    /// A session after its handshake.
    pub(super) fn begin(target: &AttackTarget) -> anyhow::Result<Self> {
        let mut session = begin(target, &careless(&[&TLS12], None)?)?;
        finish(&mut session)?;
        let Some(SupportedCipherSuite::Tls12(suite)) = session.conn.negotiated_cipher_suite() else {
            anyhow::bail!("no cipher suite of TLS 1.2")
        };
        let (conn, socket) = session.into_parts();
        let (sent, secrets) = conn.dangerous_extract_secrets()?.tx;
        let (Aes128Gcm { key, iv } | Aes256Gcm { key, iv }) = secrets else {
            anyhow::bail!("no keys of AES-GCM")
        };
        // The fixed part of the nonce, and the one that each record tells.
        let (fixed, told) = iv.as_ref().split_at_checked(4).context("a short nonce")?;
        Ok(Self { socket, encrypter: suite.aead_alg.encrypter(key, fixed, told), sent })
    }

    /// Sends one record.
    pub(super) fn send(&mut self, typ: ContentType, content: &[u8]) -> anyhow::Result<()> {
        let version = ProtocolVersion::TLSv1_2;
        let message = OutboundPlainMessage { typ, version, payload: OutboundChunks::Single(content) };
        let record = self.encrypter.encrypt(message, self.sent)?.encode();
        self.sent += 1;
        Ok(self.socket.write_all(&record)?)
    }
}
