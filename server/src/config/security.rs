//! Flags about TLS: files, who may connect, versions and cipher suites. The files are read by
//! `net/tls`.

use std::path::Path;

use crate::config::error::ConfigError;
use crate::config::listening::{ListenAddress, ListenPlace, Listening};
use crate::config::sources::Settings;
use crate::config::values::{list, number, switch, text};

/// TLS on both ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecurityConfig {
    /// For clients.
    pub clients: TlsConfig,
    /// Between members.
    pub peers: TlsConfig,
}

/// TLS of one port, as flags name it; what is not given is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate with those that sign it.
    pub cert_file: String,
    /// Its key.
    pub key_file: String,
    /// The certificate that is shown when this member dials, if it is another one.
    pub client_cert_file: String,
    /// Its key.
    pub client_key_file: String,
    /// Authorities that sign the certificates of others.
    pub trusted_ca_file: String,
    /// Numbers of certificates that count no more.
    pub crl_file: String,
    /// Others have to show a certificate.
    pub asks_for_certificates: bool,
    /// Common names of which a certificate must have one.
    pub allowed_names: Vec<String>,
    /// Host names of which a certificate must have one.
    pub allowed_hosts: Vec<String>,
    /// Addresses of others are compared with the names in their certificates.
    pub compares_addresses: bool,
    /// HTTP/2 is offered to those who connect, and HTTP/1.1; else the latter alone.
    pub has_http2: bool,
    /// HTTP/2 is offered to those who are called.
    pub calls_http2: bool,
    /// Those who are called are believed whatever they show.
    pub verifies_nobody: bool,
    /// How a certificate of its own is made.
    pub own: Option<OwnCertificate>,
    /// Which versions are spoken.
    pub versions: TlsVersions,
    /// Cipher suites of TLS 1.2 by their names; all if there are none.
    pub cipher_suites: Vec<String>,
}

/// A certificate that a member makes for itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnCertificate {
    /// Its names: hosts that the member listens on.
    pub hosts: Vec<String>,
    /// How long it counts.
    pub years: u32,
}

/// Versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsVersions {
    /// 1.2
    pub has_12: bool,
    /// 1.3
    pub has_13: bool,
}

impl Default for TlsVersions {
    fn default() -> Self {
        Self { has_12: true, has_13: true }
    }
}

impl TlsConfig {
    /// No certificate is given or made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cert_file.is_empty() && self.key_file.is_empty() && self.own.is_none()
    }
}

impl SecurityConfig {
    /// The meaning of the settings, of a member that listens on these addresses and has its data
    /// here.
    pub(super) fn resolve(
        settings: &Settings,
        listening: &Listening<'_>,
        data_dir: &Path,
        warnings: &mut Vec<String>,
    ) -> Result<Self, ConfigError> {
        let versions = versions(settings)?;
        let cipher_suites = list(&text(settings, "cipher-suites"));
        if !versions.has_12 && !cipher_suites.is_empty() {
            return Err(wrong("cipher suites cannot be configured when only TLS1.3 is enabled"));
        }
        let years = number(settings, "self-signed-cert-validity")?;
        let common = TlsConfig { versions, cipher_suites, ..TlsConfig::default() };
        let own = |addresses: &mut dyn Iterator<Item = &ListenAddress>| {
            let host = |listening: &ListenAddress| match &listening.place {
                ListenPlace::Tcp(address) => Some(address.ip().to_string()),
                ListenPlace::Unix(_) => None,
            };
            OwnCertificate { hosts: addresses.filter_map(host).collect(), years }
        };
        let text = |flag| text(settings, flag);
        let mut of_clients = TlsConfig {
            cert_file: text("cert-file"),
            key_file: text("key-file"),
            client_cert_file: text("client-cert-file"),
            client_key_file: text("client-key-file"),
            trusted_ca_file: text("trusted-ca-file"),
            crl_file: text("client-crl-file"),
            asks_for_certificates: switch(settings, "client-cert-auth")?,
            allowed_hosts: list(&text("client-cert-allowed-hostname")),
            ..common.clone()
        };
        let mut of_peers = TlsConfig {
            cert_file: text("peer-cert-file"),
            key_file: text("peer-key-file"),
            client_cert_file: text("peer-client-cert-file"),
            client_key_file: text("peer-client-key-file"),
            trusted_ca_file: text("peer-trusted-ca-file"),
            crl_file: text("peer-crl-file"),
            asks_for_certificates: switch(settings, "peer-client-cert-auth")?,
            allowed_names: list(&text("peer-cert-allowed-cn")),
            allowed_hosts: list(&text("peer-cert-allowed-hostname")),
            compares_addresses: !switch(settings, "peer-skip-client-san-verification")?,
            ..common.clone()
        };
        let Listening { clients, metrics, peers } = *listening;
        let sides = [
            ("auto-tls", "client", clients, metrics, &mut of_clients),
            ("peer-auto-tls", "peer", peers, &[], &mut of_peers),
        ];
        for (flag, whom, addresses, others, side) in sides {
            side.has_http2 = whom == "client";
            if switch(settings, flag)? {
                side.make_own(
                    own(&mut addresses.iter().chain(others)),
                    &common,
                    &data_dir.join("fixtures").join(whom),
                    whom,
                    warnings,
                )?;
            }
            side.check(addresses, whom, warnings)?;
        }
        // Metrics without TLS beside clients with it are usual: nothing warns of them.
        if of_clients.is_empty() && metrics.iter().any(|listening| listening.is_secure) {
            return Err(wrong(
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url",
            ));
        }
        Ok(Self { clients: of_clients, peers: of_peers })
    }
}

