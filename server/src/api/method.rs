//! Every method this version has, one row each: name, path, how long it may
//! wait, and the call of its service.
//!
//! - `at_once`: it waits for nothing.
//! - `briefly`: it waits for the log, for memory, or for its own client.
//! - `endlessly`: it waits for other clients, as long as they like; it ends when the member stops.
//!
//! A row of a streaming method also says whether its replies are those of a `watch`, for
//! which there is memory of its own, or `reply` to what is asked, and whether there is
//! `one` request message or `many`.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_member::budget::Share;
use revd_member::error::Status;
use revd_proto::etcdserverpb::RangeRequest;

use crate::api::Api;
use crate::api::call::{Message, Metadata, Requests, StreamingCall, only};
use crate::api::contract::services;
use crate::api::health::Health;
use crate::api::reflection::Reflection;
use crate::api::replies::Replies;

/// A method this version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One request, one reply.
    Unary(Unary),
    /// A stream of replies.
    Streaming(Streaming),
}

/// Carries out the call of a row, by the word before its arrow.
macro_rules! carry_out {
    (at_once, $api:ident, $call:expr) => {
        $call
    };
    (briefly, $api:ident, $call:expr) => {
        $call.await
    };
    (endlessly, $api:ident, $call:expr) => {
        $api.context.until_stopped(pin!($call)).await
    };
    (boxed endlessly, $api:ident, $call:expr) => {
        Box::pin(async { carry_out!(endlessly, $api, $call) }).await
    };
    (boxed $waits:ident, $api:ident, $call:expr) => {
        carry_out!($waits, $api, $call)
    };
}

macro_rules! is_endless {
    (endlessly) => {
        true
    };
    ($other:ident) => {
        false
    };
}

/// Takes the request message, if there is only one.
macro_rules! take_request {
    (one, $requests:ident) => {
        only(&mut *$requests).await?
    };
    (many, $requests:ident) => {
        $requests
    };
}

macro_rules! is_watch {
    (watch) => {
        true
    };
    (reply) => {
        false
    };
}

/// Makes [`Unary`] and its calls of the rows.
macro_rules! unary {
    (
        |$api:ident, $message:ident, $replies:ident|
        $($name:ident = $path:literal, $waits:ident => $call:expr,)*
    ) => {
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

            /// It may wait for other clients as long as they like.
            #[must_use]
            pub fn is_endless(self) -> bool {
                match self {
                    $(Self::$name => is_endless!($waits),)*
                }
            }
        }

        impl Api {
            /// Answers a call with one request and one reply.
            ///
            /// # Errors
            /// The error that the client gets.
            pub async fn unary(
                self: Rc<Self>,
                method: Unary,
                metadata: Metadata,
                $message: Bytes,
                $replies: Share,
            ) -> Result<Message, Status> {
                self.context.admit(&metadata, method.is_of_state(), |reads| is_for_learners(method, &$message, reads), false)?;
                let $api = self;
                // Endless calls are boxed: they are larger than all others,
                // which share the memory of this one.
                Ok(match method {
                    $(Unary::$name => carry_out!(boxed $waits, $api, $call)?,)*
                })
            }
        }
    };
}

/// Makes [`Streaming`] and its calls of the rows.
macro_rules! streaming {
    (
        |$api:ident, $requests:ident, $replies:ident|
        $($name:ident = $($path:literal)|+, $kind:ident, $number:ident, $waits:ident => $call:expr,)*
    ) => {
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

            /// Its replies are what a client watches: they come without being asked
            /// for, and have memory of their own.
            #[must_use]
            pub fn is_watch(self) -> bool {
                match self {
                    $(Self::$name => is_watch!($kind),)*
                }
            }
        }

        impl Api {
            /// Answers a call with a stream of replies; ready when the call is over. An error is
            /// what the client gets, perhaps after some replies.
            #[must_use]
            pub fn streaming(
                self: Rc<Self>,
                method: Streaming,
                metadata: Metadata,
                mut $requests: Box<dyn Requests>,
                $replies: Replies,
            ) -> StreamingCall {
                if let Err(error) = self.context.admit(&metadata, method.is_of_state(), |reads| reads && matches!(method, Streaming::Watch | Streaming::RangeStream), true) {
                    return Box::pin(std::future::ready(Err(error.into())));
                }
                let ($api, context) = (Rc::clone(&self), &self.context);
                // Each in a box of its own: thousands of watch streams should not be as
                // large as the largest of these.
                context.while_led(&metadata, match method {
                    $(Streaming::$name => Box::pin(async move {
                        let $requests = take_request!($number, $requests);
                        Ok(carry_out!($waits, $api, $call)?)
                    }),)*
                })
            }
        }
    };
}

