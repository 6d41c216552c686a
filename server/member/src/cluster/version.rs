//! Cluster versions, and which one a cluster may go down to.

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
}

impl std::fmt::Display for ClusterVersion {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.major, self.minor)
    }
}

/// Whether a cluster of this version may go down to that one: by one minor version.
///
/// # Errors
/// The answer that the caller gets.
pub fn may_go_down(from: Option<&str>, to: &str) -> Result<(), Error> {
    let to = ClusterVersion::parse(to).ok_or(Error::WrongDowngradeVersion)?;
    let from = from.and_then(ClusterVersion::parse).ok_or(Error::NoClusterVersion)?;
    let is_next = to.major == from.major && to.minor.checked_add(1) == Some(from.minor);
    if is_next { Ok(()) } else { Err(Error::InvalidDowngradeTarget) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_goes_down_by_one_minor_version() {
        for (to, verdict) in [
            ("3.6", Ok(())),
            ("3.6.0", Ok(())),
            ("3.6.9-rc.1+x", Ok(())),
            ("3.7.0", Err(Error::InvalidDowngradeTarget)),
            ("3.5", Err(Error::InvalidDowngradeTarget)),
            ("2.6", Err(Error::InvalidDowngradeTarget)),
            ("", Err(Error::WrongDowngradeVersion)),
            ("3", Err(Error::WrongDowngradeVersion)),
            ("3.x", Err(Error::WrongDowngradeVersion)),
            ("3.6.0.0", Err(Error::WrongDowngradeVersion)),
        ] {
            assert_eq!(may_go_down(Some("3.7.0"), to), verdict, "{to}");
        }
        assert_eq!(may_go_down(None, "3.6"), Err(Error::NoClusterVersion));
    }
}
