//! Which certificates of others count: first the chain, by rustls, then the rules that etcd adds. A
//! rule that asks for a name is broken by a certificate that has none.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};

use crate::limits;
use crate::net::tls::der::{Certificate, Names, Serial};

/// The rules beside the chain.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// Numbers of certificates that count no more.
    pub revoked: BTreeSet<Serial>,
    /// Common names of which a certificate must have one; any if there are none.
    pub allowed_names: Vec<String>,
    /// Host names of which a certificate must have one; any if there are none.
    pub allowed_hosts: Vec<ServerName<'static>>,
}

impl Rules {
    /// As in etcd, every certificate that is sent is looked for among the revoked ones, and the
    /// names are those of the first.
    fn check(&self, own: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let unreadable = || Error::from(CertificateError::BadEncoding);
        let refused = || Error::from(CertificateError::ApplicationVerificationFailure);
        if !self.revoked.is_empty() {
            for certificate in std::iter::once(own).chain(others) {
                let read = Certificate::read(certificate).ok_or_else(unreadable)?;
                if self.revoked.contains(&read.serial) {
                    return Err(CertificateError::Revoked.into());
                }
            }
        }
        if !self.allowed_names.is_empty() {
            let name = Certificate::read(own).ok_or_else(unreadable)?.common_name;
            if name.is_none_or(|name| !self.allowed_names.contains(&name)) {
                return Err(refused());
            }
        }
        if !self.allowed_hosts.is_empty() {
            let parsed = ParsedCertificate::try_from(own)?;
            let is_for = |host| rustls::client::verify_server_name(&parsed, host).is_ok();
            if !self.allowed_hosts.iter().any(is_for) {
                return Err(refused());
            }
        }
        Ok(())
    }
}

/// Authorities, and certificates among them that may stand for themselves.
#[derive(Debug)]
pub(super) struct Authorities {
    roots: Arc<RootCertStore>,
    all: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Of a bundle.
    pub(super) fn new(all: Vec<CertificateDer<'static>>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(all.iter().cloned());
        Self { roots: Arc::new(roots), all }
    }

    /// None of them can be used.
    pub(super) fn is_empty(&self) -> bool {
        self.roots.is_empty()
    }

    /// A certificate of an authority that shows itself: `openssl req -x509` makes such, and Go
    /// takes them. webpki does not, so that the bundle and the dates decide here.
    fn stands_for_itself(&self, error: &Error, own: &CertificateDer<'_>, now: UnixTime) -> bool {
        let is_authority = match error {
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                other.to_string().contains("CaUsedAsEndEntity")
            }
            _ => false,
        };
        let is_current = |read: Certificate| {
            let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            (read.not_before..=read.not_after).contains(&now)
        };
        is_authority
            && self.all.iter().any(|authority| authority == own)
            && Certificate::read(own).is_some_and(is_current)
    }
}

/// No authority vouches for the certificate.
const UNKNOWN: Error = Error::InvalidCertificate(CertificateError::UnknownIssuer);

/// Certificates of authorities that name each other are tried in every order, with a signature to
/// look at in each: a dozen of them would keep a core busy for tenths of a second, and four of one
/// name for five milliseconds. Chains have one order, or two where an authority has two
/// certificates.
fn check_orders(own: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
    if others.len() > limits::TLS_CHAIN_MAX {
        return Err(UNKNOWN);
    }
    let named = |certificate| Names::read(certificate).ok_or(Error::from(CertificateError::BadEncoding));
    let (own, others) =
        (named(own)?, others.iter().map(|other| named(other)).collect::<Result<Vec<_>, _>>()?);
    let mut left = limits::TLS_CHAIN_ORDERS_MAX;
    if are_few_orders(&mut vec![&own], &others, &mut left) { Ok(()) } else { Err(UNKNOWN) }
}

/// Whether no more orders than are `left` begin with this one, which is not empty. As in webpki, a
/// key of the same name is in an order once.
fn are_few_orders<'n>(order: &mut Vec<&'n Names<'n>>, all: &'n [Names<'n>], left: &mut usize) -> bool {
    let (Some(fewer), Some(issuer)) = (left.checked_sub(1), order.last().map(|last| last.issuer)) else {
        return false;
    };
    *left = fewer;
    all.iter().filter(|next| next.subject == issuer).all(|next| {
        let is_same = |used: &&Names<'_>| used.subject == next.subject && used.public_key == next.public_key;
        if order.iter().any(is_same) {
            return true;
        }
        order.push(next);
        let are_few = are_few_orders(order, all, left);
        order.pop();
        are_few
    })
}

/// Looks at the certificates of those who connect.
#[derive(Debug)]
pub(super) struct CallerVerifier {
    /// None where there is no authority: then no certificate counts.
    chains: Option<Arc<dyn ClientCertVerifier>>,
    authorities: Authorities,
    rules: Arc<Rules>,
    provider: Arc<CryptoProvider>,
}