impl TlsConfig {
    /// A certificate of its own, unless one is given. As in etcd, nothing else of the flags counts
    /// then.
    fn make_own(
        &mut self,
        own: OwnCertificate,
        common: &Self,
        dir: &Path,
        whom: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        if !self.is_empty() {
            warnings.push(format!("ignoring {whom} auto TLS since certs given"));
            return Ok(());
        }
        if *self
            != (Self {
                has_http2: self.has_http2,
                compares_addresses: self.compares_addresses,
                ..common.clone()
            })
        {
            warnings.push(format!(
                "nobody is asked for a certificate on {whom} URLs: a member that makes its own (auto TLS) verifies nobody, \
                 and the other flags about certificates there have no effect"
            ));
        }
        if own.years == 0 {
            return Err(wrong("selfSignedCertValidity is invalid,it should be greater than 0"));
        }
        let file = |name| dir.join(name).to_string_lossy().into_owned();
        *self = Self {
            cert_file: file("cert.pem"),
            key_file: file("key.pem"),
            own: Some(own),
            has_http2: self.has_http2,
            ..common.clone()
        };
        Ok(())
    }

    fn check(
        &self,
        addresses: &[ListenAddress],
        whom: &str,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let Self { cert_file, key_file, client_cert_file, client_key_file, .. } = self;
        if let Some(secure) = addresses.iter().find(|listening| listening.is_secure)
            && self.is_empty()
        {
            return Err(wrong(&if whom == "client" {
                format!(
                    "TLS key/cert (--cert-file, --key-file) must be provided for client url {} with HTTPS scheme",
                    secure.secure_url()
                )
            } else {
                format!("cannot listen on TLS for {}: KeyFile and CertFile are not presented", secure.place)
            }));
        }
        if cert_file.is_empty() != key_file.is_empty() {
            let problem =
                format!("KeyFile and CertFile must both be present[key: {key_file}, cert: {cert_file}]");
            return Err(wrong(&problem));
        }
        if client_cert_file.is_empty() != client_key_file.is_empty() {
            return Err(wrong(&format!(
                "ClientKeyFile and ClientCertFile must both be present or both absent: key: {client_key_file}, cert: \
                 {client_cert_file}]"
            )));
        }
        if !self.allowed_names.is_empty() && !self.allowed_hosts.is_empty() {
            return Err(wrong(&format!(
                "AllowedCN and AllowedHostname are mutually exclusive (cns={:?}, hostnames={:?})",
                self.allowed_names, self.allowed_hosts
            )));
        }
        let has_plain = addresses.iter().any(|listening| listening.is_plain);
        if has_plain && !self.is_empty() {
            warnings.push(format!(
                "scheme is http or unix while key and cert files are present; ignoring key and cert files ({whom} URLs)"
            ));
        }
        if has_plain && self.asks_for_certificates {
            warnings.push(format!(
                "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL \
                 ({whom} URLs)"
            ));
        }
        Ok(())
    }
}

fn versions(settings: &Settings) -> Result<TlsVersions, ConfigError> {
    let version = |flag| match text(settings, flag).as_str() {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(12)),
        "TLS1.3" => Ok(Some(13)),
        other => Err(wrong(&format!("unexpected TLS version {other:?} (must be one of: TLS1.2, TLS1.3)"))),
    };
    let (min, max) = (version("tls-min-version")?, version("tls-max-version")?);
    if min == Some(13) && max == Some(12) {
        return Err(wrong("min version (TLS1.3) is greater than max version (TLS1.2)"));
    }
    Ok(TlsVersions { has_12: min != Some(13), has_13: max != Some(12) })
}

