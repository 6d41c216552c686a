//! Flags of bootstrap by discovery: where the first members of a cluster are found when no flag
//! names them.

use std::time::Duration;

use crate::config::TlsConfig;
use crate::config::error::ConfigError;
use crate::config::sources::Settings;
use crate::config::values::{bad, duration, switch, text};
use crate::secret::Secret;

const ENDPOINTS: &str = "discovery-endpoints";
const NO_FILES: &str = "a discovery service is asked over http:// or https:// (no unix sockets)";

/// Where the first members of a cluster are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery {
    /// The flags name them.
    None,
    /// SRV records of a domain name them.
    Srv {
        /// The domain.
        domain: String,
        /// Appended to the name of the service; nothing if empty.
        suffix: String,
    },
    /// They register with a service.
    Service(Box<DiscoveryService>),
}

/// A server of etcd's API where the members of a cluster register (`--discovery-endpoints`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryService {
    /// Names the cluster there.
    pub token: String,
    /// Hosts and ports.
    pub endpoints: Vec<ServiceEndpoint>,
    /// The certificate that is shown to those with TLS, and who is believed there.
    pub tls: TlsConfig,
    /// Time in which one accepts a connection.
    pub dial_timeout: Duration,
    /// Time in which one answers.
    pub request_timeout: Duration,
    /// A user of the service and the password.
    pub credentials: Option<(String, Secret)>,
}

/// One of a service's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceEndpoint {
    /// Host and port.
    pub host: String,
    /// TLS is spoken there.
    pub is_secure: bool,
}

impl DiscoveryService {
    fn resolve(settings: &Settings) -> Result<Self, ConfigError> {
        let endpoints = text(settings, ENDPOINTS);
        let [cert_file, key_file, trusted_ca_file] =
            ["discovery-cert", "discovery-key", "discovery-cacert"].map(|flag| text(settings, flag));
        if cert_file.is_empty() != key_file.is_empty() {
            // As Go words it.
            let why =
                format!("KeyFile and CertFile must both be present[key: {key_file}, cert: {cert_file}]");
            let missing = if cert_file.is_empty() { "discovery-cert" } else { "discovery-key" };
            return Err(bad(settings, missing, why));
        }
        let verifies_nobody = switch(settings, "discovery-insecure-skip-tls-verify")?;
        let is_any_given = [&cert_file, &key_file, &trusted_ca_file].iter().any(|file| !file.is_empty());
        // Where an endpoint does not say, as with etcd's client.
        let is_secure = is_any_given || verifies_nobody || !switch(settings, "discovery-insecure-transport")?;
        let each = endpoints.split(',').map(|it| ServiceEndpoint::read(settings, it.trim(), is_secure));
        let (user, password) = (text(settings, "discovery-user"), text(settings, "discovery-password"));
        let calls_http2 = true;
        Ok(Self {
            token: text(settings, "discovery-token"),
            endpoints: each.collect::<Result<_, _>>()?,
            tls: TlsConfig {
                cert_file,
                key_file,
                trusted_ca_file,
                verifies_nobody,
                calls_http2,
                ..TlsConfig::default()
            },
            dial_timeout: timeout(settings, "discovery-dial-timeout")?,
            request_timeout: timeout(settings, "discovery-request-timeout")?,
            // As etcd: without a password nobody is named.
            credentials: (!user.is_empty() && !password.is_empty()).then(|| (user, Secret::from(password))),
        })
    }
}

impl ServiceEndpoint {
    /// With or without TLS, where it does not say.
    fn read(settings: &Settings, endpoint: &str, is_secure: bool) -> Result<Self, ConfigError> {
        let (host, is_secure) = match endpoint.split_once("://") {
            Some(("http", host)) => (host, false),
            Some(("https", host)) => (host, true),
            Some(_) => return Err(bad(settings, ENDPOINTS, NO_FILES.to_owned())),
            None => (endpoint, is_secure),
        };
        let host = host.trim_end_matches('/');
        if host.rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
            let problem = format!("{endpoint} should be host:port, http://host:port or https://host:port");
            return Err(bad(settings, ENDPOINTS, problem));
        }
        Ok(Self { host: host.to_owned(), is_secure })
    }
}

/// A time that a system takes for a timeout.
fn timeout(settings: &Settings, flag: &'static str) -> Result<Duration, ConfigError> {
    let timeout = duration(settings, flag)?;
    if timeout.is_zero() {
        return Err(bad(settings, flag, "must be longer than nothing".to_owned()));
    }
    Ok(timeout)
}

impl Discovery {
    /// The meaning of the settings; etcd's rules of which flags go together, in its order.
    pub(super) fn resolve(settings: &Settings) -> Result<Self, ConfigError> {
        let given = |flag| !text(settings, flag).is_empty();
        let is_named = settings.get("initial-cluster").is_some_and(|cluster| !cluster.is_empty());
        let ways = [is_named, given(ENDPOINTS), given("discovery-srv")];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            return Err(ConfigError::SeveralBootstraps);
        }
        if given("discovery-token") != given(ENDPOINTS) {
            return Err(ConfigError::HalfADiscovery);
        }
        if given(ENDPOINTS) {
            if text(settings, ENDPOINTS).split(',').any(|endpoint| endpoint.trim().is_empty()) {
                return Err(ConfigError::EmptyEndpoint);
            }
            return DiscoveryService::resolve(settings).map(Box::new).map(Self::Service);
        }
        if !given("discovery-srv") {
            return Ok(Self::None);
        }
        let (domain, suffix) = (text(settings, "discovery-srv"), text(settings, "discovery-srv-name"));
        Ok(Self::Srv { domain, suffix })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::sources;