impl CallerVerifier {
    /// Everybody has to show a certificate.
    pub(super) fn new(
        authorities: Authorities,
        rules: Arc<Rules>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let build = || {
            let roots = Arc::clone(&authorities.roots);
            let chains = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
            chains.build().map_err(|error| error.to_string())
        };
        let chains = (!authorities.is_empty()).then(build).transpose()?;
        Ok(Self { chains, authorities, rules, provider: Arc::clone(provider) })
    }
}

impl ClientCertVerifier for CallerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.as_ref().map_or(&[], |chains| chains.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        check_orders(own, others)?;
        match self.chains.as_ref().ok_or(UNKNOWN)?.verify_client_cert(own, others, now) {
            Err(error) if !self.authorities.stands_for_itself(&error, own, now) => return Err(error),
            _ => {}
        }
        self.rules.check(own, others)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Looks at the certificate of a member that is dialed.
#[derive(Debug)]
pub(super) struct ListenerVerifier {
    /// Members that make their own certificates have nothing to verify them by: every one is taken.
    takes_all: bool,
    /// None where there is no authority: then no certificate counts, if not all do.
    chains: Option<Arc<WebPkiServerVerifier>>,
    authorities: Authorities,
    rules: Arc<Rules>,
    provider: Arc<CryptoProvider>,
}

impl ListenerVerifier {
    /// With `verifies` off every certificate counts.
    pub(super) fn new(
        authorities: Authorities,
        rules: Arc<Rules>,
        provider: &Arc<CryptoProvider>,
        verifies: bool,
    ) -> Result<Self, String> {
        let build = || {
            let roots = Arc::clone(&authorities.roots);
            let chains = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
            chains.map_err(|error| error.to_string())
        };
        let chains = (!authorities.is_empty()).then(build).transpose()?;
        Ok(Self { takes_all: !verifies, chains, authorities, rules, provider: Arc::clone(provider) })
    }
}

impl ServerCertVerifier for ListenerVerifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        check_orders(own, others)?;
        if self.takes_all {
            return Ok(ServerCertVerified::assertion());
        }
        let chains = self.chains.as_ref().ok_or(UNKNOWN)?;
        if let Err(error) = chains.verify_server_cert(own, others, host, ocsp, now) {
            if !self.authorities.stands_for_itself(&error, own, now) {
                return Err(error);
            }
            rustls::client::verify_server_name(&ParsedCertificate::try_from(own)?, host)?;
        }
        self.rules.check(own, others)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

    use super::*;

    /// An authority that signs certificates.
    struct Signer {
        params: CertificateParams,
        key: KeyPair,
    }

    impl Signer {
        fn new() -> Self {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Self { params, key: KeyPair::generate().unwrap() }
        }

        fn authorities(&self) -> Authorities {
            Authorities::new(vec![self.params.self_signed(&self.key).unwrap().der().clone()])
        }

        fn sign(&self, serial: u64, name: Option<&str>, hosts: &[&str]) -> CertificateDer<'static> {
            let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
            let mut params = CertificateParams::new(hosts).unwrap();
            params.serial_number = Some(serial.into());
            params.distinguished_name = DistinguishedName::new();
            if let Some(name) = name {
                params.distinguished_name.push(DnType::CommonName, name);
            }
            let issuer = Issuer::from_params(&self.params, &self.key);
            params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone()
        }
    }

    fn revoking(serial: u8) -> Rules {
        Rules { revoked: BTreeSet::from([Serial::from([serial])]), ..Rules::default() }
    }

    const REVOKED: Error = Error::InvalidCertificate(CertificateError::Revoked);
    const REFUSED: Error = Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure);

    #[test]
    fn one_revoked_certificate_of_a_chain_is_enough() {
        let signer = Signer::new();
        let [seven, eight, nine] = [7, 8, 9].map(|serial| signer.sign(serial, None, &[]));
        let rules = revoking(7);
        assert_eq!(rules.check(&seven, &[]), Err(REVOKED));
        assert_eq!(rules.check(&eight, &[nine.clone(), seven.clone()]), Err(REVOKED));
        assert_eq!(rules.check(&eight, std::slice::from_ref(&nine)), Ok(()));
        assert_eq!(Rules::default().check(&seven, &[]), Ok(()));
    }

    /// The names of the first certificate count, one of which has to be among those that are
    /// allowed.
    #[test]
    fn a_rule_about_names_is_broken_by_another_one_and_by_none() {
        let signer = Signer::new();
        let texts = |texts: [&str; 2]| texts.map(str::to_owned).to_vec();
        let names = Rules { allowed_names: texts(["a", "b"]), ..Rules::default() };
        let named = |name| names.check(&signer.sign(7, name, &["a"]), &[signer.sign(8, Some("a"), &[])]);
        assert_eq!([Some("a"), Some("b")].map(named), [Ok(()), Ok(())]);
        assert_eq!([Some("c"), Some("A"), None].map(named), [Err(REFUSED), Err(REFUSED), Err(REFUSED)]);
        let allowed = ["x.b.test", "10.0.0.1"].map(|host| ServerName::try_from(host).unwrap());
        let hosts = Rules { allowed_hosts: allowed.to_vec(), ..Rules::default() };
        let behind = [signer.sign(8, None, &["x.b.test"])];
        let is_one = |names: &[&str]| hosts.check(&signer.sign(7, Some("x.b.test"), names), &behind).is_ok();
        for right in [&["x.b.test"][..], &["10.0.0.1"], &["*.b.test"], &["c.test", "x.b.test"]] {
            assert!(is_one(right), "{right:?}");
        }
        for wrong in [&[][..], &["b.test"], &["y.b.test"], &["10.0.0.2"], &["*.test"]] {
            assert!(!is_one(wrong), "{wrong:?}");
        }
    }

    /// Those who call and those who are called.
    #[test]
    fn rules_count_on_both_sides_of_a_connection() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let signer = Signer::new();
        let own = signer.sign(7, None, &["h"]);
        let (host, now) = (ServerName::try_from("h").unwrap(), UnixTime::now());
        for (serial, verified) in [(7, Err(REVOKED)), (8, Ok(()))] {
            let rules = Arc::new(revoking(serial));
            let callers = CallerVerifier::new(signer.authorities(), Arc::clone(&rules), &provider).unwrap();
            assert_eq!(callers.verify_client_cert(&own, &[], now).map(drop), verified);
            let listeners = ListenerVerifier::new(signer.authorities(), rules, &provider, true).unwrap();
            assert_eq!(listeners.verify_server_cert(&own, &[], &host, &[], now).map(drop), verified);
        }
    }

    /// Certificates of authorities: whose name each has, who has signed it, and which key it has.
    fn chain(of: &[(&str, &str, usize)]) -> Vec<CertificateDer<'static>> {
        let named = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let keys: [KeyPair; 6] = std::array::from_fn(|_| KeyPair::generate().unwrap());
        let sign = |(name, by, key): &(&str, &str, usize)| {
            let issuer = named(by);
            named(name).signed_by(&keys[*key], &Issuer::from_params(&issuer, &keys[0])).unwrap().der().clone()
        };
        of.iter().map(sign).collect()
    }

    #[test]
    fn chains_of_very_many_orders_are_refused_before_a_signature_is_looked_at() {
        let check = |of: &[(&str, &str, usize)]| {
            let chain = chain(of);
            check_orders(&chain[0], &chain[1..])
        };
        let line =
            [("own", "a", 0), ("a", "b", 1), ("b", "c", 2), ("c", "d", 3), ("d", "e", 4), ("e", "root", 5)];
        assert_eq!(check(&line), Ok(()));
        assert_eq!(check(&[&line[..], &[("root", "root", 0)]].concat()), Err(UNKNOWN), "too long");
        let in_another_order = [line[0], line[3], line[5], line[1], line[4], line[2]];
        assert_eq!(check(&in_another_order), Ok(()));
        // Two roots that have signed each other, as when one takes the other's place.
        let [old, new] = ["old", "new"].map(|name| usize::from(name == "new") + 2);
        let crossed = [("new", "old", new), ("old", "new", old), ("new", "new", new), ("old", "old", old)];
        assert_eq!(check(&[&[("own", "a", 0), ("a", "new", 1)], &crossed[..]].concat()), Ok(()));
        let of_one_name = |count: usize, above: &[(&'static str, &'static str, usize)]| {
            let roots = (0..count).map(|key| ("root", "root", key + 2));
            check(&above.iter().copied().chain(roots).collect::<Vec<_>>())
        };
        let own = &[("own", "root", 0)][..];
        assert_eq!([1, 2, 3].map(|count| of_one_name(count, own)), [Ok(()), Ok(()), Ok(())]);
        assert_eq!(of_one_name(3, &[("own", "a", 0), ("a", "root", 1)]), Ok(()));
        assert_eq!(of_one_name(4, own), Err(UNKNOWN));
        let copies = [&[("own", "root", 0)][..], &[("root", "root", 1); 5]].concat();
        assert_eq!(check(&copies), Ok(()), "of one key");
        let no_certificate = CertificateDer::from(vec![0x30, 0]);
        assert_eq!(
            check_orders(&chain(own)[0], &[no_certificate]),
            Err(CertificateError::BadEncoding.into())
        );
    }

    /// A system without a bundle of authorities, and no flag that names one: a member starts, as an
    /// etcd does, and takes no certificate.
    #[test]
    fn without_any_authority_no_certificate_counts() {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let none = || Authorities::new(Vec::new());
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["h".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let (host, now) = (ServerName::try_from("h").unwrap(), UnixTime::now());
        let callers = CallerVerifier::new(none(), Arc::default(), &provider).unwrap();
        assert_eq!(callers.verify_client_cert(certificate.der(), &[], now).unwrap_err(), UNKNOWN);
        assert!(callers.root_hint_subjects().is_empty() && callers.client_auth_mandatory());
        for verifies in [true, false] {
            let listeners = ListenerVerifier::new(none(), Arc::default(), &provider, verifies).unwrap();
            let verified = listeners.verify_server_cert(certificate.der(), &[], &host, &[], now);
            assert_eq!(verified.is_ok(), !verifies);
        }
    }
}