fn wrong(problem: &str) -> ConfigError {
    ConfigError::Security(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, resolve, sources};

    fn config(line: &str) -> Result<Config, ConfigError> {
        resolve(sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap())
    }

    #[test]
    fn flags_of_both_ports_are_told_apart() {
        let line = "--cert-file c --key-file k --trusted-ca-file t --client-cert-auth --client-crl-file l \
                    --client-cert-allowed-hostname a,b --peer-cert-file pc --peer-key-file pk --peer-cert-allowed-cn m \
                    --listen-client-urls https://127.0.0.1:1,http://127.0.0.1:1,http://127.0.0.1:2 \
                    --advertise-client-urls https://h:1 --listen-peer-urls https://127.0.0.1:3";
        let Config {
            security: SecurityConfig { clients, peers }, client_addresses, cluster, warnings, ..
        } = config(line).unwrap();
        assert_eq!((&clients.cert_file[..], &clients.key_file[..], &clients.crl_file[..]), ("c", "k", "l"));
        assert_eq!((clients.allowed_hosts.len(), clients.compares_addresses), (2, false));
        assert!(clients.asks_for_certificates && !peers.asks_for_certificates);
        assert_eq!((&peers.cert_file[..], peers.allowed_names.len()), ("pc", 1));
        assert!(peers.compares_addresses);
        let spoken: Vec<_> = client_addresses.iter().map(|it| (it.is_plain, it.is_secure)).collect();
        assert_eq!(spoken, [(true, true), (true, false)]);
        assert!(cluster.peer_addresses[0].is_secure);
        assert_eq!(warnings.iter().filter(|warning| warning.contains("ignoring")).count(), 2, "{warnings:?}");
    }

    #[test]
    fn a_member_makes_certificates_of_its_own_unless_one_is_given() {
        let made = config("--auto-tls --data-dir d --self-signed-cert-validity 3").unwrap().security.clients;
        assert_eq!(made.cert_file, "d/fixtures/client/cert.pem");
        assert_eq!(made.own.unwrap().years, 3);
        let warned = |line: &str| {
            let warnings = config(line).unwrap().warnings;
            warnings.iter().filter(|warning| warning.contains("nobody is asked")).count()
        };
        assert_eq!(warned("--auto-tls --peer-auto-tls"), 0);
        assert_eq!(warned("--auto-tls --client-cert-auth --trusted-ca-file t"), 1);
        assert_eq!(warned("--peer-auto-tls --peer-cert-allowed-cn m"), 1);
        let given = config("--peer-auto-tls --peer-cert-file c --peer-key-file k").unwrap();
        assert_eq!(given.security.peers.own, None);
        assert!(given.warnings.iter().any(|it| it == "ignoring peer auto TLS since certs given"));
    }

    /// As it is usual: probes and Prometheus come in plain, clients with certificates.
    #[test]
    fn nothing_warns_of_metrics_without_tls() {
        let line = "--cert-file c --key-file k --trusted-ca-file t --client-cert-auth --advertise-client-urls x \
                    --listen-client-urls https://127.0.0.1:1 --listen-metrics-urls http://127.0.0.1:3";
        let said = |warnings: &[String]| warnings.iter().any(|warning| warning.contains("scheme is http"));
        assert!(!said(&config(line).unwrap().warnings));
        assert!(said(&config(&line.replace("https://127.0.0.1:1", "http://127.0.0.1:1")).unwrap().warnings));
    }

    /// In etcd's words.
    #[test]
    fn what_cannot_work_is_refused() {
        let secure = "--listen-client-urls https://127.0.0.1:1 --advertise-client-urls https://127.0.0.1:1";
        for (line, part) in [
            (
                secure,
                "TLS key/cert (--cert-file, --key-file) must be provided for client url https://127.0.0.1:1 with HTTPS \
                 scheme",
            ),
            (
                "--listen-peer-urls https://127.0.0.1:2",
                "cannot listen on TLS for 127.0.0.1:2: KeyFile and CertFile are not presented",
            ),
            ("--cert-file x", "KeyFile and CertFile must both be present[key: , cert: x]"),
            (
                "--listen-metrics-urls https://127.0.0.1:3",
                "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url",
            ),
            ("--peer-client-key-file x", "must both be present or both absent"),
            (
                "--tls-min-version TLS1.1",
                "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)",
            ),
            (
                "--tls-min-version TLS1.3 --tls-max-version TLS1.2",
                "min version (TLS1.3) is greater than max version (TLS1.2)",
            ),
            (
                "--tls-min-version TLS1.3 --cipher-suites TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                "cipher suites cannot be configured when only TLS1.3 is enabled",
            ),
            ("--auto-tls --self-signed-cert-validity 0", "selfSignedCertValidity is invalid"),
            ("--peer-cert-allowed-cn a --peer-cert-allowed-hostname b", "mutually exclusive"),
            (
                "--listen-client-urls unixs://x --advertise-client-urls x",
                "must be provided for client url unixs://x with HTTPS scheme",
            ),
        ] {
            let error = config(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
