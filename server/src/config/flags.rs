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

const fn text(name: &'static str, default: &'static str, what: &'static str) -> UsedFlag {
    (name, FlagKind::Text, default, what)
}

const fn switch(name: &'static str, default: bool, what: &'static str) -> UsedFlag {
    (name, FlagKind::Switch, if default { "true" } else { "false" }, what)
}

/// The flags that are used.
pub const USED: &[UsedFlag] = &[
    text("name", "default", "Human-readable name of this member."),
    text("data-dir", "${name}.etcd", "Directory of this member's data."),
    text("wal-dir", "", "Directory of the write-ahead log, if not in the data directory."),
    text("listen-client-urls", "http://localhost:2379", "URLs to serve clients on, comma-separated."),
    text(
        "listen-client-http-urls",
        "",
        "URLs to answer plain requests on, comma-separated; those of listen-client-urls are for gRPC alone then.",
    ),
    text(
        "listen-metrics-urls",
        "",
        "More URLs to answer /metrics, /health, /livez and /readyz on, and nothing else; comma-separated.",
    ),
    text(
        "advertise-client-urls",
        "http://localhost:2379",
        "Client URLs that the rest of the cluster and clients are told.",
    ),
    text("listen-peer-urls", "http://localhost:2380", "URLs to talk to other members on, comma-separated."),
    text(
        "initial-advertise-peer-urls",
        "http://localhost:2380",
        "Peer URLs of this member; its id is made from them.",
    ),
    text(
        "initial-cluster",
        "default=http://localhost:2380",
        "Members of a new cluster, name=url, comma-separated.",
    ),
    text(
        "discovery-srv",
        "",
        "Domain whose SRV records name the members of a new cluster, in place of initial-cluster.",
    ),
    text("discovery-srv-name", "", "Appended, after a hyphen, to the service of these records."),
    text(
        "discovery-endpoints",
        "",
        "A server of etcd's API where the members of a new cluster register, in place of initial-cluster.",
    ),
    text("discovery-token", "", "The cluster's name there; takes the place of initial-cluster-token."),
    text("discovery-dial-timeout", "2s", "Time in which it accepts a connection."),
    text("discovery-request-timeout", "5s", "Time in which it answers."),
    text("discovery-user", "", "A user of that server; only together with a password."),
    text("discovery-password", "", "The password of this user."),
    text("discovery-cert", "", "The certificate that is shown to that server over TLS."),
    text("discovery-key", "", "Its key."),
    text("discovery-cacert", "", "Authorities that sign that server's certificates; the system's if empty."),
    switch(
        "discovery-insecure-transport",
        true,
        "Endpoints without http:// or https:// are asked without TLS, unless another of these flags is given.",
    ),
    switch("discovery-insecure-skip-tls-verify", false, "That server is believed whatever it shows."),
    text("initial-cluster-state", "new", "new, or existing to join a cluster."),
    text("initial-cluster-token", "etcd-cluster", "Distinguishes clusters with the same URLs."),
    switch(
        "force-new-cluster",
        false,
        "Begin a cluster of this member alone with the data that it has; for disasters.",
    ),
    switch(
        "strict-reconfig-check",
        true,
        "Refuse changes of members that would cost the cluster its quorum.",
    ),
    text("max-learners", "1", "Members without a vote that a cluster may have."),
    switch("learner-reads", false, "As a learner, answer linearizable reads and watches too. revd only."),
    text(
        "snapshot-count",
        "10000",
        "Applied entries after which the log is cut; members that are further behind get a snapshot.",
    ),
    text(
        "snapshot-catchup-entries",
        "5000",
        "Entries that are kept when the log is cut, for members that are behind.",
    ),
    text("downgrade-check-time", "5s", "How often it is looked whether a downgrade is over."),
    switch("pre-vote", true, "Ask before an election whether it can be won."),
    switch(
        "initial-election-tick-advance",
        true,
        "Do not wait a whole election timeout for a leader at the start.",
    ),
    text("heartbeat-interval", "100", "Milliseconds between heartbeats."),
    text("election-timeout", "1000", "Milliseconds without a leader before an election."),
    text(
        "auth-token",
        "simple",
        "Tokens of users: simple, or jwt,sign-method=RS256,priv-key=FILE,pub-key=FILE,ttl=5m (RS, PS, ES, HS, EdDSA).",
    ),
    text("auth-token-ttl", "300", "Seconds after which a token ends that is not used."),
    text("bcrypt-cost", "10", "Cost of hashes of passwords, 4 to 31; each step doubles it."),
    text(
        "limit-user",
        "",
        "What a user may ask for: name=calls/s,bytes/s, where 0 is no limit; may be repeated.",
    ),
    switch(
        "core-dumps",
        false,
        "Let the system write core files, which may have passwords and keys in them.",
    ),
    text("max-txn-ops", "128", "Operations allowed in a transaction."),
    text("max-request-bytes", "1572864", "Bytes allowed in a request."),
    text("max-concurrent-streams", "4294967295", "Streams a client may have open at a time."),
    text("quota-backend-bytes", "0", "Size limit of the store; 0 is 2 GiB."),
    text(
        "auto-compaction-mode",
        "periodic",
        "What auto-compaction-retention counts: periodic (time) or revision.",
    ),
    text(
        "auto-compaction-retention",
        "0",
        "What auto compaction keeps: hours or a duration like 10m, or a number of revisions; 0 keeps everything.",
    ),
    text(
        "feature-gates",
        "",
        "Features, name=true or name=false, comma-separated: InitialCorruptCheck compares this member's keys with those \
         of the others before it serves, CompactHashCheck compares hashes of compactions.",
    ),
    text(
        "corrupt-check-time",
        "0s",
        "Interval at which a leader compares the keys of all members, as a duration; 0 never.",
    ),
    text(
        "compact-hash-check-time",
        "1m",
        "Interval at which a leader compares hashes of compactions, with the feature CompactHashCheck.",
    ),
    switch(
        "experimental-initial-corrupt-check",
        false,
        "The feature InitialCorruptCheck, as etcd 3.5 names it.",
    ),
    switch(
        "experimental-compact-hash-check-enabled",
        false,
        "The feature CompactHashCheck, as etcd 3.5 names it.",
    ),
    text(
        "watch-progress-notify-interval",
        "10m",
        "Interval of progress notifications to watchers that ask for them, as a duration.",
    ),
    text(
        "grpc-keepalive-min-time",
        "5s",
        "Shortest time between pings of a client; one that pings more often is disconnected, as a duration.",
    ),
    text(
        "grpc-keepalive-interval",
        "2h",
        "Time without traffic after which the server pings a client, as a duration; 0 never.",
    ),
    text(
        "grpc-keepalive-timeout",
        "20s",
        "Time in which a client has to answer a ping before its connection is closed, as a duration.",
    ),
    text("log-level", "info", "debug, info, warn, error or fatal."),
    switch("unsafe-no-fsync", false, "Do not sync writes: a crash of the machine loses data."),
    text("config-file", "", "Configuration file (YAML); replaces all flags and environment variables."),
    text(
        "cores",
        "0",
        "Cores to use; 0 is every core this process may use, shared with members of the cluster that have its host. revd only.",
    ),
    text(
        "memory-bytes",
        "0",
        "Memory that requests and replies are sized by; 0 is what the machine or the cgroup has. revd only.",
    ),
    switch("version", false, "Print the version and exit."),
    switch("help", false, "Print this text and exit."),
    text("cert-file", "", "Certificate that clients are shown, in PEM."),
    text("key-file", "", "Its private key."),
    switch("client-cert-auth", false, "Clients must show a certificate."),
    text("trusted-ca-file", "", "Authorities that sign the certificates of clients."),
    text("client-crl-file", "", "Revoked certificates of clients, in DER or PEM."),
    text(
        "client-cert-allowed-hostname",
        "",
        "Host names of which a client's certificate must have one, comma-separated.",
    ),
    text("client-cert-file", "", "Taken and checked as etcd does; clients are never dialed."),
    text("client-key-file", "", "Its private key."),
    switch("auto-tls", false, "Serve clients with a certificate that this member makes."),
    text("peer-cert-file", "", "Certificate that other members are shown, in PEM."),
    text("peer-key-file", "", "Its private key."),
    text("peer-client-cert-file", "", "Certificate for dialing other members, if it is another one."),
    text("peer-client-key-file", "", "Its private key."),
    switch("peer-client-cert-auth", false, "Other members must show a certificate."),
    text("peer-trusted-ca-file", "", "Authorities that sign the certificates of members."),
    text("peer-crl-file", "", "Revoked certificates of members, in DER or PEM."),
    text(
        "peer-cert-allowed-cn",
        "",
        "Common names of which a member's certificate must have one, comma-separated.",
    ),
    text(
        "peer-cert-allowed-hostname",
        "",
        "Host names of which a member's certificate must have one, comma-separated.",
    ),
    switch(
        "peer-skip-client-san-verification",
        false,
        "Do not compare a member's address with the names in its certificate.",
    ),
    switch(
        "peer-auto-tls",
        false,
        "Speak to other members with certificates that they make; nobody is verified.",
    ),
    text("self-signed-cert-validity", "1", "Years that certificates count that this member makes."),
    text("tls-min-version", "TLS1.2", "Oldest version of TLS: TLS1.2 or TLS1.3."),
    text("tls-max-version", "", "Newest version of TLS: TLS1.2 or TLS1.3."),
    text("cipher-suites", "", "Cipher suites of TLS 1.2, comma-separated; all that are safe if empty."),
];

