//! Certificates for tests, made on the spot.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::harness::free_address;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
    date_time_ymd,
};

/// In place of the address on which the servers of tests listen.
pub(crate) const HERE: &str = "here";

/// An authority, whose certificates go to a directory.
pub(crate) struct Authority {
    dir: PathBuf,
    params: CertificateParams,
    key: KeyPair,
    /// The file of its own certificate.
    pub(crate) file: String,
}

/// A certificate and its key, by their files.
#[derive(Debug, Clone)]
pub(crate) struct Issued {
    pub(crate) cert: String,
    pub(crate) key: String,
}

/// A certificate that is to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'w> {
    /// Of its files.
    pub(crate) file: &'w str,
    pub(crate) common_name: Option<&'w str>,
    pub(crate) names: &'w [&'w str],
    pub(crate) serial: u64,
    pub(crate) is_over: bool,
    /// So many days and an hour from now; else far away.
    pub(crate) ends_in_days: Option<u64>,
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Self {
            file: "own",
            common_name: None,
            names: &["localhost", "127.0.0.1", HERE],
            serial: 7,
            is_over: false,
            ends_in_days: None,
        }
    }
}

fn params(common_name: Option<&str>, names: &[&str]) -> CertificateParams {
    let here = free_address().ip().to_string();
    let name = |name: &&str| if *name == HERE { here.clone() } else { (*name).to_owned() };
    let names: Vec<String> = names.iter().map(name).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    if let Some(name) = common_name {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2090, 1, 1);
    params
}

impl Authority {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let mut params = params(Some(name), &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let file = dir.join(format!("{name}.pem"));
        fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir: dir.to_owned(), params, key, file: file.to_str().unwrap().to_owned() }
    }

    pub(crate) fn issue(&self, wanted: Wanted<'_>) -> Issued {
        let key = KeyPair::generate().unwrap();
        let made = self.sign(wanted, &key);
        let path = |end: &str| self.dir.join(format!("{}.{end}", wanted.file)).to_str().unwrap().to_owned();
        let issued = Issued { cert: path("pem"), key: path("key") };
        fs::write(&issued.cert, made.pem()).unwrap();
        fs::write(&issued.key, key.serialize_pem()).unwrap();
        issued
    }

    fn sign(&self, wanted: Wanted<'_>, key: &KeyPair) -> Certificate {
        let mut params = params(wanted.common_name, wanted.names);
        params.serial_number = Some(SerialNumber::from(wanted.serial));
        if wanted.is_over {
            params.not_after = date_time_ymd(2021, 1, 1);
        }
        if let Some(days) = wanted.ends_in_days {
            params.not_after = (SystemTime::now() + Duration::from_secs((days * 24 + 1) * 3600)).into();
        }
        params.signed_by(key, &Issuer::from_params(&self.params, &self.key)).unwrap()
    }

    /// Writes a list of revoked certificates, in DER as etcd reads it.
    pub(crate) fn revoke(&self, file: &str, serials: &[u64]) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.dir.join(file).to_str().unwrap().to_owned();
        let signed = list.signed_by(&Issuer::from_params(&self.params, &self.key)).unwrap();
        fs::write(&path, signed.der()).unwrap();
        path
    }
}

/// Certificates of an authority, of which its list has revoked one.
pub(crate) struct WithRevoked {
    pub(crate) authority: Authority,
    /// The server's.
    pub(crate) own: Issued,
    pub(crate) good: Issued,
    pub(crate) revoked: Issued,
    pub(crate) list: String,
}

impl WithRevoked {
    pub(crate) fn new(folder: &Path) -> Self {
        let authority = Authority::new(folder, "authority");
        let issue = |file, serial| authority.issue(Wanted { file, serial, ..Wanted::default() });
        let (own, good, revoked) = (issue("own", 2), issue("good", 3), issue("revoked", 600));
        let list = authority.revoke("list.der", &[600]);
        Self { authority, own, good, revoked, list }
    }
}
