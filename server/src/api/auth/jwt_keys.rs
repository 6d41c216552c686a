//! Keys of signed tokens: files in PEM, and what aws-lc signs and verifies with them.
//!
//! The algorithm is the operator's, never a token's: a token that names another one is none. So a
//! public key is no secret of an HMAC, and nothing is believed that is not signed. Private keys are
//! held by aws-lc, which wipes them; the bytes they were read from are wiped too.

use std::fs;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED, ECDSA_P521_SHA512_FIXED_SIGNING, ED25519,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
    VerificationAlgorithm,
};
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;

use crate::config::JwtConfig;
use crate::secret::Secret;

const NO_PEM: &str = "invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key";
const NO_KEY: &str = "auth: missing key data";

/// The family of an algorithm, and what it needs.
enum Family {
    Rsa(&'static dyn RsaEncoding, &'static dyn VerificationAlgorithm),
    Ecdsa(&'static EcdsaSigningAlgorithm, &'static dyn VerificationAlgorithm),
    Ed25519,
    Hmac(hmac::Algorithm),
}

impl Family {
    /// By the name in `sign-method`, which is that in a token's head.
    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rsa(&RSA_PKCS1_SHA256, &RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Self::Rsa(&RSA_PKCS1_SHA384, &RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Self::Rsa(&RSA_PKCS1_SHA512, &RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Self::Rsa(&RSA_PSS_SHA256, &RSA_PSS_2048_8192_SHA256),
            "PS384" => Self::Rsa(&RSA_PSS_SHA384, &RSA_PSS_2048_8192_SHA384),
            "PS512" => Self::Rsa(&RSA_PSS_SHA512, &RSA_PSS_2048_8192_SHA512),
            "ES256" => Self::Ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING, &ECDSA_P256_SHA256_FIXED),
            "ES384" => Self::Ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING, &ECDSA_P384_SHA384_FIXED),
            "ES512" => Self::Ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING, &ECDSA_P521_SHA512_FIXED),
            "EdDSA" => Self::Ed25519,
            "HS256" => Self::Hmac(hmac::HMAC_SHA256),
            "HS384" => Self::Hmac(hmac::HMAC_SHA384),
            "HS512" => Self::Hmac(hmac::HMAC_SHA512),
            _ => return None,
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Rsa(..) => "RSA",
            Self::Ecdsa(..) => "ECDSA",
            Self::Ed25519 => "Ed25519",
            Self::Hmac(_) => "HMAC",
        }
    }

    fn signer(&self, file: &[u8]) -> Result<Signer, String> {
        let (tag, der) = block(file, &["PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY"])?;
        let der = der.expose();
        let signer = match self {
            Self::Rsa(encoding, _) if tag == "RSA PRIVATE KEY" => {
                RsaKeyPair::from_der(der).ok().map(|pair| Signer::Rsa(pair, *encoding))
            }
            Self::Rsa(encoding, _) => {
                RsaKeyPair::from_pkcs8(der).ok().map(|pair| Signer::Rsa(pair, *encoding))
            }
            Self::Ecdsa(algorithm, _) => {
                EcdsaKeyPair::from_private_key_der(algorithm, der).ok().map(Signer::Ecdsa)
            }
            Self::Ed25519 => Ed25519KeyPair::from_pkcs8(der).ok().map(Signer::Ed25519),
            Self::Hmac(_) => None,
        };
        signer.ok_or_else(|| format!("key is not a valid {} private key", self.name()))
    }

    fn verifier(&self, der: &[u8]) -> Option<Verifier> {
        let algorithm: &'static dyn VerificationAlgorithm = match self {
            Self::Rsa(_, algorithm) | Self::Ecdsa(_, algorithm) => *algorithm,
            Self::Ed25519 => &ED25519,
            Self::Hmac(_) => return None,
        };
        ParsedPublicKey::new(algorithm, der).ok().map(Verifier::Public)
    }

    fn public(&self, file: &[u8]) -> Result<Verifier, String> {
        let (tag, der) = block(file, &["PUBLIC KEY", "RSA PUBLIC KEY", "CERTIFICATE"])?;
        let verifier = if tag == "CERTIFICATE" {
            let certificate = CertificateDer::from(der.expose());
            let parsed = ParsedCertificate::try_from(&certificate).ok();
            parsed.and_then(|parsed| self.verifier(&parsed.subject_public_key_info()))
        } else {
            self.verifier(der.expose())
        };
        verifier.ok_or_else(|| format!("key is not a valid {} public key", self.name()))
    }
}

