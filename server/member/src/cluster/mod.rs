//! The cluster and its members: ids as etcd computes them, the members a cluster begins with,
//! their votes, and the rules by which they change.

pub mod conf_state;
pub mod hash_checks;
pub mod initial;
pub mod joining;
pub mod membership;
pub mod registry;
pub mod srv;
pub mod version;

use sha1::{Digest as _, Sha1};

/// Why a former member ends, and is not started again.
pub const REMOVED: &str = "the member has been permanently removed from the cluster: the data-dir used by this member \
                           must be removed";

/// A member of a cluster, by its ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity {
    /// Cluster id.
    pub cluster: u64,
    /// Member id.
    pub member: u64,
}

/// A member's id: the first eight bytes of the SHA-1 over its peer URLs, sorted and joined, and the
/// cluster's token.
#[must_use]
pub fn member_id(peer_urls: &[String], token: &str) -> u64 {
    let mut urls = peer_urls.to_vec();
    urls.sort();
    let mut hash = Sha1::new();
    urls.iter().for_each(|url| hash.update(url));
    hash.update(token);
    first_eight(&hash.finalize())
}

/// A cluster's id: the same over its first members' ids, sorted, as big-endian bytes.
#[must_use]
pub fn cluster_id(members: &[u64]) -> u64 {
    let mut members = members.to_vec();
    members.sort_unstable();
    let mut hash = Sha1::new();
    members.iter().for_each(|member| hash.update(member.to_be_bytes()));
    first_eight(&hash.finalize())
}

fn first_eight(digest: &[u8]) -> u64 {
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has twenty bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids of an etcd 3.7.1 that is started without flags.
    #[test]
    fn ids_equal_those_of_an_etcd_with_default_flags() {
        let member = member_id(&["http://localhost:2380".to_owned()], "etcd-cluster");
        assert_eq!(format!("{member:x}"), "8e9e05c52164694d");
        assert_eq!(format!("{:x}", cluster_id(&[member])), "cdf818194e3a8c32");
    }
}
