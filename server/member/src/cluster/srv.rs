//! The members that a cluster begins with, as SRV records of a domain name them
//! (`--discovery-srv`), by etcd's rules and in its words.
//!
//! A record has a host and a port. The one that has an address of this member's own peer URLs is
//! this member. The others get numbers for names: each member gives other ones, so that no state is
//! made of them.

use std::collections::BTreeMap;

use crate::urls;

/// The flags that count here.
#[derive(Debug, Clone, Copy)]
pub struct SrvDiscovery<'a> {
    /// The domain that has the records.
    pub domain: &'a str,
    /// Appended to the name of the service; nothing if empty.
    pub suffix: &'a str,
    /// This member's name.
    pub name: &'a str,
    /// The peer URLs that this member tells others.
    pub advertised: &'a [String],
}

/// A place that a record names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvTarget {
    /// Its name, without the dot at the end.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// The members that were found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrvMembers {
    /// Peer URLs by name, those of this member among them; sorted.
    pub members: BTreeMap<String, Vec<String>>,
    /// Why a kind of records named none, if others did.
    pub problem: Option<String>,
}

/// Why no cluster can be begun with these records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SrvError {
    /// No members.
    #[error("error setting up initial cluster: {0}")]
    None(String),
    /// Members, but not this one.
    #[error("error setting up initial cluster: cannot find local etcd member {0:?} in SRV records")]
    NotLocal(String),
}

/// Questions to the system.
pub trait SrvEffects {
    /// The places that the records of a service (`_etcd-server._tcp`) in a domain name.
    ///
    /// # Errors
    /// Why there are none, in words.
    fn targets(&mut self, service: &str, domain: &str) -> Result<Vec<SrvTarget>, String>;
    /// The first address of a host and port.
    fn resolve(&mut self, host: &str) -> Option<String>;
}

/// The members that the records name: those of members with TLS, and those without.
///
/// # Errors
/// [`SrvError`]
pub fn members(flags: SrvDiscovery<'_>, effects: &mut impl SrvEffects) -> Result<SrvMembers, SrvError> {
    let (mut members, mut problems) = (BTreeMap::<String, Vec<String>>::new(), Vec::new());
    for (scheme, service) in [("https", "etcd-server-ssl"), ("http", "etcd-server")] {
        let suffix = if flags.suffix.is_empty() { String::new() } else { format!("-{}", flags.suffix) };
        match of_service(flags, scheme, &format!("{service}{suffix}"), effects) {
            Ok(found) => found.into_iter().for_each(|(name, url)| members.entry(name).or_default().push(url)),
            Err(problem) => problems.push(problem),
        }
    }
    let problem = (!problems.is_empty()).then(|| problems.join("\n"));
    if members.is_empty() {
        return Err(SrvError::None(problem.unwrap_or_default()));
    }
    if !members.contains_key(flags.name) {
        return Err(SrvError::NotLocal(flags.name.to_owned()));
    }
    members.values_mut().for_each(|urls| urls.sort());
    Ok(SrvMembers { members, problem })
}

/// Names and URLs of the members that one kind of records names. A place whose name is not known is
/// passed over, if there are others.
fn of_service(
    flags: SrvDiscovery<'_>,
    scheme: &str,
    service: &str,
    effects: &mut impl SrvEffects,
) -> Result<Vec<(String, String)>, String> {
    let mut own = BTreeMap::new();
    for url in flags.advertised {
        let host = urls::authority(url);
        let address = effects.resolve(host).ok_or_else(|| no_such_host(host))?;
        own.insert(address, url);
    }
    let context = |problem: String| format!("error querying DNS SRV records for _{service} {problem}");
    let targets = effects.targets(&format!("_{service}._tcp"), flags.domain).map_err(context)?;
    let (mut found, mut others, mut problem) = (Vec::new(), 0, String::new());
    for SrvTarget { host, port } in targets {
        let place = format!("{host}:{port}");
        let Some(address) = effects.resolve(&place) else {
            problem = no_such_host(&place);
            continue;
        };
        let url = format!("{scheme}://{place}");
        match own.get(&address) {
            Some(known) if known.split_once("://").is_none_or(|(known, _)| known != scheme) => {
                problem = format!(
                    "bootstrap at {url} from DNS for {service} has scheme mismatch with expected peer {known}"
                );
            }
            Some(_) => found.push((flags.name.to_owned(), url)),
            None => {
                found.push((others.to_string(), url));
                others += 1;
            }
        }
    }
    if found.is_empty() { Err(context(problem)) } else { Ok(found) }
}

