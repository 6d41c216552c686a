//! Whether a caller's address is one of those that its certificate names, as etcd asks between its
//! members: an address itself, or a host name that it resolves to.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::CertificateDer;

use crate::clock::Ticker;
use crate::limits;
use crate::net::tls::der::Certificate;
use crate::queues::latch::Latch;
use crate::queues::sleep::sleep;
use crate::resolve;
use crate::threads;

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

/// Callers for whom names are being looked up.
static LOOKING_UP: Mutex<BTreeSet<IpAddr>> = Mutex::new(BTreeSet::new());

/// A caller's turn to have names looked up. One has one, so that callers whose names are not
/// answered leave turns to others.
struct LookUp(IpAddr);

impl LookUp {
    fn begin(address: IpAddr) -> Option<Self> {
        let mut callers = LOOKING_UP.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = callers.len() < limits::TLS_LOOK_UPS_MAX;
        // Made only where it is had: dropping it would wait for this lock.
        (is_free && callers.insert(address)).then(|| Self(address))
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        LOOKING_UP.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Asks the system on a thread of its own: it may take half a minute, and goes on where the
/// handshake does not.
async fn is_one_of(names: Vec<String>, address: IpAddr) -> io::Result<bool> {
    let turn = loop {
        // Members come one after the other; the handshake has a deadline.
        match LookUp::begin(address) {
            Some(turn) => break turn,
            None => sleep(limits::PEER_LOOK_UP_PAUSE).await,
        }
    };
    let (found, done) = (Arc::new(Mutex::new(false)), Latch::default());
    let (answer, over) = (Arc::clone(&found), done.clone());
    let asking = move || {
        let clock = Ticker::new();
        let is_in_time = || u128::from(clock.milliseconds()) < limits::HANDSHAKE_DEADLINE.as_millis();
        let is_named = is_named_by(&names, is_in_time, |name| has(name, address), || resolve::names(address));
        *answer.lock().unwrap_or_else(PoisonError::into_inner) = is_named;
        drop(turn);
        over.set();
    };
    threads::begin("tls name", asking)?;
    done.wait().await;
    Ok(*found.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether one of the names resolves to the address, or the address has one of them. A resolver
/// that does not answer takes half a minute for each name, and networks without a zone for
/// addresses are common: those are asked last.
fn is_named_by(
    names: &[String],
    is_in_time: impl Fn() -> bool,
    has: impl Fn(&str) -> bool,
    names_of_address: impl Fn() -> Vec<String>,
) -> bool {
    let hosts = names.iter().filter(|name| !name.starts_with("*.")).take(limits::TLS_LOOK_UP_NAMES_MAX);
    hosts.take_while(|_| is_in_time()).any(|name| has(name))
        || (is_in_time() && names_of_address().iter().any(|name| is_named(name, names)))
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

    #[test]
    fn an_address_is_asked_for_its_names_last_and_only_in_time() {
        let names = ["*.b.svc", "a", "b"].map(str::to_owned);
        let never = || -> Vec<String> { panic!("the names of the address are not asked for") };
        assert!(is_named_by(&names, || true, |name| name == "b", never));
        assert!(!is_named_by(&names, || false, |_| true, never), "the handshake is over");
        assert!(is_named_by(&names, || true, |_| false, || vec!["c.b.svc.".to_owned()]));
        assert!(!is_named_by(&names, || true, |_| false, || vec!["c".to_owned()]));
    }

    #[test]
    fn a_caller_has_one_turn_at_a_time() {
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let turn = LookUp::begin(one).unwrap();
        assert!(LookUp::begin(one).is_none());
        let others = LookUp::begin(other).unwrap();
        drop(turn);
        drop((LookUp::begin(one).unwrap(), others));
    }

    /// Row 95 of the bugs never to have: etcd lets a certificate without names pass.
    #[test]
    fn another_address_or_none_at_all_is_a_no() {
        for names in [&[][..], &["10.0.0.1"], &["host.invalid"], &["*.invalid", "10.0.0.1"]] {
            // Not the address of another test: one has one turn.
            let error = checked(names, "127.0.0.2").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{names:?}: {error}");
        }
    }
}
