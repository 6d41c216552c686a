//! Versions: a member has that of the etcd release that its program behaves as, a cluster that of
//! its oldest member. The leader looks at the members and decides ([`Versions`]); a cluster goes
//! down only where a downgrade is enabled, one minor version at a time.

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes};

use crate::error::Error;

/// Major and minor number; a cluster has no patch number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClusterVersion {
    /// The first number.
    pub major: u64,
    /// The second one.
    pub minor: u64,
}

impl ClusterVersion {
    /// The version of a cluster that forms while one of its members has never answered, and the
    /// lowest in which a member takes part.
    pub const MIN: Self = Self { major: 3, minor: 0 };
    /// The lowest version of stored data.
    const STORAGE_MIN: Self = Self { major: 3, minor: 5 };

    /// Reads `3.6.0` or, with less, `3.6`; a patch number, a pre-release and build metadata are
    /// passed over.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.split('.').map(|part| part.parse::<u64>().ok());
        let (major, minor) = (parts.next()??, parts.next()??);
        // Not even the patch number that is passed over may be none.
        if parts.next().is_some_and(|patch| patch.is_none()) || parts.next().is_some() {
            return None;
        }
        Some(Self { major, minor })
    }

    /// The version of clusters whose members behave as this release.
    ///
    /// # Panics
    /// When it is no version: this program was built with it.
    #[must_use]
    pub fn of_release(text: &str) -> Self {
        Self::parse(text).expect("a release has two numbers at least")
    }

    /// With a patch number, which is always 0: `3.7.0`.
    #[must_use]
    pub fn with_patch(self) -> String {
        format!("{self}.0")
    }

    /// The version of the data that a member of such a cluster stores.
    #[must_use]
    pub fn of_storage(self) -> Self {
        self.max(Self::STORAGE_MIN)
    }

    /// Whether it is one minor version below another one.
    fn is_next_below(self, other: Self) -> bool {
        self.major == other.major && self.minor.checked_add(1) == Some(other.minor)
    }
}

impl std::fmt::Display for ClusterVersion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// The versions of a cluster, as the state has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgreedVersions {
    /// The cluster's, once it is decided.
    pub cluster: Option<ClusterVersion>,
    /// The target of the downgrade that is enabled.
    pub downgrade: Option<ClusterVersion>,
}

impl AgreedVersions {
    /// Whether this cluster may go down to that version: by one minor version, one at a time.
    ///
    /// # Errors
    /// The answer that the caller gets.
    pub fn may_go_down(self, to: ClusterVersion) -> Result<(), Error> {
        let from = self.cluster.ok_or(Error::NoClusterVersion)?;
        if !to.is_next_below(from) {
            return Err(Error::InvalidDowngradeTarget);
        }
        if self.downgrade.is_some() { Err(Error::DowngradeInProgress) } else { Ok(()) }
    }

    /// Whether the cluster may have this version next. A former leader may have decided so before
    /// it knew of another decision.
    #[must_use]
    pub fn may_become(self, next: ClusterVersion) -> bool {
        self.cluster.is_none_or(|cluster| next > cluster || self.downgrade == Some(next))
    }
}

/// The target of a downgrade, as a client names it.
///
/// # Errors
/// The answer that the client gets.
pub fn downgrade_target(text: &str) -> Result<ClusterVersion, Error> {
    ClusterVersion::parse(text).ok_or(Error::WrongDowngradeVersion)
}

/// The versions that a leader decides by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Versions {
    /// Those of the cluster.
    pub agreed: AgreedVersions,
    /// That of each member's program; none for a member that cannot be reached.
    pub members: Vec<Option<ClusterVersion>>,
}