/// etcd's other flags with a value.
const IGNORED_TEXT: &[&str] = &[
    "backend-batch-interval",
    "backend-batch-limit",
    "backend-bbolt-freelist-type",
    "bootstrap-defrag-threshold-megabytes",
    "cluster-active-size",
    "cluster-remove-delay",
    "cluster-sync-interval",
    "compaction-batch-limit",
    "compaction-sleep-interval",
    "config",
    "cors",
    "discovery",
    "discovery-fallback",
    "discovery-keepalive-time",
    "discovery-keepalive-timeout",
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
    "log-format",
    "log-outputs",
    "log-rotation-config-json",
    "logger",
    "max-result-buffer",
    "max-retry-attempts",
    "max-snapshots",
    "max-wals",
    "metrics",
    "peer-election-timeout",
    "peer-heartbeat-interval",
    "raft-read-timeout",
    "raft-write-timeout",
    "retry-interval",
    "v2-deprecation",
    "warning-apply-duration",
    "warning-unary-request-duration",
];

/// etcd's other switches.
const IGNORED_SWITCHES: &[&str] = &[
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
    fn every_flag_that_is_used_is_named_in_the_list_of_them() {
        let list = include_str!("../../../docs/COMPAT.md").split("## Flags").nth(1).unwrap();
        let is_named =
            |name: &str| list.contains(&format!("`{name}`")) || list.contains(&format!("`--{name}`"));
        let is_alias = |name: &str| name.strip_prefix("experimental-").is_some_and(is_named);
        let missing: Vec<_> =
            USED.iter().map(|(name, ..)| *name).filter(|name| !is_named(name) && !is_alias(name)).collect();
        assert_eq!(missing, [""; 0], "not in docs/COMPAT.md");
    }

    #[test]
    fn a_slip_finds_the_flag_that_was_meant() {
        assert_eq!(nearest("data-dri"), "data-dir");
        assert_eq!(nearest("listen-client-url"), "listen-client-urls");
    }
}
