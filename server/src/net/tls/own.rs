//! Certificates that a member makes for itself (`--auto-tls`, `--peer-auto-tls`): they keep what is
//! said secret, and prove nothing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use zeroize::Zeroizing;

use crate::config::{OwnCertificate, TlsConfig};
use crate::net::tls::today;
use crate::observe::log;

const DAYS_PER_YEAR: u64 = 365;

/// Makes a certificate and its key, unless both files are there.
pub(super) fn make(config: &TlsConfig, own: &OwnCertificate) -> anyhow::Result<()> {
    let (cert_file, key_file) = (Path::new(&config.cert_file), Path::new(&config.key_file));
    if cert_file.exists() && key_file.exists() {
        return Ok(());
    }
    let dir = cert_file.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .with_context(|| dir.display().to_string())?;
    let mut params = CertificateParams::new(own.hosts.clone())?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "etcd");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = today::later(Duration::ZERO).into();
    let life = Duration::from_secs(u64::from(own.years) * DAYS_PER_YEAR * 24 * 3600);
    params.not_after = today::later(life).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    let text = Zeroizing::new(key.serialize_pem());
    write(key_file, text.as_bytes(), 0o600)?;
    write(cert_file, certificate.pem().as_bytes(), 0o644)?;
    let until = today::text(today::seconds() + i64::try_from(life.as_secs()).unwrap_or(i64::MAX));
    log::warn("automatically generate certificates", json!({"file": config.cert_file, "not-after": until}));
    Ok(())
}

fn write(file: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let written = || {
        let mut open = fs::OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(mode).open(file)?.write_all(bytes)
    };
    written().with_context(|| file.display().to_string())
}
