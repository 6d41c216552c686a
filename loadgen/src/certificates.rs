//! Certificates for servers that a run starts itself: an authority and one certificate of it, for
//! as long as the run lasts.

use std::path::Path;

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// The name of every authority.
pub const AUTHORITY: &str = "loadgen";

/// Files of an authority, and of a certificate for this machine that it has signed.
#[derive(Debug, Clone)]
pub struct ServerCertificate {
    /// The authority's certificate.
    pub authority: String,
    /// The server's.
    pub cert: String,
    /// Its private key.
    pub key: String,
}

impl ServerCertificate {
    /// Makes them, with keys on P-256.
    ///
    /// # Errors
    /// With the file that cannot be written.
    pub fn make(folder: &Path) -> anyhow::Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, AUTHORITY);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority = params.self_signed(&authority_key)?;
        let own_key = KeyPair::generate()?;
        let own = CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned))?;
        let own = own.signed_by(&own_key, &Issuer::from_params(&params, &authority_key))?;
        let write = |name: &str, text: String| -> anyhow::Result<String> {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            Ok(path.to_str().context("a folder whose name is no text")?.to_owned())
        };
        Ok(Self {
            authority: write("authority.pem", authority.pem())?,
            cert: write("server.pem", own.pem())?,
            key: write("server.key", own_key.serialize_pem())?,
        })
    }

    /// The flags of a server, as etcd has them.
    #[must_use]
    pub fn flags(&self) -> [&str; 4] {
        ["--cert-file", &self.cert, "--key-file", &self.key]
    }
}
