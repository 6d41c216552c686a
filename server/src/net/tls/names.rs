//! Which cipher suites an operator's names stand for.

use rustls::SupportedCipherSuite;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite as suites};

/// Names of cipher suites that Go has, and which one of rustls each stands for: none for those that
/// are broken or keep no forward secrecy, which rustls never offers.
const SUITES: &[(&str, Option<SupportedCipherSuite>)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", Some(suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256)),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", Some(suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", Some(suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256)),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", Some(suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384)),
    (CHACHA_ECDSA, Some(suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", Some(suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256)),
    (CHACHA_RSA, Some(suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", Some(suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256)),
    // Those of TLS 1.3 are always there, as in Go.
    ("TLS_AES_128_GCM_SHA256", None),
    ("TLS_AES_256_GCM_SHA384", None),
    ("TLS_CHACHA20_POLY1305_SHA256", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", None),
    ("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_ECDHE_RSA_WITH_RC4_128_SHA", None),
    ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_128_CBC_SHA256", None),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", None),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", None),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", None),
    ("TLS_RSA_WITH_RC4_128_SHA", None),
];

const CHACHA_ECDSA: &str = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
const CHACHA_RSA: &str = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";

/// The algorithms that are offered: all, or with these suites alone of TLS 1.2.
pub(super) fn provider(names: &[String]) -> Result<CryptoProvider, String> {
    let mut provider = aws_lc_rs::default_provider();
    if names.is_empty() {
        return Ok(provider);
    }
    let mut chosen = Vec::new();
    for name in names {
        let known = SUITES.iter().find(|(known, _)| known == name);
        let (_, suite) = known.ok_or_else(|| format!("unexpected TLS cipher suite {name:?}"))?;
        chosen.extend(suite.map(|suite| suite.suite()));
    }
    provider.cipher_suites.retain(|suite| suite.tls13().is_some() || chosen.contains(&suite.suite()));
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_chosen_by_the_names_that_go_gives_them() {
        let all = provider(&[]).unwrap().cipher_suites.len();
        let chosen =
            |names: &[&str]| provider(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        let found = chosen(&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_RSA_WITH_RC4_128_SHA"]).unwrap();
        let of_12: Vec<_> = found.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).collect();
        assert_eq!(of_12, [&suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]);
        assert_eq!(found.cipher_suites.len(), 1 + 3, "those of TLS 1.3 stay");
        assert!(all > 4);
        assert_eq!(chosen(&["FOO"]).unwrap_err(), "unexpected TLS cipher suite \"FOO\"");
    }
}
