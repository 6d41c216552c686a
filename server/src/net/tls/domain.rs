//! The certificates of one port while the member runs: loaded at the start, and again whenever a
//! file changes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::Context as _;
use serde_json::json;

use crate::config::TlsConfig;
use crate::limits;
use crate::net::tls::material::Material;
use crate::net::tls::own;
use crate::net::tls::today;
use crate::observe::certificates::CertificateEnds;
use crate::observe::log;
use crate::threads;

/// Node view: TLS of one port.
pub struct TlsDomain {
    /// `client` or `peer`, for the log.
    whom: &'static str,
    config: TlsConfig,
    material: Arc<Mutex<Loaded>>,
    /// The name that all who are dialed must have; without one each has its own host's.
    called: OnceLock<String>,
    /// The ends of its certificates, for the metrics.
    ends: Arc<CertificateEnds>,
    /// The files as they were before they were loaded first.
    loaded: Vec<Print>,
}

/// The result of the last loading.
#[derive(Default)]
enum Loaded {
    /// Nothing yet: where no file is named, that waits until a member is dialed over TLS.
    #[default]
    Nothing,
    /// A thread loads it.
    Begun,
    Done(Result<Arc<Material>, String>),
}

impl std::fmt::Debug for TlsDomain {
    /// Without what was loaded: keys are in it.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TlsDomain").field("whom", &self.whom).finish_non_exhaustive()
    }
}

impl TlsDomain {
    /// Loads the files, and makes a certificate where the member is to have one of its own.
    ///
    /// # Errors
    /// When a file cannot be used; worded for the operator.
    pub fn open(whom: &'static str, config: TlsConfig) -> anyhow::Result<Arc<Self>> {
        if let Some(own) = &config.own {
            own::make(&config, own).with_context(|| format!("making a certificate ({whom} TLS)"))?;
        }
        let ends = Arc::new(CertificateEnds::new(whom));
        let (called, loaded) = (OnceLock::new(), Vec::new());
        let mut domain = Self { whom, config, material: Arc::default(), called, ends, loaded };
        domain.loaded = domain.prints();
        if !domain.config.is_empty() {
            domain.current_or_load().map_err(anyhow::Error::msg).with_context(|| format!("{whom} TLS"))?;
            domain.tell_ends();
            domain.warn_of_ends();
        }
        Ok(Arc::new(domain))
    }

    /// The certificates that were loaded last. Cores ask for them, so that nothing is read here:
    /// where nothing is loaded yet, a thread begins to.
    ///
    /// # Errors
    /// That they are still being loaded; or as [`TlsDomain::open`].
    pub(crate) fn current(&self) -> Result<Arc<Material>, String> {
        let loading = || Err("certificates are being loaded".to_owned());
        let mut material = locked(&self.material);
        match &*material {
            Loaded::Done(loaded) => return loaded.clone(),
            Loaded::Begun => return loading(),
            Loaded::Nothing => {}
        }
        let (config, slot) = (self.config.clone(), Arc::clone(&self.material));
        let load = move || {
            let loaded = Material::load(&config).map(Arc::new);
            *locked(&slot) = Loaded::Done(loaded);
        };
        threads::begin("tls files", load).map_err(|error| error.to_string())?;
        *material = Loaded::Begun;
        loading()
    }

    /// The same for threads that may block: what is not loaded yet is loaded here.
    ///
    /// # Errors
    /// As [`TlsDomain::open`].
    pub(super) fn current_or_load(&self) -> Result<Arc<Material>, String> {
        if let Loaded::Done(loaded) = &*locked(&self.material) {
            return loaded.clone();
        }
        let loaded = Material::load(&self.config).map(Arc::new);
        *locked(&self.material) = Loaded::Done(loaded.clone());
        loaded
    }

    /// Loads the files now, also those that only dialing needs.
    ///
    /// # Errors
    /// As [`TlsDomain::open`].
    pub(crate) fn load(&self) -> anyhow::Result<()> {
        let loaded = self.current_or_load().map(drop);
        loaded.map_err(anyhow::Error::msg).with_context(|| format!("{} TLS", self.whom))
    }

    /// Certificates of all who are dialed must have this name from now on, not that of a host.
    pub(crate) fn dial_as(&self, name: &str) {
        self.called.get_or_init(|| name.to_owned());
    }

