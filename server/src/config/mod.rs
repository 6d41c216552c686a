//! etcd's configuration: flags, environment, file. `sources` collects settings, here they get their
//! meaning.

mod cluster;
mod corruption;
mod discovery;
mod error;
pub mod flags;
mod listening;
mod security;
pub mod sources;
mod tokens;
mod user_limits;
mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use crate::config::cluster::ClusterConfig;
pub use crate::config::corruption::CorruptionChecks;
pub use crate::config::discovery::{Discovery, DiscoveryService, ServiceEndpoint};
pub use crate::config::error::ConfigError;
use crate::config::listening::Listening;
pub use crate::config::listening::{ListenAddress, ListenPlace, Served};
pub(crate) use crate::config::listening::{Listened, listened};
pub use crate::config::security::{OwnCertificate, SecurityConfig, TlsConfig, TlsVersions};
use crate::config::sources::{Gathered, Settings};
pub use crate::config::tokens::{JwtConfig, TokenConfig};
pub use crate::config::user_limits::UserLimit;
use crate::config::values::{bad, duration, list, number, switch, text};
use crate::observe::log::Level;

/// etcd's default, as the table of flags has it.
const AUTH_TOKEN_TTL_DEFAULT: Duration = Duration::from_secs(300);
/// The same.
const BCRYPT_COST_DEFAULT: u32 = 10;
/// etcd's default quota.
const QUOTA_BYTES_DEFAULT: i64 = 2 * 1024 * 1024 * 1024;
/// etcd refuses longer election timeouts.
const ELECTION_MS_MAX: u64 = 50_000;
/// A shorter period would keep the member busy with compacting.
const RETENTION_MIN: Duration = Duration::from_secs(1);
/// etcd's shortest interval of progress replies.
const PROGRESS_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// More cores than this make no sense for one process.
const CORES_MAX: usize = 1024;

/// `--grpc-keepalive-*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// A client with open calls may ping this often.
    pub min_time: Duration,
    /// Time without traffic after which the server pings; zero never.
    pub interval: Duration,
    /// Time for an answer before the connection is closed.
    pub timeout: Duration,
}

/// How a member is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Its name.
    pub name: String,
    /// Where its data is.
    pub data_dir: PathBuf,
    /// Where its log is.
    pub wal_dir: PathBuf,
    /// Where clients connect.
    pub client_addresses: Vec<ListenAddress>,
    /// Where metrics and health are asked for, and nothing else.
    pub metrics_addresses: Vec<ListenAddress>,
    /// The URLs that clients and other members are told.
    pub advertise_client_urls: Vec<String>,
    /// Its part in its cluster.
    pub cluster: ClusterConfig,
    /// TLS.
    pub security: SecurityConfig,
    /// Raft's clock step.
    pub heartbeat: Duration,
    /// Steps without a leader before an election.
    pub election_ticks: usize,
    /// Operations in a transaction.
    pub txn_ops_max: usize,
    /// Bytes in a request.
    pub request_bytes_max: usize,
    /// Streams on a connection.
    pub streams_max: u32,
    /// Reported by Status.
    pub quota_bytes: i64,
    /// Revisions that auto compaction keeps.
    pub retention: Retention,
    /// When members are compared as etcd does.
    pub checks: CorruptionChecks,
    /// Interval of progress notifications.
    pub progress_interval: Duration,
    /// How pings are dealt with.
    pub keepalive: Keepalive,
    /// From which level on lines are logged.
    pub log_level: Level,
    /// Writes are synced; off only where a crash may lose everything.
    pub sync: bool,
    /// How many cores; none for all, or for a share of them if other members live on this host.
    pub cores: Option<usize>,
    /// Memory that requests and replies are sized by; none for what there is.
    pub memory_bytes: Option<u64>,
    /// Which tokens prove who a user is.
    pub tokens: TokenConfig,
    /// A simple token that is not used for so long is none any more.
    pub auth_token_ttl: Duration,
    /// The cost of new hashes of passwords.
    pub bcrypt_cost: u32,
    /// The limits of what users may ask for each second.
    pub user_limits: BTreeMap<String, UserLimit>,
    /// A core file may be written when the process ends by an error.
    pub core_dumps: bool,
    /// For the log, once it is open.
    pub warnings: Vec<String>,
}

impl Config {
    /// Time without a leader before an election.
    #[must_use]
    pub fn election_timeout(&self) -> Duration {
        self.heartbeat * u32::try_from(self.election_ticks).unwrap_or(u32::MAX)
    }

    /// Seconds of the shortest lease: one and a half election timeouts, as in etcd, so that a lease
    /// outlives the change of a leader.
    #[must_use]
    pub fn lease_ttl_min(&self) -> i64 {
        let milliseconds = self.heartbeat.as_millis() * (3 * self.election_ticks as u128 / 2);
        i64::try_from(milliseconds.div_ceil(1000)).unwrap_or(i64::MAX)
    }
}

/// Revisions that auto compaction keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Everything.
    All,
    /// Those younger than this.
    Period(Duration),
    /// So many revisions.
    Revisions(i64),
}

