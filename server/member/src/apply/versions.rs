//! The version of the cluster, and downgrades.

use bytes::Bytes;
use revd_engine::mvcc::Store;

use crate::cluster::version::{ClusterVersion, downgrade_target};
use crate::error::Error;
use crate::schema;

/// The version that all members can work at, as a leader has decided; a decision that was overtaken
/// has no effect.
pub(super) fn set_cluster(store: &mut Store, payload: &Bytes) -> Result<Bytes, Error> {
    let version = read(payload).ok_or(Error::Malformed("a cluster version is none"))?;
    if schema::versions(store.tables()).may_become(version) {
        schema::put_cluster_version(store, version);
    }
    Ok(Bytes::new())
}

/// Enables a downgrade, or cancels it.
pub(super) fn set_downgrade(store: &mut Store, payload: &Bytes) -> Result<Bytes, Error> {
    if payload.is_empty() {
        schema::put_downgrade(store, None);
        return Ok(Bytes::new());
    }
    let target = std::str::from_utf8(payload).map_err(|_| Error::WrongDowngradeVersion)?;
    let target = downgrade_target(target)?;
    // Two callers may have asked at the same time.
    schema::versions(store.tables()).may_go_down(target)?;
    schema::put_downgrade(store, Some(target));
    Ok(Bytes::new())
}

fn read(payload: &Bytes) -> Option<ClusterVersion> {
    ClusterVersion::parse(std::str::from_utf8(payload).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use revd_engine::db::DbOptions;
    use revd_engine::disk::SimDisk;

    #[test]
    fn versions_go_down_only_by_a_downgrade() {
        let mut store = Store::open(Arc::new(SimDisk::new()), DbOptions { page_bytes_if_new: 512 }).unwrap();
        let shown = |store: &Store| {
            let agreed = schema::versions(store.tables());
            [agreed.cluster, agreed.downgrade]
                .map(|version| version.map_or(String::new(), |it| it.to_string()))
        };
        let (six, seven) = (Bytes::from("3.6.0"), Bytes::from("3.7.0"));
        assert_eq!(set_downgrade(&mut store, &six), Err(Error::NoClusterVersion));
        for (version, now) in [(&six, "3.6"), (&seven, "3.7"), (&six, "3.7")] {
            set_cluster(&mut store, version).unwrap();
            assert_eq!(shown(&store), [now, ""]);
        }
        set_downgrade(&mut store, &six).unwrap();
        assert_eq!(set_downgrade(&mut store, &six), Err(Error::DowngradeInProgress));
        set_cluster(&mut store, &six).unwrap();
        assert_eq!(shown(&store), ["3.6", "3.6"]);
        for _ in 0..2 {
            set_downgrade(&mut store, &Bytes::new()).unwrap();
            assert_eq!(shown(&store), ["3.6", ""]);
        }
        assert!(set_cluster(&mut store, &Bytes::from("new")).is_err());
    }
}
