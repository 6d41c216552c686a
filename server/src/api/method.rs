//! Which method a path names.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use prost::Message as _;
use prost_types::FileDescriptorSet;
use revd_member::error::Status;

/// A method with one request and one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// `KV.Range`
    Range,
    /// `KV.Put`
    Put,
    /// `KV.DeleteRange`
    DeleteRange,
    /// `KV.Txn`
    Txn,
    /// `KV.Compact`
    Compact,
    /// `Lease.LeaseGrant`
    LeaseGrant,
    /// `Lease.LeaseRevoke`
    LeaseRevoke,
    /// `Lease.LeaseTimeToLive`
    LeaseTimeToLive,
    /// `Lease.LeaseLeases`
    LeaseLeases,
    /// `Cluster.MemberList`
    MemberList,
    /// `Maintenance.Alarm`
    Alarm,
    /// `Maintenance.Status`
    Status,
    /// `Maintenance.Hash`
    Hash,
    /// `Maintenance.HashKV`
    HashKv,
    /// `Maintenance.Defragment`
    Defragment,
    /// `Lock.Lock`
    Lock,
    /// `Lock.Unlock`
    Unlock,
    /// `Election.Campaign`
    Campaign,
    /// `Election.Proclaim`
    Proclaim,
    /// `Election.Resign`
    Resign,
    /// `Election.Leader`
    Leader,
    /// `Health.Check`
    HealthCheck,
    /// `Health.List`
    HealthList,
}

/// A method with a stream of replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// `KV.RangeStream`
    RangeStream,
    /// `Health.Watch`
    HealthWatch,
    /// `Watch.Watch`
    Watch,
    /// `Election.Observe`
    Observe,
    /// `Lease.LeaseKeepAlive`
    LeaseKeepAlive,
    /// `ServerReflection.ServerReflectionInfo`
    Reflection,
}

/// A method this version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One request, one reply.
    Unary(Unary),
    /// A stream of replies.
    Streaming(Streaming),
}

/// The older name of the reflection protocol, the same on the wire.
pub const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Finds a method by `/service/method`.
///
/// # Errors
/// `Unimplemented`, worded as grpc-go words it for what does not exist.
pub fn find(path: &str) -> Result<Method, Status> {
    use Method::{Streaming as S, Unary as U};
    Ok(match path {
        "/etcdserverpb.KV/Range" => U(Unary::Range),
        "/etcdserverpb.KV/Put" => U(Unary::Put),
        "/etcdserverpb.KV/DeleteRange" => U(Unary::DeleteRange),
        "/etcdserverpb.KV/Txn" => U(Unary::Txn),
        "/etcdserverpb.KV/Compact" => U(Unary::Compact),
        "/etcdserverpb.KV/RangeStream" => S(Streaming::RangeStream),
        "/etcdserverpb.Lease/LeaseGrant" => U(Unary::LeaseGrant),
        "/etcdserverpb.Lease/LeaseRevoke" => U(Unary::LeaseRevoke),
        "/etcdserverpb.Lease/LeaseTimeToLive" => U(Unary::LeaseTimeToLive),
        "/etcdserverpb.Lease/LeaseLeases" => U(Unary::LeaseLeases),
        "/etcdserverpb.Lease/LeaseKeepAlive" => S(Streaming::LeaseKeepAlive),
        "/etcdserverpb.Watch/Watch" => S(Streaming::Watch),
        "/etcdserverpb.Cluster/MemberList" => U(Unary::MemberList),
        "/etcdserverpb.Maintenance/Alarm" => U(Unary::Alarm),
        "/etcdserverpb.Maintenance/Status" => U(Unary::Status),
        "/etcdserverpb.Maintenance/Hash" => U(Unary::Hash),
        "/etcdserverpb.Maintenance/HashKV" => U(Unary::HashKv),
        "/etcdserverpb.Maintenance/Defragment" => U(Unary::Defragment),
        "/v3lockpb.Lock/Lock" => U(Unary::Lock),
        "/v3lockpb.Lock/Unlock" => U(Unary::Unlock),
        "/v3electionpb.Election/Campaign" => U(Unary::Campaign),
        "/v3electionpb.Election/Proclaim" => U(Unary::Proclaim),
        "/v3electionpb.Election/Resign" => U(Unary::Resign),
        "/v3electionpb.Election/Leader" => U(Unary::Leader),
        "/v3electionpb.Election/Observe" => S(Streaming::Observe),
        "/grpc.health.v1.Health/Check" => U(Unary::HealthCheck),
        "/grpc.health.v1.Health/List" => U(Unary::HealthList),
        "/grpc.health.v1.Health/Watch" => S(Streaming::HealthWatch),
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => S(Streaming::Reflection),
        _ => return Err(unknown(path)),
    })
}

#[cold]
fn unknown(path: &str) -> Status {
    let named = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
    let Some((service, method)) = named else {
        return Status::unimplemented(format!("malformed method name: {path:?}"));
    };
    match services().get(service) {
        None => Status::unimplemented(format!("unknown service {service}")),
        Some(methods) if methods.iter().any(|known| known == method) => {
            Status::unimplemented(format!("{service}/{method} is not supported by this version of revd"))
        }
        Some(_) => Status::unimplemented(format!("unknown method {method} for service {service}")),
    }
}

/// Every service of the wire contract with its methods.
pub fn services() -> &'static BTreeMap<String, Vec<String>> {
    static SERVICES: OnceLock<BTreeMap<String, Vec<String>>> = OnceLock::new();
    SERVICES.get_or_init(|| {
        let files = descriptors();
        let services = files.file.iter().flat_map(|file| {
            file.service.iter().map(|service| {
                let methods = service.method.iter().map(|method| method.name().to_owned()).collect();
                (format!("{}.{}", file.package(), service.name()), methods)
            })
        });
        let mut services: BTreeMap<String, Vec<String>> = services.collect();
        services.insert(REFLECTION_ALPHA.to_owned(), vec!["ServerReflectionInfo".to_owned()]);
        services
    })
}

/// The wire contract's own description.
///
/// # Panics
/// Never: it is made by our build.
#[must_use]
pub fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(revd_proto::DESCRIPTORS).expect("made by the build of revd-proto")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_nowhere_are_told_apart() {
        let text = |path| find(path).unwrap_err().message().to_owned();
        assert_eq!(text("/foo.Bar/Baz"), "unknown service foo.Bar");
        assert_eq!(text("/etcdserverpb.KV/Get"), "unknown method Get for service etcdserverpb.KV");
        assert_eq!(
            text("/etcdserverpb.Auth/UserAdd"),
            "etcdserverpb.Auth/UserAdd is not supported by this version of revd"
        );
        assert_eq!(text("/nothing"), "malformed method name: \"/nothing\"");
    }

    #[test]
    fn every_method_we_have_is_in_the_contract() {
        for (service, methods) in services() {
            for method in methods {
                let path = format!("/{service}/{method}");
                let known = find(&path);
                assert!(known.is_ok() || known.unwrap_err().message().contains("not supported"), "{path}");
            }
        }
    }
}
