//! The flags there are: etcd's names, and ours.

/// How a flag's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagKind {
    /// `--flag value` or `--flag=value`
    Text,
    /// `--flag` or `--flag=false`
    Switch,
}

/// Whether a flag has an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagSupport {
    /// It does what it says.
    Used,
    /// Accepted so that existing command lines work; a warning says that it has no effect.
    Ignored,
}

/// A flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// How its value is written.
    pub kind: FlagKind,
    /// Whether it has an effect.
    pub support: FlagSupport,
}

/// A flag that is used: name, kind, default as text, what it does.
pub type UsedFlag = (&'static str, FlagKind, &'static str, &'static str);

/// The flags that are used.
pub const USED: &[UsedFlag] = &[
    ("name", FlagKind::Text, "default", "Human-readable name of this member."),
    ("data-dir", FlagKind::Text, "${name}.etcd", "Directory of this member's data."),
    ("wal-dir", FlagKind::Text, "", "Directory of the write-ahead log, if not in the data directory."),
    (
        "listen-client-urls",
        FlagKind::Text,
        "http://localhost:2379",
        "URLs to serve clients on, comma-separated.",
    ),
    (
        "advertise-client-urls",
        FlagKind::Text,
        "http://localhost:2379",
        "Client URLs that the rest of the cluster and clients are told.",
    ),
    (
        "listen-peer-urls",
        FlagKind::Text,
        "http://localhost:2380",
        "URLs to talk to other members on, comma-separated.",
    ),
    (
        "initial-advertise-peer-urls",
        FlagKind::Text,
        "http://localhost:2380",
        "Peer URLs of this member; its id is made from them.",
    ),
    (
        "initial-cluster",
        FlagKind::Text,
        "default=http://localhost:2380",
        "Members of a new cluster, name=url, comma-separated.",
    ),
    (
        "discovery-srv",
        FlagKind::Text,
        "",
        "Domain whose SRV records name the members of a new cluster, in place of initial-cluster.",
    ),
    ("discovery-srv-name", FlagKind::Text, "", "Appended, after a hyphen, to the service of these records."),
    (
        "discovery-endpoints",
        FlagKind::Text,
        "",
        "A server of etcd's API where the members of a new cluster register, in place of initial-cluster.",
    ),
    (
        "discovery-token",
        FlagKind::Text,
        "",
        "The cluster's name there; takes the place of initial-cluster-token.",
    ),
    ("discovery-dial-timeout", FlagKind::Text, "2s", "Time in which it accepts a connection."),
    ("discovery-request-timeout", FlagKind::Text, "5s", "Time in which it answers."),
    ("discovery-user", FlagKind::Text, "", "A user of that server; only together with a password."),
    ("discovery-password", FlagKind::Text, "", "The password of this user."),
    ("initial-cluster-state", FlagKind::Text, "new", "new, or existing to join a cluster."),
    ("initial-cluster-token", FlagKind::Text, "etcd-cluster", "Distinguishes clusters with the same URLs."),
    (
        "force-new-cluster",
        FlagKind::Switch,
        "false",
        "Begin a cluster of this member alone with the data that it has; for disasters.",
    ),
    (
        "strict-reconfig-check",
        FlagKind::Switch,
        "true",
        "Refuse changes of members that would cost the cluster its quorum.",
    ),
    ("max-learners", FlagKind::Text, "1", "Members without a vote that a cluster may have."),
    (
        "learner-reads",
        FlagKind::Switch,
        "false",
        "As a learner, answer linearizable reads and watches too. revd only.",
    ),
    (
        "snapshot-count",
        FlagKind::Text,
        "10000",
        "Applied entries after which the log is cut; members that are further behind get a snapshot.",
    ),
    (
        "snapshot-catchup-entries",
        FlagKind::Text,
        "5000",
        "Entries that are kept when the log is cut, for members that are behind.",
    ),
    ("downgrade-check-time", FlagKind::Text, "5s", "How often it is looked whether a downgrade is over."),
    ("pre-vote", FlagKind::Switch, "true", "Ask before an election whether it can be won."),
    (
        "initial-election-tick-advance",
        FlagKind::Switch,
        "true",
        "Do not wait a whole election timeout for a leader at the start.",
    ),
    ("heartbeat-interval", FlagKind::Text, "100", "Milliseconds between heartbeats."),
    ("election-timeout", FlagKind::Text, "1000", "Milliseconds without a leader before an election."),
    ("max-txn-ops", FlagKind::Text, "128", "Operations allowed in a transaction."),
    ("max-request-bytes", FlagKind::Text, "1572864", "Bytes allowed in a request."),
    ("max-concurrent-streams", FlagKind::Text, "4294967295", "Streams a client may have open at a time."),
    ("quota-backend-bytes", FlagKind::Text, "0", "Size limit of the store; 0 is 2 GiB."),
    (
        "auto-compaction-mode",
        FlagKind::Text,
        "periodic",
        "What auto-compaction-retention counts: periodic (time) or revision.",
    ),
    (
        "auto-compaction-retention",
        FlagKind::Text,
        "0",
        "What auto compaction keeps: hours or a duration like 10m, or a number of revisions; 0 keeps everything.",
    ),
    (
        "feature-gates",
        FlagKind::Text,
        "",
        "Features, name=true or name=false, comma-separated: InitialCorruptCheck compares this member's keys with those \
         of the others before it serves, CompactHashCheck compares hashes of compactions.",
    ),
    (
        "corrupt-check-time",
        FlagKind::Text,
        "0s",
        "Interval at which a leader compares the keys of all members, as a duration; 0 never.",
    ),
    (
        "compact-hash-check-time",
        FlagKind::Text,
        "1m",
        "Interval at which a leader compares hashes of compactions, with the feature CompactHashCheck.",
    ),
    (
        "experimental-initial-corrupt-check",
        FlagKind::Switch,
        "false",
        "The feature InitialCorruptCheck, as etcd 3.5 names it.",
    ),
    (
        "experimental-compact-hash-check-enabled",
        FlagKind::Switch,
        "false",
        "The feature CompactHashCheck, as etcd 3.5 names it.",
    ),
    (
        "watch-progress-notify-interval",
        FlagKind::Text,
        "10m",
        "Interval of progress notifications to watchers that ask for them, as a duration.",
    ),
    (
        "grpc-keepalive-min-time",
        FlagKind::Text,
        "5s",
        "Shortest time between pings of a client; one that pings more often is disconnected, as a duration.",
    ),
    (
        "grpc-keepalive-interval",
        FlagKind::Text,
        "2h",
        "Time without traffic after which the server pings a client, as a duration; 0 never.",
    ),
    (
        "grpc-keepalive-timeout",
        FlagKind::Text,
        "20s",
        "Time in which a client has to answer a ping before its connection is closed, as a duration.",
    ),
    ("log-level", FlagKind::Text, "info", "debug, info, warn, error or fatal."),
    ("unsafe-no-fsync", FlagKind::Switch, "false", "Do not sync writes: a crash of the machine loses data."),
    (
        "config-file",
        FlagKind::Text,
        "",
        "Configuration file (YAML); replaces all flags and environment variables.",
    ),
    (
        "cores",
        FlagKind::Text,
        "0",
        "Cores to use; 0 is every core this process may use, shared with members of the cluster that have its host. revd only.",
    ),
    (
        "memory-bytes",
        FlagKind::Text,
        "0",
        "Memory that requests and replies are sized by; 0 is what the machine or the cgroup has. revd only.",
    ),
    ("version", FlagKind::Switch, "false", "Print the version and exit."),
    ("help", FlagKind::Switch, "false", "Print this text and exit."),
];

/// etcd's other flags with a value.
const IGNORED_TEXT: &[&str] = &[
    "auth-token",
    "auth-token-ttl",
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bcrypt-cost",
    "bootstrap-defrag-threshold-megabytes",
    "cert-file",
    "cipher-suites",
    "client-cert-allowed-hostname",
    "client-cert-file",
    "client-crl-file",
    "client-key-file",
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "config",
    "cors",
    "discovery",
    "discovery-cacert",
    "discovery-cert",
    "discovery-fallback",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
    "discovery-key",
    "discovery-proxy",
    "distributed-tracing-address",
    "distributed-tracing-instance-id",
    "distributed-tracing-sampling-rate",
    "distributed-tracing-service-name",
    "experimental-bootstrap-defrag-threshold-megabytes",
    "experimental-compaction-batch-limit",
    "experimental-compaction-sleep-interval",
    "experimental-distributed-tracing-address",
    "experimental-distributed-tracing-instance-id",
    "experimental-distributed-tracing-sampling-rate",
    "experimental-distributed-tracing-service-name",
    "experimental-warning-apply-duration",
    "experimental-warning-unary-request-duration",
    "host-whitelist",
    "key-file",
    "listen-client-http-urls",
    "listen-metrics-urls",
    "log-format",
    "log-outputs",
    "log-rotation-config-json",
    "logger",
    "max-result-buffer",
    "max-retry-attempts",
    "max-snapshots",
    "max-wals",
    "metrics",
    "peer-cert-allowed-cn",
    "peer-cert-allowed-hostname",
    "peer-cert-file",
    "peer-client-cert-file",
    "peer-client-key-file",
    "peer-crl-file",
    "peer-election-timeout",
    "peer-heartbeat-interval",
    "peer-key-file",
    "peer-trusted-ca-file",
    "raft-read-timeout",
    "raft-write-timeout",
    "retry-interval",
    "self-signed-cert-validity",
    "tls-max-version",
    "tls-min-version",
    "trusted-ca-file",
    "v2-deprecation",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

/// etcd's other switches.
const IGNORED_SWITCHES: &[&str] = &[
    "auto-tls",
    "client-cert-auth",
    "discovery-insecure-skip-tls-verify",
    "discovery-insecure-transport",
    "enable-distributed-tracing",
    "enable-grpc-gateway",
    "enable-log-rotation",
    "enable-pprof",
    "experimental-enable-distributed-tracing",
    "experimental-enable-lease-checkpoint",
    "experimental-enable-lease-checkpoint-persist",
    "experimental-memory-mlock",
    "experimental-peer-skip-client-san-verification",
    "experimental-set-member-localaddr",
    "experimental-stop-grpc-service-on-defrag",
    "experimental-txn-mode-write-with-shared-buffer",
    "force",
    "memory-mlock",
    "peer-auto-tls",
    "peer-client-cert-auth",
    "peer-skip-client-san-verification",
    "snapshot",
    "socket-reuse-address",
    "socket-reuse-port",
    "v",
    "vv",
];

/// Finds a flag by its name; `h` is `help`, as Go programs have it, and some had another name in
/// older versions.
#[must_use]
pub fn find(name: &str) -> Option<Flag> {
    let name = match name {
        "h" => "help",
        "experimental-compact-hash-check-time" => "compact-hash-check-time",
        "experimental-corrupt-check-time" => "corrupt-check-time",
        "experimental-max-learners" => "max-learners",
        "experimental-downgrade-check-time" => "downgrade-check-time",
        "experimental-snapshot-catchup-entries" => "snapshot-catchup-entries",
        "experimental-watch-progress-notify-interval" => "watch-progress-notify-interval",
        name => name,
    };
    if let Some((name, kind, ..)) = USED.iter().find(|(used, ..)| *used == name) {
        return Some(Flag { name, kind: *kind, support: FlagSupport::Used });
    }
    let ignored = |names: &'static [&str], kind| {
        let name = names.iter().find(|ignored| **ignored == name)?;
        Some(Flag { name, kind, support: FlagSupport::Ignored })
    };
    ignored(IGNORED_TEXT, FlagKind::Text).or_else(|| ignored(IGNORED_SWITCHES, FlagKind::Switch))
}

/// The flag whose name is most like `name`.
#[must_use]
pub fn nearest(name: &str) -> &'static str {
    let used = USED.iter().map(|(used, ..)| *used);
    let all = used.chain(IGNORED_TEXT.iter().copied()).chain(IGNORED_SWITCHES.iter().copied());
    all.min_by_key(|known| distance(known, name)).expect("there are flags")
}

/// Letters to insert, drop or replace (Levenshtein).
fn distance(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

/// The text of `--help`.
#[must_use]
pub fn help() -> String {
    let mut text = String::from(
        "Usage: revd [flags]\n\nAn etcd v3 server. Flags may be written -flag value, --flag value or --flag=value,\n\
         set as environment variables (--data-dir is ETCD_DATA_DIR) or in a file (--config-file).\n\nFlags:\n",
    );
    for (name, kind, default, what) in USED {
        let default = if *kind == FlagKind::Text { format!(" '{default}'") } else { String::new() };
        text.push_str(&format!("  --{name}{default}\n    \t{what}\n"));
    }
    text.push_str("\netcd's other flags are accepted and have no effect; a warning says so.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let used = USED.iter().map(|(used, ..)| *used);
        let mut names: Vec<_> =
            used.chain(IGNORED_TEXT.iter().copied()).chain(IGNORED_SWITCHES.iter().copied()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_slip_finds_the_flag_that_was_meant() {
        assert_eq!(nearest("data-dri"), "data-dir");
        assert_eq!(nearest("listen-client-url"), "listen-client-urls");
    }
}