    /// The name that the certificate of a host must have.
    pub(super) fn name_of<'h>(&'h self, host: &'h str) -> &'h str {
        self.called.get().map_or(host, |name| name)
    }

    /// Handshakes from now on use what was loaded.
    fn replace(&self, loaded: Material) {
        *locked(&self.material) = Loaded::Done(Ok(Arc::new(loaded)));
        self.tell_ends();
    }

    fn loaded(&self) -> Option<Arc<Material>> {
        match &*locked(&self.material) {
            Loaded::Done(Ok(material)) => Some(Arc::clone(material)),
            _ => None,
        }
    }

    fn tell_ends(&self) {
        let ends = self.loaded().map(|material| material.ends.clone());
        self.ends.set(ends.unwrap_or_default());
    }

    fn files(&self) -> impl Iterator<Item = &String> {
        let TlsConfig { cert_file, key_file, client_cert_file, client_key_file, .. } = &self.config;
        let TlsConfig { trusted_ca_file, crl_file, .. } = &self.config;
        let all = [cert_file, key_file, client_cert_file, client_key_file, trusted_ca_file, crl_file];
        all.into_iter().filter(|file| !file.is_empty())
    }

    fn prints(&self) -> Vec<Print> {
        self.files().map(|file| print(file)).collect()
    }

    /// One warning for each certificate that ends soon.
    fn warn_of_ends(&self) {
        let Some(material) = self.loaded() else { return };
        let now = today::seconds();
        for (file, end) in &material.ends {
            if *end - now > limits::CERTIFICATE_WARNING_SECONDS {
                continue;
            }
            let fields = json!({
                "file": file, "tls-of": self.whom, "not-after": today::text(*end),
                "days-left": (*end - now).div_euclid(24 * 3600),
            });
            let message = if *end < now { "a certificate has expired" } else { "a certificate expires soon" };
            log::warn(message, fields);
        }
    }
}

fn locked(material: &Mutex<Loaded>) -> MutexGuard<'_, Loaded> {
    material.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes with each change of a file, also when another file takes its place.
type Print = Option<(u64, u64, i64, i64, i64, i64)>;

fn print(file: &str) -> Print {
    let found = fs::metadata(file).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()))
}

/// Looks at the files of these domains from time to time, for as long as the process lives, and
/// loads what has changed. The ends of their certificates, which it keeps up to date.
///
/// # Errors
/// When there is no thread for it.
pub fn watch(domains: Vec<Arc<TlsDomain>>) -> std::io::Result<Vec<Arc<CertificateEnds>>> {
    let ends = domains.iter().map(|domain| Arc::clone(&domain.ends)).collect();
    let mut watched: Vec<Watched> =
        domains.into_iter().filter(|domain| domain.files().next().is_some()).map(Watched::new).collect();
    if watched.is_empty() {
        return Ok(ends);
    }
    let watching = move || {
        let mut looks = 0_u64;
        loop {
            std::thread::park_timeout(limits::TLS_FILES_INTERVAL);
            looks += 1;
            let tells = looks.is_multiple_of(limits::CERTIFICATE_WARNING_LOOKS);
            for watched in &mut watched {
                watched.look();
                if tells {
                    watched.domain.warn_of_ends();
                }
            }
        }
    };
    threads::begin("tls files", watching).map(|()| ends)
}

/// One domain, and its files as they were when they were loaded.
struct Watched {
    domain: Arc<TlsDomain>,
    loaded: Vec<Print>,
    /// The files as they were at the last look.
    seen: Vec<Print>,
    /// Why the files as they are cannot be used, once it is told.
    told: Option<String>,
}

impl Watched {
    fn new(domain: Arc<TlsDomain>) -> Self {
        let loaded = domain.loaded.clone();
        Self { domain, seen: loaded.clone(), loaded, told: None }
    }

