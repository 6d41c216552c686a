//! Why a configuration cannot be used, in words for the operator.

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// No such flag.
    #[error("unknown flag --{name}: did you mean --{nearest}? (see revd --help)")]
    UnknownFlag {
        /// As given.
        name: String,
        /// The most similar one.
        nearest: &'static str,
    },
    /// A flag at the end without its value.
    #[error("flag --{0} needs a value")]
    MissingValue(&'static str),
    /// Not a flag.
    #[error("'{0}' is not a valid flag")]
    StrayArgument(String),
    /// Set twice.
    #[error(
        "conflicting environment variable {variable:?} is shadowed by corresponding command-line flag --{flag} (either \
         unset environment variable or disable flag)"
    )]
    Shadowed {
        /// The variable.
        variable: String,
        /// The flag.
        flag: &'static str,
    },
    /// A value that makes no sense.
    #[error("--{flag} {value:?}: {problem}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Its value.
        value: String,
        /// The mistake in it, and the right form.
        problem: String,
    },
    /// The file cannot be used.
    #[error("--config-file {path}: {problem}")]
    File {
        /// The file.
        path: String,
        /// The mistake in it.
        problem: String,
    },
    /// TLS that cannot be spoken, in etcd's words.
    #[error("{0}")]
    Security(String),
    /// Tokens that cannot be made or looked at, in etcd's words.
    #[error("--auth-token: {0}")]
    Tokens(String),
    /// A cluster begins in one way.
    #[error(
        "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \"discovery-endpoints\" or \
         \"discovery-srv\""
    )]
    SeveralBootstraps,
    /// A discovery service needs both.
    #[error("both --discovery-token and --discovery-endpoints must be set")]
    HalfADiscovery,
    /// A comma too many.
    #[error("--discovery-endpoints must not contain empty endpoints")]
    EmptyEndpoint,
    /// A URL has calls, or plain requests.
    #[error("cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {0}")]
    SharedUrl(String),
    /// `listen-client-urls` alone would leave others without a way here.
    #[error("--advertise-client-urls is required when --listen-client-urls is set explicitly")]
    NothingAdvertised,
}