    fn discovery(line: &str) -> Result<Discovery, String> {
        let gathered = sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap();
        Discovery::resolve(&gathered.settings).map_err(|error| error.to_string())
    }

    #[test]
    fn records_of_a_domain_name_the_members() {
        let srv = |suffix: &str| Discovery::Srv { domain: "d.test".to_owned(), suffix: suffix.to_owned() };
        assert_eq!(discovery(""), Ok(Discovery::None));
        assert_eq!(discovery("--discovery-srv d.test"), Ok(srv("")));
        assert_eq!(discovery("--discovery-srv d.test --discovery-srv-name x"), Ok(srv("x")));
        assert_eq!(discovery("--discovery-srv d.test --initial-cluster="), Ok(srv("")));
    }

    #[test]
    fn members_register_with_a_service() {
        let line = "--discovery-token t --discovery-endpoints http://h:1,g:2, --discovery-user u";
        let Discovery::Service(service) = discovery(&line.replace("2,", "2")).unwrap() else {
            panic!("another way of discovery");
        };
        let plain = |host: &str| ServiceEndpoint { host: host.to_owned(), is_secure: false };
        assert_eq!((&service.token[..], service.endpoints), ("t", vec![plain("h:1"), plain("g:2")]));
        assert_eq!((service.dial_timeout.as_secs(), service.request_timeout.as_secs()), (2, 5));
        assert_eq!(service.credentials, None);
        let flags = "--discovery-token t --discovery-endpoints h:1";
        let more = "--discovery-user u --discovery-password p --discovery-request-timeout 500ms";
        let Discovery::Service(service) = discovery(&format!("{flags} {more}")).unwrap() else {
            panic!("another way of discovery");
        };
        assert!(!format!("{service:?}").contains("\"p\""), "no panic and no log line shows it");
        assert_eq!(service.credentials, Some(("u".to_owned(), Secret::from("p".to_owned()))));
        assert_eq!(service.request_timeout.as_millis(), 500);
        for (more, part) in [
            ("--discovery-cert x", "both be present[key: , cert: x]"),
            ("--discovery-key x", "both be present[key: x, cert: ]"),
            ("--discovery-insecure-transport=perhaps", "true or false"),
            ("--discovery-endpoints unixs://h:1", "no unix sockets"),
            ("--discovery-endpoints h", "host:port"),
            ("--discovery-dial-timeout 0", "longer than nothing"),
        ] {
            let refused = discovery(&format!("{flags} {more}")).unwrap_err();
            assert!(refused.contains(part), "{more}: {refused}");
        }
    }

    /// By the scheme of an endpoint; where it has none, by the flags of TLS.
    #[test]
    fn a_service_is_asked_over_tls_as_etcds_client_does() {
        for (more, endpoint, is_secure) in [
            ("", "h:1", false),
            ("--discovery-insecure-transport=true", "h:1", false),
            ("--discovery-insecure-transport=false", "h:1", true),
            ("--discovery-insecure-transport=false", "http://h:1", false),
            ("--discovery-insecure-skip-tls-verify", "h:1", true),
            ("--discovery-cacert a.pem", "h:1", true),
            ("--discovery-cacert a.pem", "http://h:1", false),
            ("--discovery-cert c.pem --discovery-key c.key", "h:1", true),
            ("", "https://h:1/", true),
        ] {
            let line = format!("--discovery-token t --discovery-endpoints {endpoint} {more}");
            let Discovery::Service(service) = discovery(&line).unwrap() else {
                panic!("another way of discovery");
            };
            assert_eq!(service.endpoints, [ServiceEndpoint { host: "h:1".to_owned(), is_secure }], "{line}");
            assert_eq!(service.tls.verifies_nobody, more.contains("skip"));
        }
        let flags = "--discovery-cert c --discovery-key k --discovery-cacert a";
        let line = format!("--discovery-token t --discovery-endpoints h:1 {flags}");
        let Discovery::Service(service) = discovery(&line).unwrap() else {
            panic!("another way of discovery");
        };
        let tls = service.tls;
        assert_eq!([&tls.cert_file[..], &tls.key_file, &tls.trusted_ca_file], ["c", "k", "a"]);
    }

    /// The texts of an etcd 3.7.1 that is started so.
    #[test]
    fn flags_that_exclude_each_other_are_refused_in_the_words_of_etcd() {
        let several = "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
                       \"discovery-endpoints\" or \"discovery-srv\"";
        let half = "both --discovery-token and --discovery-endpoints must be set";
        for (line, problem) in [
            ("--discovery-srv d.test --initial-cluster a=http://h:1", several),
            ("--discovery-srv d.test --discovery-endpoints http://h:1 --discovery-token t", several),
            ("--initial-cluster a=http://h:1 --discovery-endpoints http://h:1", several),
            ("--discovery-endpoints http://h:1", half),
            ("--discovery-token t", half),
            (
                "--discovery-token t --discovery-endpoints http://h:1,",
                "--discovery-endpoints must not contain empty endpoints",
            ),
        ] {
            assert_eq!(discovery(line).unwrap_err(), problem, "{line}");
        }
    }
}
