//! Key pairs made for tests: those of this module, and the end-to-end tests beside etcd.

use std::fs;
use std::path::Path;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RsaKeyPair,
};

/// Writes a key pair in PEM, PKCS#8 and SPKI, and returns the paths of the two files.
pub(crate) fn write_pair(dir: &Path, family: &str) -> (String, String) {
    let ecdsa = |algorithm: &'static EcdsaSigningAlgorithm| {
        let pair = EcdsaKeyPair::generate(algorithm).unwrap();
        let private = pair.to_pkcs8v1().unwrap().as_ref().to_vec();
        (private, pair.public_key().as_der().unwrap().as_ref().to_vec())
    };
    let (private, public) = match family {
        "RSA" => {
            let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
            let private = pair.as_der().unwrap().as_ref().to_vec();
            (private, pair.public_key().as_der().unwrap().as_ref().to_vec())
        }
        "P256" => ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING),
        "P384" => ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING),
        "P521" => ecdsa(&ECDSA_P521_SHA512_FIXED_SIGNING),
        "Ed25519" => {
            let private = Ed25519KeyPair::generate_pkcs8v1(&SystemRandom::new()).unwrap();
            let pair = Ed25519KeyPair::from_pkcs8(private.as_ref()).unwrap();
            (private.as_ref().to_vec(), pair.public_key().as_der().unwrap().as_ref().to_vec())
        }
        other => panic!("no pair is made for {other}"),
    };
    let write =
        |name: String, tag, der| write_file(dir, &name, pem::encode(&pem::Pem::new(tag, der)).as_bytes());
    (
        write(format!("{family}.key"), "PRIVATE KEY", private),
        write(format!("{family}.pub"), "PUBLIC KEY", public),
    )
}

/// Writes a file, and returns its path.
pub(crate) fn write_file(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}