    /// Loads files that have changed once they are as they were at the look before: half of a
    /// bundle that is being copied would be a good bundle of half the authorities.
    fn look(&mut self) {
        let prints = self.domain.prints();
        let is_stable = std::mem::replace(&mut self.seen, prints.clone()) == prints;
        if !is_stable || prints == self.loaded {
            return;
        }
        let loading = Material::load(&self.domain.config);
        // They changed while they were read.
        if self.domain.prints() != prints {
            return;
        }
        let fields = |error: &str| json!({"tls-of": self.domain.whom, "error": error});
        match loading {
            Ok(loaded) => {
                self.domain.replace(loaded);
                self.loaded = prints;
                self.told = None;
                log::info("certificates were loaded anew", json!({"tls-of": self.domain.whom}));
                self.domain.warn_of_ends();
            }
            // A certificate whose key comes a moment later: it is tried again.
            Err(error) if self.told.as_ref() != Some(&error) => {
                log::warn("changed certificates cannot be used; the former ones stay", fields(&error));
                self.told = Some(error);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn authority(name: &str) -> String {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn pair() -> [String; 2] {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(["h".to_owned()]).unwrap().self_signed(&key).unwrap();
        [made.pem(), key.serialize_pem()]
    }

    /// Files of a domain that is looked at.
    struct Files {
        dir: tempfile::TempDir,
        watched: Watched,
    }

    impl Files {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
            let [cert, key] = pair();
            for (name, text) in [("cert", cert), ("key", key), ("bundle", authority("a"))] {
                fs::write(file(name), text).unwrap();
            }
            let config = TlsConfig {
                cert_file: file("cert"),
                key_file: file("key"),
                trusted_ca_file: file("bundle"),
                ..TlsConfig::default()
            };
            let watched = Watched::new(TlsDomain::open("client", config).unwrap());
            Self { dir, watched }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join(name), text).unwrap();
        }

        /// Whether a look loads something.
        fn loads(&mut self) -> bool {
            let before = self.watched.domain.current().unwrap();
            self.watched.look();
            !Arc::ptr_eq(&before, &self.watched.domain.current().unwrap())
        }
    }

    #[test]
    fn files_are_loaded_when_two_looks_find_them_alike() {
        let mut files = Files::new();
        assert!(!files.loads() && !files.loads(), "nothing has changed");
        let whole = [authority("b"), authority("c")].concat();
        // Each part is a good bundle.
        files.write("bundle", &whole[..whole.len() / 2]);
        assert!(!files.loads(), "it has changed since the last look");
        files.write("bundle", &whole);
        assert!(!files.loads(), "it has changed again");
        assert!(files.loads() && !files.loads());
    }

    /// A session that is resumed shows no certificate.
    #[test]
    fn there_are_no_tickets_where_callers_show_certificates() {
        let files = Files::new();
        let server = |domain: &TlsDomain| domain.current().unwrap().server.clone().unwrap();
        let asking = server(&files.watched.domain);
        assert_eq!((asking.send_tls13_tickets, asking.ticketer.enabled()), (0, false));
        let config = TlsConfig { trusted_ca_file: String::new(), ..files.watched.domain.config.clone() };
        let open = server(&TlsDomain::open("client", config).unwrap());
        assert_eq!((open.send_tls13_tickets, open.ticketer.enabled()), (1, true));
    }

    /// A member without a certificate dials one that has some: a core asks.
    #[test]
    fn no_core_reads_files_for_who_names_none() {
        let domain = TlsDomain::open("peer", TlsConfig::default()).unwrap();
        let first = domain.current();
        assert!(first.is_err_and(|why| why.contains("being loaded")), "another thread does");
        while domain.current().is_err_and(|why| why.contains("being loaded")) {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        let loaded = domain.current().unwrap();
        assert!(Arc::ptr_eq(&loaded, &domain.current_or_load().unwrap()), "it is loaded once");
        assert!(TlsDomain::open("peer", TlsConfig::default()).unwrap().current_or_load().is_ok());
    }

    #[test]
    fn a_pair_of_which_one_half_is_there_is_not_used() {
        let mut files = Files::new();
        let [cert, key] = pair();
        files.write("cert", &cert);
        assert!((0..3).all(|_| !files.loads()), "of another key");
        assert!(files.watched.told.as_ref().is_some_and(|why| why.contains("cert")), "it is told");
        files.write("key", &key[..key.len() / 2]);
        assert!((0..3).all(|_| !files.loads()), "half of a key");
        files.write("key", &key);
        assert!(!files.loads() && files.loads() && files.watched.told.is_none());
        fs::remove_file(files.dir.path().join("bundle")).unwrap();
        assert!((0..3).all(|_| !files.loads()), "no bundle");
    }
}
