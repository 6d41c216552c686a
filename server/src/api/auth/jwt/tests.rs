//! Every algorithm, keys that do not fit, and tokens that are none.

use std::path::Path;

use tempfile::TempDir;

use super::key_pairs::{write_file, write_pair};
use super::*;

const NOW: i64 = 1_000;

fn pair(dir: &Path, family: &str) -> (String, String) {
    if family == "HMAC" {
        return (write_file(dir, "HMAC.key", b"a shared secret\n"), String::new());
    }
    write_pair(dir, family)
}

fn load(method: &str, private: &str, public: &str) -> Result<Jwt, String> {
    Jwt::load(&JwtConfig {
        sign_method: method.to_owned(),
        public_key_file: public.to_owned(),
        private_key_file: private.to_owned(),
        ttl: Duration::from_secs(60),
    })
}

fn hmac(dir: &Path) -> Jwt {
    load("HS256", &pair(dir, "HMAC").0, "").unwrap()
}

fn found(jwt: &Jwt, token: &str) -> Option<User> {
    jwt.find_at(&Secret::from(token.to_owned()), NOW).map(|user| (*user).clone())
}

fn ann() -> Option<User> {
    Some(User { name: "ann".to_owned(), revision: Some(7) })
}

const METHODS: [(&str, &str); 13] = [
    ("RS256", "RSA"),
    ("RS384", "RSA"),
    ("RS512", "RSA"),
    ("PS256", "RSA"),
    ("PS384", "RSA"),
    ("PS512", "RSA"),
    ("ES256", "P256"),
    ("ES384", "P384"),
    ("ES512", "P521"),
    ("EdDSA", "Ed25519"),
    ("HS256", "HMAC"),
    ("HS384", "HMAC"),
    ("HS512", "HMAC"),
];

#[test]
fn a_token_of_every_algorithm_is_its_users_and_no_other_algorithms() {
    let dir = TempDir::new().unwrap();
    let families = ["RSA", "P256", "P384", "P521", "Ed25519", "HMAC"];
    let pairs: Vec<_> = families.iter().map(|family| (*family, pair(dir.path(), family))).collect();
    let keys = |wanted| pairs.iter().find(|(family, _)| *family == wanted).map(|(_, pair)| pair).unwrap();
    let mut tokens = Vec::new();
    for (method, family) in METHODS {
        let (private, public) = keys(family);
        let both = load(method, private, public).unwrap();
        let token = both.sign_until("ann", 7, NOW + 1).unwrap();
        assert_eq!(found(&both, &token), ann(), "{method}");
        if family != "HMAC" {
            let verifies = load(method, "", public).unwrap();
            assert_eq!(found(&verifies, &token), ann(), "{method} with the public key alone");
            assert_eq!(verifies.sign("ann", 7), Err(Error::Auth(AuthError::VerifyOnlyKey)));
        }
        tokens.push((method, both, token));
    }
    for (method, jwt, _) in &tokens {
        for (other, _, token) in tokens.iter().filter(|(other, ..)| other != method) {
            assert_eq!(found(jwt, token), None, "{other} for {method}");
        }
    }
}

/// CVE-2015-9235 and its like: a token says how it is to be verified.
#[test]
fn a_token_does_not_choose_its_algorithm() {
    let dir = TempDir::new().unwrap();
    let (private, public) = pair(dir.path(), "RSA");
    let jwt = load("RS256", &private, &public).unwrap();
    let claims = json!({"username": "ann", "revision": 7, "exp": NOW + 1});
    let encode = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    // The public key, as its file and as its bytes, as the secret of an HMAC.
    let text = std::fs::read(&public).unwrap();
    let der = pem::parse(&text).unwrap().into_contents();
    for (head, secret) in [("HS256", &text), ("HS256", &der), ("RS256", &text)] {
        let signed = format!("{}.{}", encode(&json!({"alg": head})), encode(&claims));
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
        let tag = aws_lc_rs::hmac::sign(&key, signed.as_bytes());
        let token = format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag));
        assert_eq!(found(&jwt, &token), None, "{head}");
    }
    for alg in ["none", "None", "NONE", ""] {
        let signed = format!("{}.{}", encode(&json!({"alg": alg})), encode(&claims));
        for token in [format!("{signed}."), signed.clone(), format!("{signed}.AA")] {
            assert_eq!(found(&jwt, &token), None, "{alg}");
        }
    }
}

