//! Certificates of callers that are long chains, at a server that asks for certificates.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair};
use revd_http2::PREFACE;
use revd_http2::raw::frame;
use rustls::ClientConfig;
use rustls::pki_types::PrivateKeyDer;

use super::attack::{Attack, AttackTarget};
use super::session::{Session, begin, finish};
use super::together::{PATIENCE, together};
use crate::certificates::AUTHORITY;
use crate::wire::tls::{Identity, careless};

/// Handshakes under way.
const AT_ONCE: usize = 20;
/// Chains by their certificates and by bytes that each has beside what it needs: 100 KB, which is
/// more than a message may have at most servers; 50 KB in as many certificates; and in few.
const CHAINS: [(usize, usize); 3] = [(320, 0), (150, 0), (4, 12_000)];
/// A number of nothing, for the bytes beside.
const PADDING: [u64; 9] = [1, 3, 6, 1, 4, 1, 99_999, 1, 1];

pub(super) const ATTACKS: &[Attack] = &[Attack::new("TLS: certificates that are long chains", 0, chains)
    .asked_for_certificates()
    .told("newcomer: in time")
    .never("let in")];

/// A chain in which each certificate has the name of the server's authority, so that every one may
/// have signed every other, and the authority any of them.
fn chain(count: usize, beside: usize) -> anyhow::Result<Identity> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    if beside > 0 {
        params.custom_extensions.push(CustomExtension::from_oid_content(&PADDING, vec![4; beside]));
    }
    let keys = (0..=count).map(|_| KeyPair::generate()).collect::<Result<Vec<_>, _>>()?;
    let own = KeyPair::generate()?;
    let leaf = CertificateParams::new(["attacker".to_owned()])?;
    let mut chain = vec![leaf.signed_by(&own, &Issuer::from_params(&params, &keys[0]))?.into()];
    for pair in keys.windows(2) {
        chain.push(params.signed_by(&pair[0], &Issuer::from_params(&params, &pair[1]))?.into());
    }
    let key =
        PrivateKeyDer::try_from(own.serialize_der()).map_err(|what| anyhow::anyhow!("a key: {what}"))?;
    Ok(Identity(chain, key))
}

fn chains(target: &AttackTarget) -> anyhow::Result<()> {
    let shown = |(count, beside)| careless(rustls::ALL_VERSIONS, Some(chain(count, beside)?));
    let configs = CHAINS.into_iter().map(shown).collect::<anyhow::Result<Vec<Arc<ClientConfig>>>>()?;
    for config in configs.iter().cycle().take_while(|_| !target.is_over()) {
        let mut begun =
            (0..AT_ONCE).map(|_| Caller::begin(target, config)).collect::<anyhow::Result<Vec<_>>>()?;
        for said in together(&mut begun, PATIENCE, Caller::listen) {
            target.tally.told(&match said {
                Some(Ok(1..)) => "let in".to_owned(),
                Some(Ok(_)) => "sent away without a word".to_owned(),
                Some(Err(error)) => error.to_string(),
                None => "no answer".to_owned(),
            });
        }
        target.newcomer();
    }
    Ok(())
}

/// A caller with such a chain.
struct Caller {
    session: Session,
    has_asked: bool,
}

impl Caller {
    fn begin(target: &AttackTarget, config: &Arc<ClientConfig>) -> anyhow::Result<Self> {
        let session = begin(target, config)?;
        session.sock.set_nonblocking(true)?;
        Ok(Self { session, has_asked: false })
    }

    /// With TLS 1.3 a caller has done its part before the server has looked at its chain: one that
    /// is let in is answered in HTTP/2.
    fn listen(&mut self) -> io::Result<usize> {
        finish(&mut self.session)?;
        if !self.has_asked {
            self.session.conn.writer().write_all(&[PREFACE, &frame(4, 0, 0, &[])].concat())?;
            self.has_asked = true;
        }
        self.session.read(&mut [0; 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_as_long_as_they_should_be() {
        let bytes = CHAINS.map(|(count, beside)| {
            let Identity(chain, _) = chain(count, beside).unwrap();
            chain.iter().map(|certificate| certificate.len()).sum::<usize>() / 1_000
        });
        // A message of a handshake has at most 64 KiB at a server of rustls.
        assert!(bytes[0] >= 100 && (45..65).contains(&bytes[1]) && (45..65).contains(&bytes[2]), "{bytes:?}");
    }
}
