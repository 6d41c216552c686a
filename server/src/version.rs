//! Versions: the etcd release whose behaviour this server has, and its own.

/// The etcd release that clients are told; some switch features on by it.
pub const ETCD: &str = "3.7.1";
/// The version that a cluster of such members agrees on, and that of the stored data.
pub const CLUSTER: &str = "3.7.0";
/// The API's version, as `--version` prints it.
pub const API: &str = "3.7";
/// This program's own version.
pub const REVD: &str = env!("CARGO_PKG_VERSION");