fn no_such_host(place: &str) -> String {
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    format!("lookup {host}: no such host")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records by service: `service host:port`; each host but `gone` has an address.
    struct World(&'static [&'static str]);

    impl SrvEffects for World {
        fn targets(&mut self, service: &str, domain: &str) -> Result<Vec<SrvTarget>, String> {
            assert_eq!(domain, "d.test");
            let of_service =
                self.0.iter().filter_map(|record| record.strip_prefix(service)?.strip_prefix(' '));
            let targets: Vec<_> = of_service
                .map(|place| {
                    let (host, port) = place.split_once(':').unwrap();
                    SrvTarget { host: host.to_owned(), port: port.parse().unwrap() }
                })
                .collect();
            if targets.is_empty() {
                return Err(format!("lookup {service}.{domain} on 127.0.0.1:53: no such host"));
            }
            Ok(targets)
        }

        fn resolve(&mut self, host: &str) -> Option<String> {
            (!host.starts_with("gone")).then(|| host.replace("alias", "a"))
        }
    }

    fn found(advertised: &str, records: &'static [&'static str]) -> Result<String, String> {
        let advertised: Vec<String> = advertised.split(',').map(str::to_owned).collect();
        let flags = SrvDiscovery { domain: "d.test", suffix: "", name: "a", advertised: &advertised };
        let found = members(flags, &mut World(records)).map_err(|error| error.to_string())?;
        let pairs = found.members.iter().map(|(name, urls)| format!("{name}={}", urls.join("+")));
        Ok(pairs.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn the_record_with_an_address_of_this_member_is_this_member() {
        let three = &["_etcd-server._tcp c:1", "_etcd-server._tcp a:1", "_etcd-server._tcp b:1"];
        assert_eq!(found("http://alias:1", three).unwrap(), "0=http://c:1,1=http://b:1,a=http://a:1");
        let with_gone = &["_etcd-server._tcp gone:1", "_etcd-server._tcp a:1"];
        assert_eq!(found("http://a:1", with_gone).unwrap(), "a=http://a:1");
        // As etcd counts: members with TLS and those without have the same numbers.
        let both = &["_etcd-server-ssl._tcp b:1", "_etcd-server._tcp a:1", "_etcd-server._tcp c:1"];
        assert_eq!(found("http://a:1", both).unwrap(), "0=http://c:1+https://b:1,a=http://a:1");
        let twice = &["_etcd-server._tcp a:2", "_etcd-server._tcp a:1"];
        assert_eq!(found("http://a:1,http://a:2", twice).unwrap(), "a=http://a:1+http://a:2");
    }

    #[test]
    fn a_service_may_have_another_name() {
        let advertised = ["http://a:1".to_owned()];
        let flags = SrvDiscovery { domain: "d.test", suffix: "x", name: "a", advertised: &advertised };
        let found = members(flags, &mut World(&["_etcd-server-x._tcp a:1", "_etcd-server._tcp b:1"]));
        let found = found.unwrap();
        assert_eq!(found.members, BTreeMap::from([("a".to_owned(), vec!["http://a:1".to_owned()])]));
        assert!(found.problem.unwrap().contains("_etcd-server-ssl-x"));
    }

    /// The texts of an etcd 3.7.1 beside a DNS with such records, but for the address of the name
    /// server where only the system knows which one it has asked.
    #[test]
    fn records_that_do_not_fit_are_refused_in_the_words_of_etcd() {
        let no_tls = "error querying DNS SRV records for _etcd-server-ssl lookup _etcd-server-ssl._tcp.d.test on \
                      127.0.0.1:53: no such host\nerror querying DNS SRV records for _etcd-server";
        let refused = |advertised, records| {
            let error = found(advertised, records).unwrap_err();
            error.strip_prefix("error setting up initial cluster: ").unwrap().to_owned()
        };
        assert_eq!(
            refused("http://a:1", &[]),
            format!("{no_tls} lookup _etcd-server._tcp.d.test on 127.0.0.1:53: no such host")
        );
        assert_eq!(
            refused("http://a:1", &["_etcd-server._tcp gone:1"]),
            format!("{no_tls} lookup gone: no such host")
        );
        assert_eq!(
            refused("https://alias:1", &["_etcd-server._tcp a:1"]),
            format!(
                "{no_tls} bootstrap at http://a:1 from DNS for etcd-server has scheme mismatch with expected peer \
                 https://alias:1"
            )
        );
        assert_eq!(
            refused("http://gone:1", &["_etcd-server._tcp a:1"]),
            "lookup gone: no such host\nlookup gone: no such host"
        );
        for advertised in ["http://a:2", "https://a:1"] {
            let records = &["_etcd-server._tcp a:1", "_etcd-server._tcp b:1"];
            assert_eq!(refused(advertised, records), "cannot find local etcd member \"a\" in SRV records");
        }
    }
}
