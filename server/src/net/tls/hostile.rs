//! The parts of a handshake that hostile bytes reach, one call each, for fuzz targets.

use std::sync::Arc;

use rustls::ServerConnection;
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::net::tls::der::{self, Certificate};
use crate::net::tls::domain::TlsDomain;
use crate::net::tls::records::Records;
use crate::net::tls::today;

/// Whether these bytes are a certificate that counts here for a caller; they are also read as far
/// as rules look into one, and as a list of revoked ones.
#[must_use]
pub fn is_caller(domain: &TlsDomain, bytes: &[u8]) -> bool {
    let (read, _list) = (Certificate::read(bytes), der::revoked(bytes));
    let Ok(material) = domain.current() else { return false };
    let Some(callers) = &material.callers else { return false };
    let now = UnixTime::since_unix_epoch(today::now());
    let counts = callers.verify_client_cert(&CertificateDer::from(bytes), &[], now).is_ok();
    assert!(!counts || read.is_some(), "a certificate that counts can be read");
    counts
}

/// Bytes that a new session takes as the beginning of a handshake, all of these or those before the
/// first that it refuses.
#[must_use]
pub fn taken(domain: &TlsDomain, bytes: &[u8]) -> usize {
    let Ok(material) = domain.current() else { return 0 };
    let Some(server) = &material.server else { return 0 };
    let Ok(mut session) = ServerConnection::new(Arc::clone(server)) else { return 0 };
    let (mut left, mut records) = (bytes, Records::default());
    while !left.is_empty() {
        let before = left;
        let Ok(read) = session.read_tls(&mut left) else { break };
        records.pass(&before[..read], &mut { usize::MAX });
        assert!(records.unfinished() <= bytes.len() - left.len());
        if read == 0 || session.process_new_packets().is_err() {
            break;
        }
    }
    bytes.len() - left.len()
}
