//! Versions: the etcd release whose behaviour this server has, and its own.

/// The etcd release that clients are told; some switch features on by it.
pub const ETCD: &str = "3.7.1";
/// The API's version, as `--version` prints it.
pub const API: &str = "3.7";
/// This program's own version.
pub const REVD: &str = env!("CARGO_PKG_VERSION");

/// The words of this member about its version to other members: the release counts for the
/// cluster's version, the rest is for people.
#[must_use]
pub fn for_peers() -> String {
    format!("{ETCD}+revd.{REVD}")
}
