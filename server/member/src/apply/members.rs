//! The attributes that members publish, and the cluster version.

use bytes::Bytes;
use prost::Message as _;
use revd_engine::mvcc::Store;
use revd_proto::etcdserverpb::Member;

use crate::error::Error;
use crate::schema;

/// A member's name and client URLs; the rest of its row stays.
pub(super) fn set_attributes(store: &mut Store, payload: &Bytes) -> Result<Bytes, Error> {
    let published = Member::decode(payload.clone())?;
    if let Some(mut member) = schema::member(store.tables(), published.id) {
        member.name = published.name;
        member.client_ur_ls = published.client_ur_ls;
        schema::put_member(store, &member);
    }
    Ok(Bytes::new())
}

/// The version all members can work at.
pub(super) fn set_cluster_version(store: &mut Store, payload: &Bytes) -> Result<Bytes, Error> {
    schema::put_cluster_version(store, payload);
    Ok(Bytes::new())
}