unary! {
    |api, message, replies|
    Range = "/etcdserverpb.KV/Range", briefly => api.kv.range(message, &replies),
    Put = "/etcdserverpb.KV/Put", briefly => api.kv.put(message, &replies),
    DeleteRange = "/etcdserverpb.KV/DeleteRange", briefly => api.kv.delete_range(message, &replies),
    Txn = "/etcdserverpb.KV/Txn", briefly => api.kv.txn(message, &replies),
    Compact = "/etcdserverpb.KV/Compact", briefly => api.kv.compact(message),
    LeaseGrant = "/etcdserverpb.Lease/LeaseGrant", briefly => api.lease.grant(message),
    LeaseRevoke = "/etcdserverpb.Lease/LeaseRevoke", briefly => api.lease.revoke(message),
    LeaseTimeToLive = "/etcdserverpb.Lease/LeaseTimeToLive", briefly => api.lease.time_to_live(message),
    LeaseLeases = "/etcdserverpb.Lease/LeaseLeases", briefly => api.lease.leases(message),
    MemberList = "/etcdserverpb.Cluster/MemberList", briefly => api.cluster.member_list(message),
    MemberAdd = "/etcdserverpb.Cluster/MemberAdd", briefly => api.cluster.member_add(message),
    MemberRemove = "/etcdserverpb.Cluster/MemberRemove", briefly => api.cluster.member_remove(message),
    MemberUpdate = "/etcdserverpb.Cluster/MemberUpdate", briefly => api.cluster.member_update(message),
    MemberPromote = "/etcdserverpb.Cluster/MemberPromote", briefly => api.cluster.member_promote(message),
    Alarm = "/etcdserverpb.Maintenance/Alarm", briefly => api.maintenance.alarm(message),
    Status = "/etcdserverpb.Maintenance/Status", at_once => api.maintenance.status(message),
    Hash = "/etcdserverpb.Maintenance/Hash", briefly => api.maintenance.hash(message),
    HashKv = "/etcdserverpb.Maintenance/HashKV", briefly => api.maintenance.hash_kv(message),
    Defragment = "/etcdserverpb.Maintenance/Defragment", briefly => api.maintenance.defragment(message),
    MoveLeader = "/etcdserverpb.Maintenance/MoveLeader", briefly => api.maintenance.move_leader(message),
    Downgrade = "/etcdserverpb.Maintenance/Downgrade", briefly => api.maintenance.downgrade(message),
    Lock = "/v3lockpb.Lock/Lock", endlessly => api.lock.lock(message),
    Unlock = "/v3lockpb.Lock/Unlock", briefly => api.lock.unlock(message),
    Campaign = "/v3electionpb.Election/Campaign", endlessly => api.election.campaign(message),
    Proclaim = "/v3electionpb.Election/Proclaim", briefly => api.election.proclaim(message),
    Resign = "/v3electionpb.Election/Resign", briefly => api.election.resign(message),
    Leader = "/v3electionpb.Election/Leader", briefly => api.election.leader(message),
    HealthCheck = "/grpc.health.v1.Health/Check", at_once => Health::check(message),
    HealthList = "/grpc.health.v1.Health/List", at_once => Health::list(message),
}

streaming! {
    |api, requests, replies|
    RangeStream = "/etcdserverpb.KV/RangeStream", reply, one, briefly =>
        api.kv.range_stream(requests, &replies),
    LeaseKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive", reply, many, endlessly =>
        api.lease.keep_alive(requests, &replies),
    Watch = "/etcdserverpb.Watch/Watch", watch, many, endlessly => api.watch.serve(requests, &replies),
    Observe = "/v3electionpb.Election/Observe", watch, one, endlessly =>
        api.election.observe(requests, &replies),
    HealthWatch = "/grpc.health.v1.Health/Watch", reply, one, endlessly => Health::watch(requests, &replies),
    Reflection =
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reply, many, briefly => Reflection::serve(requests, &replies),
}

impl Unary {
    /// Its answer is of data that clients have stored, or changes it: a corrupt member has none.
    /// Calls of operators who look at the member and replace it are not.
    fn is_of_state(self) -> bool {
        let is_about_members = matches!(
            self,
            Self::MemberList
                | Self::MemberAdd
                | Self::MemberRemove
                | Self::MemberUpdate
                | Self::MemberPromote
        );
        let is_about_this_one = matches!(
            self,
            Self::Alarm
                | Self::Status
                | Self::Hash
                | Self::HashKv
                | Self::MoveLeader
                | Self::Downgrade
                | Self::HealthCheck
                | Self::HealthList
        );
        !is_about_members && !is_about_this_one
    }
}

impl Streaming {
    /// As with [`Unary::is_of_state`].
    fn is_of_state(self) -> bool {
        !matches!(self, Self::HealthWatch | Self::Reflection)
    }
}

/// Whether a learner answers this call: as one of etcd does, or, with `--learner-reads`, whatever
/// changes nothing.
fn is_for_learners(method: Unary, message: &Bytes, reads: bool) -> bool {
    match method {
        Unary::Status | Unary::HealthCheck | Unary::HealthList => true,
        Unary::LeaseTimeToLive | Unary::LeaseLeases | Unary::MemberList | Unary::Hash | Unary::HashKv => {
            reads
        }
        Unary::Range => {
            reads || RangeRequest::decode(message.clone()).is_ok_and(|request| request.serializable)
        }
        _ => false,
    }
}

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
    fn a_learner_answers_what_needs_no_other_member() {
        let get = |serializable| {
            let request = RangeRequest { key: "k".into(), serializable, ..RangeRequest::default() };
            is_for_learners(Unary::Range, &request.encode_to_vec().into(), false)
        };
        assert!(get(true) && !get(false));
        let answers = |method, reads| is_for_learners(method, &Bytes::new(), reads);
        assert!(answers(Unary::Status, false) && answers(Unary::Status, true));
        assert!(!answers(Unary::Put, false) && !answers(Unary::Put, true));
        assert!(!answers(Unary::MemberList, false) && answers(Unary::MemberList, true));
        assert!(answers(Unary::Range, true) && !answers(Unary::LeaseGrant, true));
    }

    #[test]
    fn rows_say_how_long_a_call_may_wait_and_what_its_replies_are() {
        assert!(Unary::Lock.is_endless() && Unary::Campaign.is_endless() && !Unary::Put.is_endless());
        assert!(
            Streaming::Watch.is_watch()
                && Streaming::Observe.is_watch()
                && !Streaming::RangeStream.is_watch()
        );
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
