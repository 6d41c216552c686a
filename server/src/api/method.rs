//! Every method this version has, one row each: name, path, and the call of its service. A row whose call waits for something else
//! than its client says so by `until_stopped`.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::sync::OnceLock;

use bytes::Bytes;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use revd_member::budget::Share;
use revd_member::error::Status;

use crate::api::call::{Message, Metadata, Replies, Requests, StreamingCall, only};
use crate::api::{Api, health, reflection};

/// A method this version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One request, one reply.
    Unary(Unary),
    /// A stream of replies.
    Streaming(Streaming),
}

/// Makes [`Unary`] and its calls of the rows.
macro_rules! unary {
    (|$api:ident, $message:ident, $replies:ident| $($name:ident = $path:literal => $call:expr,)*) => {
        /// A method with one request and one reply.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Unary {
            $(#[doc = $path] $name,)*
        }

        impl Unary {
            fn find(path: &str) -> Option<Self> {
                match path {
                    $($path => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl Api {
            /// Answers a call with one request and one reply.
            ///
            /// # Errors
            /// What the client gets.
            pub async fn unary(
                self: Rc<Self>,
                method: Unary,
                metadata: Metadata,
                $message: Bytes,
                $replies: Share,
            ) -> Result<Message, Status> {
                self.check_leader(metadata)?;
                let $api = self;
                Ok(match method {
                    $(Unary::$name => $call?,)*
                })
            }
        }
    };
}

/// Makes [`Streaming`] and its calls of the rows.
macro_rules! streaming {
    (|$api:ident, $requests:ident, $replies:ident| $($name:ident = $($path:literal)|+ => $call:expr,)*) => {
        /// A method with a stream of replies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Streaming {
            $($(#[doc = $path])+ $name,)*
        }

        impl Streaming {
            fn find(path: &str) -> Option<Self> {
                match path {
                    $($($path)|+ => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl Api {
            /// Answers a call with a stream of replies; ready when the call is over. What it fails with is what the client
            /// gets, perhaps after some replies.
            #[must_use]
            pub fn streaming(
                self: Rc<Self>,
                method: Streaming,
                metadata: Metadata,
                mut $requests: Box<dyn Requests>,
                $replies: Replies,
            ) -> StreamingCall {
                if let Err(error) = self.check_leader(metadata) {
                    return Box::pin(std::future::ready(Err(error.into())));
                }
                let $api = self;
                // Each in a box of its own: thousands of watch streams should not be as large as the largest of these.
                match method {
                    $(Streaming::$name => Box::pin(async move { Ok($call?) }),)*
                }
            }
        }
    };
}

unary! {
    |api, message, replies|
    Range = "/etcdserverpb.KV/Range" => api.range(message, &replies).await,
    Put = "/etcdserverpb.KV/Put" => api.put(message, &replies).await,
    DeleteRange = "/etcdserverpb.KV/DeleteRange" => api.delete_range(message, &replies).await,
    Txn = "/etcdserverpb.KV/Txn" => api.txn(message, &replies).await,
    Compact = "/etcdserverpb.KV/Compact" => api.compact(message).await,
    LeaseGrant = "/etcdserverpb.Lease/LeaseGrant" => api.lease_grant(message).await,
    LeaseRevoke = "/etcdserverpb.Lease/LeaseRevoke" => api.lease_revoke(message).await,
    LeaseTimeToLive = "/etcdserverpb.Lease/LeaseTimeToLive" => api.lease_time_to_live(message).await,
    LeaseLeases = "/etcdserverpb.Lease/LeaseLeases" => api.lease_leases(message).await,
    MemberList = "/etcdserverpb.Cluster/MemberList" => api.member_list(message),
    Alarm = "/etcdserverpb.Maintenance/Alarm" => api.alarm(message).await,
    Status = "/etcdserverpb.Maintenance/Status" => api.member_status(message),
    Hash = "/etcdserverpb.Maintenance/Hash" => api.hash(message).await,
    HashKv = "/etcdserverpb.Maintenance/HashKV" => api.hash_kv(message).await,
    Defragment = "/etcdserverpb.Maintenance/Defragment" => api.defragment(message).await,
    Lock = "/v3lockpb.Lock/Lock" => Box::pin(api.until_stopped(pin!(api.lock(message)))).await,
    Unlock = "/v3lockpb.Lock/Unlock" => api.unlock(message).await,
    Campaign = "/v3electionpb.Election/Campaign" =>
        Box::pin(api.until_stopped(pin!(api.campaign(message)))).await,
    Proclaim = "/v3electionpb.Election/Proclaim" => api.proclaim(message).await,
    Resign = "/v3electionpb.Election/Resign" => api.resign(message).await,
    Leader = "/v3electionpb.Election/Leader" => api.leader(message).await,
    HealthCheck = "/grpc.health.v1.Health/Check" => health::check(message),
    HealthList = "/grpc.health.v1.Health/List" => health::list(message),
}

streaming! {
    |api, requests, replies|
    RangeStream = "/etcdserverpb.KV/RangeStream" => {
        let message = only(&mut *requests).await?;
        api.range_stream(message, &replies).await
    },
    LeaseKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive" =>
        api.until_stopped(pin!(api.lease_keep_alive(requests, &replies))).await,
    Watch = "/etcdserverpb.Watch/Watch" => api.until_stopped(pin!(api.watch(requests, &replies))).await,
    Observe = "/v3electionpb.Election/Observe" => {
        let message = only(&mut *requests).await?;
        api.until_stopped(pin!(api.observe(message, &replies))).await
    },
    HealthWatch = "/grpc.health.v1.Health/Watch" => {
        let message = only(&mut *requests).await?;
        api.until_stopped(pin!(health::watch(message, &replies))).await
    },
    Reflection =
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" =>
        reflection::serve(requests, &replies).await,
}

/// The older name of the reflection protocol, the same on the wire.
pub const REFLECTION_ALPHA: &str = "grpc.reflection.v1alpha.ServerReflection";

/// Finds a method by `/service/method`.
///
/// # Errors
/// `Unimplemented`, worded as grpc-go words it for what does not exist.
pub fn find(path: &str) -> Result<Method, Status> {
    let unary = Unary::find(path).map(Method::Unary);
    unary.or_else(|| Streaming::find(path).map(Method::Streaming)).ok_or_else(|| unknown(path))
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
