//! Certificates that a member makes for itself (`--auto-tls`, `--peer-auto-tls`): they keep what is
//! said secret, and prove nothing.

use std::fs;
use std::io::{self, Write as _};
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
    // The directory too is there after a crash, with the one that it may have been made in.
    for made in dir.ancestors().skip(1).take(2).filter(|made| made.is_dir()) {
        fs::File::open(made).and_then(|made| made.sync_all()).with_context(|| made.display().to_string())?;
    }
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
    // A pair counts when both files are there: the key goes first.
    write(key_file, text.as_bytes(), 0o600)?;
    write(cert_file, certificate.pem().as_bytes(), 0o644)?;
    let until = today::text(today::seconds() + i64::try_from(life.as_secs()).unwrap_or(i64::MAX));
    log::warn("automatically generate certificates", json!({"file": config.cert_file, "not-after": until}));
    Ok(())
}

/// After a crash the file is there as a whole, or not at all.
fn write(file: &Path, bytes: &[u8], mode: u32) -> anyhow::Result<()> {
    let written = || -> io::Result<()> {
        let unfinished = file.with_extension("pem.tmp");
        // One that a crash has left may have another mode.
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut open = fs::OpenOptions::new();
        let mut made = open.write(true).create_new(true).mode(mode).open(&unfinished)?;
        made.write_all(bytes)?;
        made.sync_all()?;
        fs::rename(&unfinished, file)?;
        fs::File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    written().with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    /// A file that an earlier crash has left is neither loaded nor in the way, and a file that is
    /// replaced is another file: a reader of the old one has it as a whole.
    #[test]
    fn files_are_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key.pem");
        fs::write(file.with_extension("pem.tmp"), "half of a k").unwrap();
        fs::write(&file, "old").unwrap();
        let (old, old_number) = (fs::File::open(&file).unwrap(), fs::metadata(&file).unwrap().ino());
        write(&file, b"new", 0o600).unwrap();
        let new = fs::metadata(&file).unwrap();
        let left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let (read, old) = (fs::read(&file).unwrap(), io::read_to_string(old).unwrap());
        assert_eq!((read, &old[..], left), (b"new".to_vec(), "old", vec!["key.pem".into()]));
        assert_ne!(new.ino(), old_number);
        assert_eq!(new.mode() & 0o777, 0o600);
    }
}