/// A token with these claims and this head, rightly signed.
fn signed(jwt: &Jwt, head: &str, claims: &str) -> String {
    let encode = |part: &str| BASE64_URL_SAFE_NO_PAD.encode(part);
    let text = format!("{}.{}", encode(head), encode(claims));
    let signature = jwt.keys.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// Row 88 of the catalogue: claims that are not there, or of another type.
#[test]
fn claims_mean_what_they_mean_to_etcd() {
    let dir = TempDir::new().unwrap();
    let jwt = hmac(dir.path());
    const HEAD: &str = r#"{"alg":"HS256","typ":"JWT"}"#;
    for good in [
        r#"{"username":"ann","revision":7}"#,
        r#"{"username":"ann","revision":7,"exp":0}"#,
        r#"{"username":"ann","revision":7,"exp":1000.9e0,"exp":1001}"#,
        r#"{"username":"ann","revision":7,"exp":1e18}"#,
        r#"{"username":"ann","revision":7.9,"nbf":1000,"iat":5000,"aud":["x"],"iss":3}"#,
        r#"{"username":"bob","username":"ann","revision":7} "#,
        r#"{"Username":"bob","username":"ann","revision":7}"#,
    ] {
        assert_eq!(found(&jwt, &signed(&jwt, HEAD, good)), ann(), "{good}");
    }
    let deep = format!(r#"{{"username":"ann","revision":7,"a":{}{}}}"#, "[".repeat(5_000), "]".repeat(5_000));
    for bad in [
        r#"{"username":"ann","revision":7,"exp":1000}"#,
        r#"{"username":"ann","revision":7,"exp":-5}"#,
        r#"{"username":"ann","revision":7,"exp":1e300}"#,
        r#"{"username":"ann","revision":7,"exp":"5000"}"#,
        r#"{"username":"ann","revision":7,"exp":null}"#,
        r#"{"username":"ann","revision":7,"nbf":1001}"#,
        r#"{"username":"ann","revision":7,"nbf":"x"}"#,
        r#"{"username":"ann","revision":"7"}"#,
        r#"{"username":"ann","revision":-1}"#,
        r#"{"username":"ann","revision":1e30}"#,
        r#"{"username":"ann","revision":null}"#,
        r#"{"username":"ann"}"#,
        r#"{"revision":7}"#,
        r#"{"username":7,"revision":7}"#,
        r#"[{"username":"ann","revision":7}]"#,
        r#"{"username":"ann","revision":7} x"#,
        "null",
        "",
        &deep,
    ] {
        assert_eq!(found(&jwt, &signed(&jwt, HEAD, bad)), None, "{bad}");
    }
    let claims = r#"{"username":"ann","revision":7}"#;
    assert_eq!(found(&jwt, &signed(&jwt, r#"{"alg":"HS256"}"#, claims)), ann());
    for head in ["{}", r#"{"alg":"hs256"}"#, r#"{"alg":7}"#, r#"{"Alg":"HS256"}"#, "[]"] {
        assert_eq!(found(&jwt, &signed(&jwt, head, claims)), None, "{head}");
    }
    // etcd does not look at it: what has to be understood is not.
    assert_eq!(found(&jwt, &signed(&jwt, r#"{"alg":"HS256","crit":["x"]}"#, claims)), None);
}

#[test]
fn damaged_tokens_are_none() {
    let dir = TempDir::new().unwrap();
    let jwt = hmac(dir.path());
    let token = jwt.sign_until("ann", 7, NOW + 1).unwrap();
    for at in 0..token.len() {
        for bit in 0..7 {
            let mut bad = token.clone().into_bytes();
            bad[at] ^= 1 << bit;
            assert_eq!(jwt.find_at(&bad.into(), NOW), None, "bit {bit} of byte {at}");
        }
        assert_eq!(found(&jwt, &token[..at]), None);
        assert_eq!(found(&jwt, &token[at + 1..]), None);
    }
    for bad in [format!("{token}="), format!("{token}.x"), format!(".{token}"), "..".to_owned()] {
        assert_eq!(found(&jwt, &bad), None, "{bad}");
    }
    let long = signed(
        &jwt,
        &format!(r#"{{"alg":"HS256","x":"{}"}}"#, "x".repeat(20_000)),
        r#"{"username":"ann","revision":7}"#,
    );
    assert_eq!(found(&jwt, &long), None, "longer than JWT_BYTES_MAX");
}

#[test]
fn a_token_ends_also_when_it_is_remembered() {
    let dir = TempDir::new().unwrap();
    let jwt = hmac(dir.path());
    let token = Secret::from(jwt.sign_until("ann", 7, NOW + 10).unwrap());
    assert!(jwt.find_at(&token, NOW + 9).is_some());
    assert!(jwt.find_at(&token, NOW + 10).is_none());
    assert_eq!(jwt.name(&token).as_deref(), Some("ann"), "who was let in keeps its name");
}

#[test]
fn verified_tokens_have_a_bound() {
    let dir = TempDir::new().unwrap();
    let jwt = hmac(dir.path());
    let in_use = jwt.sign_until("bob", 7, 1 << 60).unwrap();
    for number in 0..limits::JWTS_VERIFIED_MAX as u64 + 3 {
        let token = jwt.sign_until("ann", number, 1 << 60).unwrap();
        assert!(found(&jwt, &token).is_some());
        if number % 1_000 == 0 {
            assert!(found(&jwt, &in_use).is_some());
        }
        assert!(jwt.verified.read().unwrap().len() <= limits::JWTS_VERIFIED_MAX);
    }
    assert!(is_remembered(&jwt, &in_use), "whatever came once");
}

fn is_remembered(jwt: &Jwt, token: &str) -> bool {
    jwt.remembered(&Sha256::digest(token).into()).is_some()
}

/// In etcd's words, and without a part of a key.
/// A wrong token would cost a verification with each request that carries it.
#[test]
fn refused_tokens_are_remembered_and_have_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let jwt = hmac(dir.path());
    let refused = || jwt.refused.read().unwrap().len();
    let right = jwt.sign_until("ann", 7, NOW + 10).unwrap();
    for _ in 0..3 {
        assert_eq!(found(&jwt, &format!("{right}x")), None);
        assert_eq!(found(&jwt, &right), ann());
        assert_eq!(refused(), 1, "once, and the right one is not among them");
    }
    for number in 0..2 * limits::JWTS_REFUSED_MAX {
        assert_eq!(found(&jwt, &format!("a.b.{number}")), None);
        assert!(refused() <= limits::JWTS_REFUSED_MAX);
        assert_eq!(found(&jwt, "a.b.often"), None);
    }
    assert!(is_remembered(&jwt, "a.b.often"));
    assert_eq!(found(&jwt, &right), ann());
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let dir = TempDir::new().unwrap();
    let (rsa, rsa_public) = pair(dir.path(), "RSA");
    let (ec, ec_public) = pair(dir.path(), "P384");
    let (ed, _) = pair(dir.path(), "Ed25519");
    let other = TempDir::new().unwrap();
    let (_, other_public) = pair(other.path(), "RSA");
    let junk = write_file(dir.path(), "junk", b"correct-horse");
    let empty = write_file(dir.path(), "empty", b"");
    let broken = pem::encode(&pem::Pem::new("PRIVATE KEY", *b"correct-horse"));
    let broken = write_file(dir.path(), "broken", broken.as_bytes());
    for (method, private, public, text) in [
        ("", &*rsa, "", "auth: invalid auth options: auth: invalid auth signature method"),
        ("rs256", &*rsa, "", "auth: invalid auth options: auth: invalid auth signature method"),
        ("none", &*rsa, "", "unsupported signing method"),
        ("RS256", "", "", "auth: missing key data"),
        ("RS256", &*empty, "", "auth: missing key data"),
        ("HS256", "", &*junk, "auth: missing key data"),
        ("HS256", &*empty, "", "auth: missing key data"),
        ("RS256", "/no/such/file", "", "auth: invalid auth options: open /no/such/file: "),
        ("RS256", &*junk, "", NO_PEM),
        ("RS256", "", &*junk, NO_PEM),
        ("RS256", &*broken, "", "key is not a valid RSA private key"),
        ("RS256", &*ec, "", "key is not a valid RSA private key"),
        ("RS256", &*ed, "", "key is not a valid RSA private key"),
        ("RS256", "", &*ec_public, "key is not a valid RSA public key"),
        ("ES256", &*rsa, "", "key is not a valid ECDSA private key"),
        ("ES256", &*ec, "", "key is not a valid ECDSA private key"), // etcd says so at the first login
        ("ES384", "", &*rsa_public, "key is not a valid ECDSA public key"),
        ("EdDSA", &*ec, "", "key is not a valid Ed25519 private key"),
        ("EdDSA", "", &*ec_public, "key is not a valid Ed25519 public key"),
        ("RS256", &*rsa, &*other_public, "auth: public and private keys don't match"),
    ] {
        let error = load(method, private, public).unwrap_err();
        assert!(error.starts_with(text), "{method} {private} {public}: {error}");
        assert!(!error.contains("horse"));
    }
    assert!(!format!("{:?}", load("RS256", &rsa, &rsa_public)).contains("BEGIN"));
}

const NO_PEM: &str = "invalid key: Key must be a PEM encoded PKCS1 or PKCS8 key";