/// The action that the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// Run a member.
    Serve(Box<Config>),
    /// Print the version.
    Version,
    /// Print the flags.
    Help,
}

/// Reads the configuration of this process.
///
/// # Errors
/// [`ConfigError`], for the operator.
pub fn from_process() -> Result<Invocation, ConfigError> {
    let mut gathered = sources::from_args(std::env::args().skip(1))?;
    if switch(&gathered.settings, "version")? {
        return Ok(Invocation::Version);
    }
    if switch(&gathered.settings, "help")? {
        return Ok(Invocation::Help);
    }
    let file =
        gathered.settings.get("config-file").cloned().or_else(|| std::env::var("ETCD_CONFIG_FILE").ok());
    match file.filter(|path| !path.is_empty()) {
        Some(path) => {
            let problem = |problem: String| ConfigError::File { path: path.clone(), problem };
            let text = std::fs::read_to_string(&path).map_err(|error| problem(error.to_string()))?;
            gathered = sources::from_yaml(&text).map_err(problem)?;
        }
        None => sources::add_env(&mut gathered, std::env::vars())?,
    }
    Ok(Invocation::Serve(Box::new(resolve(gathered)?)))
}

/// The meaning of settings.
///
/// # Errors
/// [`ConfigError`]
pub fn resolve(gathered: Gathered) -> Result<Config, ConfigError> {
    let Gathered { settings, mut warnings } = gathered;
    let name = text(&settings, "name");
    let data_dir = match settings.get("data-dir").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(format!("{name}.etcd")),
    };
    let wal_dir = match text(&settings, "wal-dir") {
        dir if dir.is_empty() => data_dir.join("member").join("wal"),
        dir => PathBuf::from(dir),
    };
    if settings.contains_key("listen-client-urls") && !settings.contains_key("advertise-client-urls") {
        return Err(ConfigError::NothingAdvertised);
    }
    let (heartbeat_ms, election_ms) = raft_times(&settings)?;
    let cores: usize = number(&settings, "cores")?;
    if cores > CORES_MAX {
        return Err(bad(&settings, "cores", format!("at most {CORES_MAX}")));
    }
    let memory_bytes: u64 = number(&settings, "memory-bytes")?;
    let sync = !switch(&settings, "unsafe-no-fsync")?;
    if !sync {
        warnings.push("--unsafe-no-fsync: a crash of this machine loses acknowledged writes".to_owned());
    }
    let level = text(&settings, "log-level");
    let log_level = Level::parse(&level)
        .ok_or_else(|| bad(&settings, "log-level", "must be debug, info, warn, error or fatal".to_owned()))?;
    let quota: i64 = number(&settings, "quota-backend-bytes")?;
    let cluster = ClusterConfig::resolve(&settings, &name)?;
    let client_addresses = listening::client_addresses(&settings)?;
    let metrics_addresses = listening::metrics_addresses(&settings)?;
    let listening =
        Listening { clients: &client_addresses, metrics: &metrics_addresses, peers: &cluster.peer_addresses };
    listening.refuse_shared(&settings)?;
    Ok(Config {
        security: SecurityConfig::resolve(&settings, &listening, &data_dir, &mut warnings)?,
        cluster,
        name,
        data_dir,
        wal_dir,
        client_addresses,
        metrics_addresses,
        advertise_client_urls: list(&text(&settings, "advertise-client-urls")),
        heartbeat: Duration::from_millis(heartbeat_ms),
        election_ticks: usize::try_from(election_ms / heartbeat_ms).expect("bounded above"),
        txn_ops_max: number(&settings, "max-txn-ops")?,
        request_bytes_max: number(&settings, "max-request-bytes")?,
        streams_max: number(&settings, "max-concurrent-streams")?,
        quota_bytes: if quota == 0 { QUOTA_BYTES_DEFAULT } else { quota },
        retention: retention(&settings)?,
        checks: CorruptionChecks::resolve(&settings, &mut warnings)?,
        progress_interval: progress_interval(&settings, &mut warnings)?,
        keepalive: Keepalive {
            min_time: duration(&settings, "grpc-keepalive-min-time")?,
            interval: duration(&settings, "grpc-keepalive-interval")?,
            timeout: duration(&settings, "grpc-keepalive-timeout")?,
        },
        log_level,
        sync,
        cores: (cores > 0).then_some(cores),
        memory_bytes: (memory_bytes > 0).then_some(memory_bytes),
        tokens: TokenConfig::resolve(&settings, &mut warnings)?,
        auth_token_ttl: auth_token_ttl(&settings)?,
        bcrypt_cost: bcrypt_cost(&settings, &mut warnings)?,
        user_limits: user_limits::resolve(&settings)?,
        core_dumps: switch(&settings, "core-dumps")?,
        warnings,
    })
}

