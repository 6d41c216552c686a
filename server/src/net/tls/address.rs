//! Whether a caller's address is one of those that its certificate names, as etcd asks between its
//! members: an address itself, or a host name that it resolves to.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::CertificateDer;

use crate::clock::Ticker;
use crate::limits;
use crate::net::tls::der::Certificate;
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;
use crate::resolve;

/// Checks a caller's certificate.
///
/// # Errors
/// When it does not name this address. One without a name for it is refused as well.
pub(super) async fn check(certificate: &CertificateDer<'_>, address: IpAddr) -> io::Result<()> {
    let address = address.to_canonical();
    let refused = |why: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    let Some(read) = Certificate::read(certificate) else {
        return refused("tls: the certificate cannot be read".to_owned());
    };
    if read.addresses.iter().any(|named| named.to_canonical() == address) {
        return Ok(());
    }
    if read.dns_names.is_empty() {
        let named = read.addresses;
        return refused(format!("tls: the certificate is not valid for {address} (it names {named:?})"));
    }
    let names = read.dns_names.clone();
    if is_one_of(names, address).await? {
        return Ok(());
    }
    refused(format!("tls: \"{address}\" does not match any of DNSNames {:?}", read.dns_names))
}

/// Names are being looked up for so many handshakes.
static LOOKING_UP: AtomicUsize = AtomicUsize::new(0);

/// Asks the system on a thread of its own: it may take half a minute.
async fn is_one_of(names: Vec<String>, address: IpAddr) -> io::Result<bool> {
    // Members come one after the other; the handshake has a deadline.
    while LOOKING_UP.fetch_add(1, Ordering::AcqRel) >= limits::TLS_LOOK_UPS_MAX {
        LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
        sleep(limits::PEER_LOOK_UP_PAUSE).await;
    }
    let (found, done) = (Arc::new(Mutex::new(false)), Latch::default());
    let (answer, over) = (Arc::clone(&found), done.clone());
    let asking = move || {
        // A resolver that does not answer takes half a minute for each name.
        let (clock, names_max) = (Ticker::new(), limits::TLS_LOOK_UP_NAMES_MAX);
        let is_in_time = || u128::from(clock.milliseconds()) < limits::HANDSHAKE_DEADLINE.as_millis();
        let hosts = names.iter().filter(|name| !name.starts_with("*.")).take(names_max);
        let is_named = resolve::names(address).iter().any(|name| is_named(name, &names))
            || hosts.take_while(|_| is_in_time()).any(|name| has(name, address));
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = is_named;
        LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
        over.set();
    };
    if let Err(error) = std::thread::Builder::new().name("tls name".to_owned()).spawn(asking) {
        LOOKING_UP.fetch_sub(1, Ordering::AcqRel);
        return Err(error);
    }
    done.wait().await;
    Ok(*found.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A name that the address has, among those of a certificate.
fn is_named(name: &str, of_certificate: &[String]) -> bool {
    let name = name.trim_end_matches('.');
    of_certificate.iter().any(|named| match named.strip_prefix('*') {
        Some(suffix) if suffix.starts_with('.') => name.ends_with(suffix),
        _ => name == named,
    })
}

fn has(name: &str, address: IpAddr) -> bool {
    let found = resolve::addresses(&format!("{name}:0")).unwrap_or_default();
    found.iter().any(|found| found.ip().to_canonical() == address)
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn checked(names: &[&str], address: &str) -> io::Result<()> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        block_on(check(certificate.der(), address.parse().unwrap()))
    }

    #[test]
    fn an_address_or_a_name_that_resolves_to_it_is_a_yes() {
        checked(&["10.0.0.1", "127.0.0.1"], "127.0.0.1").unwrap();
        checked(&["127.0.0.1"], "::ffff:127.0.0.1").unwrap();
        checked(&["10.0.0.1", "localhost"], "127.0.0.1").unwrap();
        assert!(is_named("a.b.svc.", &["*.b.svc".to_owned()]) && is_named("h", &["h".to_owned()]));
        assert!(!is_named("b.svc", &["*.b.svc".to_owned()]));
    }

    /// Row 95 of the bugs never to have: etcd lets a certificate without names pass.
    #[test]
    fn another_address_or_none_at_all_is_a_no() {
        for names in [&[][..], &["10.0.0.1"], &["host.invalid"], &["*.invalid", "10.0.0.1"]] {
            let error = checked(names, "127.0.0.1").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{names:?}: {error}");
        }
    }
}
