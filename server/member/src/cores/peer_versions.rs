//! The versions that other members say they have, for the leader's decision about that of the
//! cluster.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::cluster::version::{self, ClusterVersion};
use crate::cores::member_changes::MemberChanges;

/// Log core view.
#[derive(Debug, Default)]
pub(super) struct PeerVersions {
    heard: BTreeMap<u64, ClusterVersion>,
}

impl PeerVersions {
    /// A member has said which version it has.
    pub(super) fn heard(&mut self, member: u64, version: ClusterVersion) {
        self.heard.insert(member, version);
    }

    /// Those of the members that can be reached; former members are forgotten.
    pub(super) fn report(&mut self, changes: &MemberChanges) -> Bytes {
        self.heard.retain(|id, _| changes.membership().member(*id).is_some());
        let heard = self.heard.iter().filter(|(id, _)| changes.is_connected(**id));
        version::encode(heard.map(|(id, version)| (*id, *version)))
    }
}
