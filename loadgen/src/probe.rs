//! Single calls that wait for their reply: its version, its revision, a checksum.

use crate::login::ask;
use crate::wire::RpcMethod;
use crate::wire::fields::{bytes, number, revision};

/// Version and revision of a server, and its place in its cluster.
#[derive(Debug, Clone)]
pub struct ServerStatus {
    /// The version of etcd that it claims.
    pub version: String,
    /// The newest revision.
    pub revision: i64,
    /// The member itself leads.
    pub is_leader: bool,
}

/// Version and revision of a server.
///
/// # Errors
/// As [`ask`].
pub fn status(endpoint: &str) -> anyhow::Result<ServerStatus> {
    let body = ask(endpoint, RpcMethod::Status, &[])?;
    let (member, leader) = (number(bytes(&body, 1), 2), number(&body, 4));
    Ok(ServerStatus {
        is_leader: leader != 0 && leader == member,
        version: String::from_utf8_lossy(bytes(&body, 2)).into_owned(),
        revision: revision(&body),
    })
}

/// The checksum of all keys at the newest revision.
///
/// # Errors
/// As [`ask`].
pub fn hash_kv(endpoint: &str) -> anyhow::Result<i64> {
    Ok(number(&ask(endpoint, RpcMethod::HashKv, &[])?, 2))
}