/// Milliseconds between heartbeats, and without one before an election.
fn raft_times(settings: &Settings) -> Result<(u64, u64), ConfigError> {
    let heartbeat_ms: u64 = number(settings, "heartbeat-interval")?;
    let election_ms: u64 = number(settings, "election-timeout")?;
    if heartbeat_ms == 0 || election_ms < 5 * heartbeat_ms || election_ms > ELECTION_MS_MAX {
        let problem = format!(
            "must be at least 5 times --heartbeat-interval ({heartbeat_ms} ms) and at most {ELECTION_MS_MAX} ms"
        );
        return Err(bad(settings, "election-timeout", problem));
    }
    Ok((heartbeat_ms, election_ms))
}

/// As with etcd, 0 stands for the default.
fn auth_token_ttl(settings: &Settings) -> Result<Duration, ConfigError> {
    let seconds: u32 = number(settings, "auth-token-ttl")?;
    Ok(if seconds == 0 { AUTH_TOKEN_TTL_DEFAULT } else { Duration::from_secs(u64::from(seconds)) })
}

/// As with etcd, the default is used for what bcrypt does not know.
fn bcrypt_cost(settings: &Settings, warnings: &mut Vec<String>) -> Result<u32, ConfigError> {
    let cost: u32 = number(settings, "bcrypt-cost")?;
    if (4..=31).contains(&cost) {
        return Ok(cost);
    }
    warnings
        .push(format!("--bcrypt-cost {cost}: {BCRYPT_COST_DEFAULT} is used, for it is not between 4 and 31"));
    Ok(BCRYPT_COST_DEFAULT)
}

/// etcd takes a bare number as hours, or as revisions, by the mode; anything else is a duration.
fn retention(settings: &Settings) -> Result<Retention, ConfigError> {
    let (mode, flag) = (text(settings, "auto-compaction-mode"), "auto-compaction-retention");
    let value = text(settings, flag);
    let number = value.parse::<u32>().ok();
    let wrong = |what: &str| bad(settings, flag, format!("must be {what}"));
    match (mode.as_str(), number) {
        ("periodic" | "revision", Some(0)) => Ok(Retention::All),
        ("periodic", Some(hours)) => Ok(Retention::Period(Duration::from_secs(u64::from(hours) * 3600))),
        ("periodic", None) => match humantime::parse_duration(&value) {
            Ok(period) if period >= RETENTION_MIN => Ok(Retention::Period(period)),
            Ok(_) => Err(wrong("a second or more")),
            Err(_) => Err(wrong("hours, or a duration like 90s, 10m or 1h30m")),
        },
        ("revision", Some(revisions)) => Ok(Retention::Revisions(i64::from(revisions))),
        ("revision", None) => Err(wrong("a number of revisions")),
        _ => Err(bad(settings, "auto-compaction-mode", "must be periodic or revision".to_owned())),
    }
}

/// etcd's shortest interval is used for shorter ones.
fn progress_interval(settings: &Settings, warnings: &mut Vec<String>) -> Result<Duration, ConfigError> {
    let flag = "watch-progress-notify-interval";
    let value = text(settings, flag);
    let interval = duration(settings, flag)?;
    if interval < PROGRESS_INTERVAL_MIN {
        warnings.push(format!("--{flag} {value}: {PROGRESS_INTERVAL_MIN:?} is used, the shortest interval"));
    }
    Ok(interval.max(PROGRESS_INTERVAL_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(line: &str) -> Result<Config, ConfigError> {
        resolve(sources::from_args(line.split_whitespace().map(str::to_owned)).unwrap())
    }

    #[test]
    fn defaults_are_those_of_etcd() {
        let config = config("").unwrap();
        assert_eq!(config.data_dir, PathBuf::from("default.etcd"));
        let address = "127.0.0.1:2379".parse().unwrap();
        assert_eq!(config.client_addresses, [ListenAddress::plain(address)]);
        assert_eq!((config.txn_ops_max, config.request_bytes_max), (128, 1_572_864));
        assert_eq!((config.election_ticks, config.lease_ttl_min()), (10, 2));
    }

    #[test]
    fn retention_is_hours_a_duration_or_revisions() {
        let retention = |line: &str| config(line).unwrap().retention;
        assert_eq!(retention(""), Retention::All);
        assert_eq!(retention("--auto-compaction-retention 2"), Retention::Period(Duration::from_secs(7200)));
        assert_eq!(
            retention("--auto-compaction-retention 1h30m"),
            Retention::Period(Duration::from_secs(5400))
        );
        assert_eq!(
            retention("--auto-compaction-retention 500 --auto-compaction-mode revision"),
            Retention::Revisions(500)
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_value() {
        for (line, part) in [
            ("--election-timeout 400", "400"),
            ("--heartbeat-interval 0", "election-timeout"),
            ("--max-txn-ops many", "many"),
            ("--listen-client-urls http://127.0.0.1:1", "advertise-client-urls is required"),
            ("--listen-client-urls x --advertise-client-urls x", "must be http, https, unix, or unixs: x"),
            ("--log-level loud", "loud"),
            ("--auto-compaction-retention soon", "duration like"),
            ("--auto-compaction-mode weekly", "periodic or revision"),
        ] {
            let error = config(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
