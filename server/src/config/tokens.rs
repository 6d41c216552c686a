//! `--auth-token`: which tokens prove who a user is. The keys are read by `api/auth/jwt`.

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::text;

/// etcd's default.
const JWT_TTL_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// The options of JWT; etcd warns of others.
const JWT_OPTIONS: &[&str] = &["pub-key", "priv-key", "sign-method", "ttl"];

/// The kind of tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenConfig {
    /// None: certificates alone say who somebody is.
    Nothing,
    /// Letters that members remember.
    Simple,
    /// Signed ones.
    Jwt(JwtConfig),
}

/// Signed tokens, as the flag has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JwtConfig {
    /// The algorithm; tokens of any other count for nothing.
    pub sign_method: String,
    /// File of the public key or its certificate; empty if there is none.
    pub public_key_file: String,
    /// File of the private key, or of the shared one of an HMAC; empty if tokens are made
    /// elsewhere.
    pub private_key_file: String,
    /// How long a new token counts.
    pub ttl: Duration,
}

impl TokenConfig {
    /// The meaning of the setting, as etcd takes it: `kind,option=value,...`.
    pub(super) fn resolve(settings: &Settings, warnings: &mut Vec<String>) -> Result<Self, ConfigError> {
        let value = text(settings, "auth-token");
        let mut parts = value.split(',');
        let kind = parts.next().unwrap_or_default();
        let mut options: Vec<(&str, &str)> = Vec::new();
        for part in parts {
            let option = part.split_once('=').filter(|(_, value)| !value.contains('='));
            let (name, value) = option.ok_or_else(|| invalid(&format!("{part:?} is no option=value")))?;
            if options.iter().any(|(known, _)| *known == name) {
                return Err(invalid(&format!("{name:?} is given twice")));
            }
            options.push((name, value));
        }
        match kind {
            "" => Ok(Self::Nothing),
            "simple" => Ok(Self::Simple),
            "jwt" => JwtConfig::resolve(&options, warnings).map(Self::Jwt),
            other => Err(invalid(&format!("unknown token type {other:?}: simple and jwt are known"))),
        }
    }
}

impl JwtConfig {
    fn resolve(options: &[(&str, &str)], warnings: &mut Vec<String>) -> Result<Self, ConfigError> {
        let unknown: Vec<_> = options.iter().filter(|(name, _)| !JWT_OPTIONS.contains(name)).collect();
        if !unknown.is_empty() {
            let names: Vec<&str> = unknown.iter().map(|(name, _)| *name).collect();
            warnings.push(format!("unknown JWT options {names:?}"));
        }
        let value = |wanted| options.iter().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value);
        let ttl = match value("ttl") {
            "" => JWT_TTL_DEFAULT,
            "0" => Duration::ZERO,
            text => humantime::parse_duration(text)
                .map_err(|error| invalid(&format!("ttl {text:?} is no duration like 5m: {error}")))?,
        };
        Ok(Self {
            sign_method: value("sign-method").to_owned(),
            public_key_file: value("pub-key").to_owned(),
            private_key_file: value("priv-key").to_owned(),
            ttl,
        })
    }
}

/// etcd's text, and what is wrong.
fn invalid(problem: &str) -> ConfigError {
    ConfigError::Tokens(format!("auth: invalid auth options: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, resolve, sources};

    fn config(value: &str) -> Result<Config, ConfigError> {
        resolve(sources::from_args([format!("--auth-token={value}")]).unwrap())
    }

    fn jwt(value: &str) -> JwtConfig {
        match config(value).unwrap().tokens {
            TokenConfig::Jwt(jwt) => jwt,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn options_are_taken_as_etcd_takes_them() {
        assert_eq!(config("simple,ignored=x").unwrap().tokens, TokenConfig::Simple);
        assert_eq!(config("").unwrap().tokens, TokenConfig::Nothing);
        let plain = jwt("jwt,pub-key=a.pub,priv-key=a.key,sign-method=RS256");
        assert_eq!((&plain.public_key_file[..], &plain.private_key_file[..]), ("a.pub", "a.key"));
        assert_eq!((&plain.sign_method[..], plain.ttl), ("RS256", Duration::from_secs(300)));
        assert_eq!(jwt("jwt,ttl=1h30m").ttl, Duration::from_secs(5_400));
        let warnings = config("jwt,foo=bar, ttl=1s").unwrap().warnings;
        assert!(warnings.iter().any(|it| it == "unknown JWT options [\"foo\", \" ttl\"]"), "{warnings:?}");
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        for bad in
            ["jwt,ttl=x", "jwt,ttl=-5s", "jwt,ttl", "jwt,a=1,a=2", "jwt,a=b=c", "foo", "simple,a", "JWT"]
        {
            let error = config(bad).unwrap_err().to_string();
            assert!(error.starts_with("--auth-token: auth: invalid auth options"), "{bad}: {error}");
        }
    }
}