impl Versions {
    /// The oldest member's, unless one is unknown.
    fn oldest(&self) -> Option<ClusterVersion> {
        self.members.iter().copied().collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// The version that the cluster is to have from now on, if it is to have another one.
    #[must_use]
    pub fn decide(&self) -> Option<ClusterVersion> {
        let (oldest, AgreedVersions { cluster, downgrade }) = (self.oldest(), self.agreed);
        let Some(cluster) = cluster else { return Some(oldest.unwrap_or(ClusterVersion::MIN)) };
        let oldest = oldest?;
        match downgrade {
            Some(target) => target.is_next_below(cluster).then_some(target),
            None => (oldest > cluster && oldest.major == cluster.major).then_some(oldest),
        }
    }

    /// Whether the downgrade that is enabled is over: every member runs the target's program.
    #[must_use]
    pub fn is_down(&self) -> bool {
        let is_target = |member: &Option<ClusterVersion>| *member == self.agreed.downgrade;
        self.agreed.downgrade.is_some() && self.members.iter().all(is_target)
    }
}

/// Whether a member with this program can join a cluster, whose members name these cluster
/// versions: one that none of them has decided on is not ready for it.
///
/// # Errors
/// The version that does not fit, or none.
pub fn may_join(
    own: ClusterVersion,
    named: impl Iterator<Item = ClusterVersion>,
) -> Result<(), Option<ClusterVersion>> {
    let mut result = Err(None);
    for cluster in named {
        if cluster < ClusterVersion::MIN || cluster > own {
            return Err(Some(cluster));
        }
        result = Ok(());
    }
    result
}

/// Members and their versions, as an answer within this process: for each an id and two numbers,
/// little-endian.
#[must_use]
pub fn encode(versions: impl Iterator<Item = (u64, ClusterVersion)>) -> Bytes {
    let mut out = Vec::new();
    for (id, ClusterVersion { major, minor }) in versions {
        [id, major, minor].iter().for_each(|number| out.put_u64_le(*number));
    }
    out.into()
}

/// Reads such an answer.
#[must_use]
pub fn decode(mut bytes: Bytes) -> BTreeMap<u64, ClusterVersion> {
    let mut versions = BTreeMap::new();
    while bytes.len() >= 3 * 8 {
        let id = bytes.get_u64_le();
        versions.insert(id, ClusterVersion { major: bytes.get_u64_le(), minor: bytes.get_u64_le() });
    }
    versions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Option<ClusterVersion> {
        ClusterVersion::parse(text)
    }

    /// The texts of an etcd 3.7.1 in the same states.
    #[test]
    fn a_cluster_goes_down_by_one_minor_version() {
        let enabled = AgreedVersions { cluster: version("3.7.0"), downgrade: version("3.6") };
        let idle = AgreedVersions { downgrade: None, ..enabled };
        let down = AgreedVersions { cluster: version("3.6.0"), ..enabled };
        let asked = |agreed: AgreedVersions, to| downgrade_target(to).and_then(|to| agreed.may_go_down(to));
        for (agreed, to, verdict) in [
            (idle, "3.6", Ok(())),
            (idle, "3.6.0", Ok(())),
            (idle, "3.6.9-rc.1+x", Ok(())),
            (idle, "3.7.0", Err(Error::InvalidDowngradeTarget)),
            (idle, "3.5", Err(Error::InvalidDowngradeTarget)),
            (idle, "2.6", Err(Error::InvalidDowngradeTarget)),
            (idle, "", Err(Error::WrongDowngradeVersion)),
            (idle, "3", Err(Error::WrongDowngradeVersion)),
            (idle, "3.x", Err(Error::WrongDowngradeVersion)),
            (idle, "3.6.0.0", Err(Error::WrongDowngradeVersion)),
            (enabled, "3.6", Err(Error::DowngradeInProgress)),
            (enabled, "3.5", Err(Error::InvalidDowngradeTarget)),
            (down, "3.6", Err(Error::InvalidDowngradeTarget)),
            (down, "3.5", Err(Error::DowngradeInProgress)),
            (AgreedVersions::default(), "3.6", Err(Error::NoClusterVersion)),
        ] {
            assert_eq!(asked(agreed, to), verdict, "{agreed:?} to {to}");
        }
    }

    #[test]
    fn a_cluster_has_the_version_of_its_oldest_member() {
        let decided = |cluster: &str, members: &[&str], downgrade: &str| {
            let agreed = AgreedVersions { cluster: version(cluster), downgrade: version(downgrade) };
            let members = members.iter().map(|text| version(text)).collect();
            let versions = Versions { agreed, members };
            let next = versions.decide();
            assert!(next.is_none_or(|next| agreed.may_become(next)), "{versions:?} to {next:?}");
            (next.map(ClusterVersion::with_patch).unwrap_or_default(), versions.is_down())
        };
        for (cluster, members, downgrade, next) in [
            ("", &["3.7.1", "3.7.0+x", "3.8.0"][..], "", "3.7.0"),
            ("", &["3.7.1", "?", "3.8.0"], "", "3.0.0"), // as etcd, which then goes up
            ("3.0.0", &["3.7.1", "?"], "", ""),
            ("3.0.0", &["3.7.1", "3.6.4"], "", "3.6.0"),
            ("3.6.0", &["3.7.1", "3.6.4"], "", ""),
            ("3.6.0", &["3.7.1", "3.7.2"], "", "3.7.0"),
            ("3.7.0", &["3.6.1", "3.7.1"], "", ""), // never down by itself
            ("3.7.0", &["4.0.0"], "", ""),
            ("3.7.0", &["3.7.1", "3.7.1"], "3.6", "3.6.0"),
            ("3.7.0", &["3.7.1", "?"], "3.6", ""),
            ("3.6.0", &["3.6.1", "3.7.1"], "3.6", ""),
            ("3.6.0", &["3.6.1", "?"], "3.6", ""),
        ] {
            assert_eq!(
                decided(cluster, members, downgrade),
                (next.to_owned(), false),
                "{cluster} {members:?}"
            );
        }
        assert_eq!(decided("3.6.0", &["3.6.1", "3.6.0"], "3.6"), (String::new(), true));
        assert_eq!(decided("3.6.0", &["3.6.1", "3.6.0"], ""), (String::new(), false));
    }

    #[test]
    fn a_cluster_that_went_up_is_not_taken_down_by_a_former_leader() {
        let agreed = AgreedVersions { cluster: version("3.7"), downgrade: None };
        let may = |agreed: AgreedVersions, to| agreed.may_become(version(to).unwrap());
        assert!(!may(agreed, "3.0") && !may(agreed, "3.6") && !may(agreed, "3.7") && may(agreed, "3.8"));
        assert!(may(AgreedVersions { downgrade: version("3.6"), ..agreed }, "3.6"));
        assert!(may(AgreedVersions::default(), "3.0"));
    }

    #[test]
    fn a_member_joins_what_it_can_take_part_in() {
        let own = version("3.7.1").unwrap();
        let joined = |named: &[&str]| may_join(own, named.iter().filter_map(|text| version(text)));
        assert_eq!(joined(&["not_decided", "3.6.0"]), Ok(()));
        assert_eq!(joined(&["3.0.0", "3.7.0"]), Ok(()));
        assert_eq!(joined(&["not_decided"]), Err(None));
        assert_eq!(joined(&["3.7.0", "3.8.0"]), Err(version("3.8")));
        assert_eq!(joined(&["2.3.0"]), Err(version("2.3")));
    }

    #[test]
    fn stored_data_has_the_version_of_the_cluster_from_a_lowest_one_on() {
        let of_storage = |text| version(text).unwrap().of_storage().with_patch();
        assert_eq!([of_storage("3.0"), of_storage("3.7.1")], ["3.5.0", "3.7.0"]);
    }

    #[test]
    fn versions_of_members_survive_the_round_trip() {
        let all = BTreeMap::from([(1, version("3.7").unwrap()), (u64::MAX, version("4.0").unwrap())]);
        assert_eq!(decode(encode(all.clone().into_iter())), all);
        assert_eq!(decode(Bytes::from_static(b"cut short")), BTreeMap::new());
    }
}