/// The first block of a file in PEM that has one of these tags.
fn block(file: &[u8], tags: &[&'static str]) -> Result<(&'static str, Secret), String> {
    let mut found = None;
    for block in pem::parse_many(file).map_err(|_| NO_PEM.to_owned())? {
        let tag = tags.iter().find(|tag| **tag == block.tag()).copied();
        let bytes = Secret::from(block.into_contents()); // wiped, also if it is not wanted
        found = found.or(tag.map(|tag| (tag, bytes)));
    }
    found.ok_or_else(|| NO_PEM.to_owned())
}

enum Signer {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ecdsa(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Hmac(Box<hmac::Key>),
}

impl Signer {
    fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(*encoding, &random, text, &mut signature).ok()?;
                Some(signature)
            }
            Self::Ecdsa(pair) => pair.sign(&random, text).ok().map(|signature| signature.as_ref().to_vec()),
            Self::Ed25519(pair) => Some(pair.sign(text).as_ref().to_vec()),
            Self::Hmac(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
        }
    }

    fn public(&self) -> Vec<u8> {
        match self {
            Self::Rsa(pair, _) => pair.public_key().as_ref().to_vec(),
            Self::Ecdsa(pair) => pair.public_key().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.public_key().as_ref().to_vec(),
            Self::Hmac(_) => Vec::new(),
        }
    }
}

enum Verifier {
    Public(ParsedPublicKey),
    Hmac(Box<hmac::Key>),
}

impl Verifier {
    fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Public(key) => key.verify_sig(text, signature).is_ok(),
            // In constant time.
            Self::Hmac(key) => hmac::verify(key, text, signature).is_ok(),
        }
    }
}

/// Node view: the keys of one algorithm.
pub(super) struct Keys {
    method: String,
    /// None if only a public key is known.
    signer: Option<Signer>,
    verifier: Verifier,
}

impl std::fmt::Debug for Keys {
    /// Without the keys.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("Keys");
        fields.field("method", &self.method).field("signs", &self.signer.is_some()).finish_non_exhaustive()
    }
}

impl Keys {
    /// Reads the files that the flag names.
    ///
    /// # Errors
    /// For the operator, in etcd's words where etcd refuses it; no part of a key is in it.
    pub(super) fn load(config: &JwtConfig) -> Result<Self, String> {
        let public = read(&config.public_key_file)?;
        let private = read(&config.private_key_file)?;
        let (public, private) = (public.expose(), private.expose());
        let method = config.sign_method.clone();
        if method == "none" {
            return Err("unsupported signing method: none".to_owned());
        }
        let family = Family::find(&method).ok_or_else(|| {
            format!("auth: invalid auth options: auth: invalid auth signature method {method:?}")
        })?;
        if let Family::Hmac(algorithm) = family {
            if private.is_empty() {
                return Err(NO_KEY.to_owned());
            }
            let key = || Box::new(hmac::Key::new(algorithm, private));
            return Ok(Self { method, signer: Some(Signer::Hmac(key())), verifier: Verifier::Hmac(key()) });
        }
        let signer = (!private.is_empty()).then(|| family.signer(private)).transpose()?;
        let given = (!public.is_empty()).then(|| family.public(public)).transpose()?;
        let verifier = match (&signer, given) {
            (None, None) => return Err(NO_KEY.to_owned()),
            (None, Some(given)) => given,
            (Some(signer), given) => {
                let probe = signer.sign(b"probe").ok_or("key is invalid")?;
                if given.is_some_and(|given| !given.verify(b"probe", &probe)) {
                    return Err("auth: public and private keys don't match".to_owned());
                }
                family.verifier(&signer.public()).ok_or("key is invalid")?
            }
        };
        Ok(Self { method, signer, verifier })
    }

    /// The name of the algorithm.
    pub(super) fn method(&self) -> &str {
        &self.method
    }

    /// A signature; none without a private key.
    pub(super) fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.signer.as_ref()?.sign(text)
    }

    /// Whether it is this text's signature.
    pub(super) fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        self.verifier.verify(text, signature)
    }
}

fn read(file: &str) -> Result<Secret, String> {
    if file.is_empty() {
        return Ok(Vec::new().into());
    }
    fs::read(file)
        .map(Secret::from)
        .map_err(|error| format!("auth: invalid auth options: open {file}: {error}"))
}
