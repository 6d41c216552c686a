//! Every method this version has, one row each: name, the message of its request, path, how long it
//! may wait, and the call of its service.
//!
//! - `at_once`: it waits for nothing.
//! - `briefly`: it waits for the log, for memory, or for its own client.
//! - `apart`: the same, in memory of its own: it needs more than other calls.
//! - `endlessly`: it waits for other clients, as long as they like; it ends when the member stops.
//!
//! Then, what a caller needs while rights are needed (decision 0025):
//!
//! - `open`: nothing, nor is it asked who it is.
//! - `login`: to be somebody; `root`: to have that role.
//! - `judged`: what it asks for decides, and its service has that judged.
//!
//! A row of a streaming method also says whether its replies are those of a `watch`, for
//! which there is memory of its own, or `reply` to what is asked, and whether there is
//! `one` request message or `many`.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use prost::Message as _;
use revd_member::apply::command::Kind;
use revd_member::auth::Caller;
use revd_member::budget::Share;
use revd_member::error::{Error, Status};
use revd_proto::etcdserverpb::{self as pb, RangeRequest};
use revd_proto::grpc::health;
use revd_proto::{v3electionpb, v3lockpb};

use crate::api::Api;
use crate::api::auth::identity::Need;
use crate::api::auth::with_password::Untaken;
use crate::api::call::{Message, Metadata, Requests, StreamingCall, only};
use crate::api::contract;
use crate::api::health::Health;
use crate::api::method_words::{
    first, is_endless, is_watch, kind_of_stream, need, need_of_stream, take_request,
};
use crate::api::named_method::NamedMethod;
use crate::api::reflection::Reflection;
use crate::api::refused;
use crate::api::replies::Replies;
use crate::observe::calls;

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
    (boxed apart, $api:ident, $call:expr) => {
        Box::pin($call).await
    };
    (boxed $waits:ident, $api:ident, $call:expr) => {
        carry_out!($waits, $api, $call)
    };
}

/// Makes [`Unary`] and its calls of the rows.
macro_rules! unary {
    (
        |$api:ident, $caller:ident, $credentials:ident, $source:ident, $message:ident, $replies:ident|
        $($name:ident: $request:ty = $path:literal, $waits:ident, $need:ident => $call:expr,)*
    ) => {
        /// A method with one request and one reply.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Unary {
            $(#[doc = $path] $name,)*
        }

        impl Unary {
            /// Every one, in the order of their declaration.
            const NAMES: &[NamedMethod] = &[$(NamedMethod::new($path, "unary"),)*];

            fn find(path: &str) -> Option<Self> {
                match path {
                    $($path => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its need while rights are needed.
            #[must_use]
            pub fn need(self) -> Need {
                match self {
                    $(Self::$name => need!($need),)*
                }
            }

            /// The bytes that its proposal would have, if it makes one; the error of bytes that are
            /// not its request message, or of a new password that is too long.
            async fn proposal_bytes(self, message: &Bytes, txn_parts_max: usize) -> Result<usize, Error> {
                let checked = match self {
                    _ if self == Self::Txn => refused::check_txn(message, txn_parts_max),
                    _ if self == Self::Authenticate => {
                        refused::check_with_password::<pb::AuthenticateRequest>(message).await
                    }
                    _ if self == Self::UserAdd => {
                        return refused::check_proposal::<pb::AuthUserAddRequest>(message).await;
                    }
                    _ if self == Self::UserChangePassword => {
                        return refused::check_proposal::<pb::AuthUserChangePasswordRequest>(message).await;
                    }
                    $(Self::$name => refused::check::<$request>(message).await,)*
                };
                checked.map(|()| message.len())
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
            async fn answer(
                self: Rc<Self>,
                method: Unary,
                metadata: &Metadata,
                $message: Bytes,
                $replies: Share,
            ) -> Result<Message, Status> {
                let untaken = Untaken::new($message, method.has_password());
                let is_taken = self.context.take_if_known(method.need(), &metadata.caller, untaken.len())?;
                let $caller = &match self.let_in(method, metadata, &untaken).await {
                    Ok(caller) => caller,
                    Err(refused) => {
                        if !is_taken {
                            let caller = self.context.caller_after_wait(&metadata.caller);
                            self.context.auth.limits.take(&caller, untaken.len())?;
                        }
                        return Err(Box::pin(self.why_refused(method, &untaken, refused)).await.into());
                    }
                };
                if !is_taken {
                    self.context.auth.limits.take($caller, untaken.len())?;
                }
                let $message = untaken.take();
                let ($api, $source, $credentials) = (self, metadata.source, &metadata.caller);
                // Endless calls and those apart are boxed: they are larger than
                // all others, which share the memory of this one.
                let reply: Message = match method {
                    $(Unary::$name => carry_out!(boxed $waits, $api, $call)?,)*
                };
                $api.context.auth.limits.replied($caller, || reply.iter().map(Bytes::len).sum());
                Ok(reply)
            }
        }
    };
}

/// Makes [`Streaming`] and its calls of the rows.
macro_rules! streaming {
    (
        |$api:ident, $credentials:ident, $source:ident, $requests:ident, $replies:ident|
        $($name:ident = $($path:literal)|+, $kind:ident, $number:ident, $waits:ident, $need:ident => $call:expr,)*
    ) => {
        /// A method with a stream of replies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Streaming {
            $($(#[doc = $path])+ $name,)*
        }

        impl Streaming {
            /// Every one, in the order of their declaration.
            const NAMES: &[NamedMethod] = &[$(NamedMethod::new(first!($($path),+), kind_of_stream!($number)),)*];

            fn find(path: &str) -> Option<Self> {
                match path {
                    $($($path)|+ => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its need while rights are needed.
            #[must_use]
            pub fn need(self) -> Need {
                match self {
                    $(Self::$name => need!($need),)*
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
            fn stream(
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
                let ($source, $credentials) = (metadata.source, metadata.caller.clone());
                context.while_led(&metadata, match method {
                    $(Streaming::$name => Box::pin(async move {
                        $api.context.caller(need_of_stream!($need), false, &$credentials).await?;
                        let $requests = take_request!($number, $requests);
                        Ok(carry_out!($waits, $api, $call)?)
                    }),)*
                })
            }
        }
    };
}

unary! {
    |api, caller, credentials, source, message, replies|
    Range: pb::RangeRequest = "/etcdserverpb.KV/Range", briefly, judged =>
        api.kv.range(credentials, message, &replies),
    Put: pb::PutRequest = "/etcdserverpb.KV/Put", briefly, judged => api.kv.put(caller, message, &replies),
    DeleteRange: pb::DeleteRangeRequest = "/etcdserverpb.KV/DeleteRange", apart, judged =>
        api.kv.delete_range(caller, message, &replies),
    Txn: pb::TxnRequest = "/etcdserverpb.KV/Txn", briefly, judged => api.kv.txn(caller, Some(credentials), message, &replies),
    Compact: pb::CompactionRequest = "/etcdserverpb.KV/Compact", briefly, root =>
        api.kv.compact(caller, message),
    LeaseGrant: pb::LeaseGrantRequest = "/etcdserverpb.Lease/LeaseGrant", briefly, login =>
        api.lease.grant(caller, message),
    LeaseRevoke: pb::LeaseRevokeRequest = "/etcdserverpb.Lease/LeaseRevoke", briefly, login =>
        api.lease.revoke(caller, message),
    LeaseTimeToLive: pb::LeaseTimeToLiveRequest = "/etcdserverpb.Lease/LeaseTimeToLive", briefly, login =>
        api.lease.time_to_live(caller, credentials, message, &replies),
    LeaseLeases: pb::LeaseLeasesRequest = "/etcdserverpb.Lease/LeaseLeases", briefly, login =>
        api.lease.leases(caller, message, &replies),
    MemberList: pb::MemberListRequest = "/etcdserverpb.Cluster/MemberList", briefly, login =>
        api.cluster.member_list(credentials, message),
    MemberAdd: pb::MemberAddRequest = "/etcdserverpb.Cluster/MemberAdd", apart, judged =>
        api.cluster.member_add(caller, credentials, message),
    MemberRemove: pb::MemberRemoveRequest = "/etcdserverpb.Cluster/MemberRemove", apart, root =>
        api.cluster.member_remove(credentials, message),
    MemberUpdate: pb::MemberUpdateRequest = "/etcdserverpb.Cluster/MemberUpdate", apart, root =>
        api.cluster.member_update(credentials, message),
    MemberPromote: pb::MemberPromoteRequest = "/etcdserverpb.Cluster/MemberPromote", apart, root =>
        api.cluster.member_promote(credentials, message),
    Alarm: pb::AlarmRequest = "/etcdserverpb.Maintenance/Alarm", apart, judged =>
        api.maintenance.alarm(caller, credentials, message),
    Status: pb::StatusRequest = "/etcdserverpb.Maintenance/Status", at_once, login =>
        api.maintenance.status(message),
    Hash: pb::HashRequest = "/etcdserverpb.Maintenance/Hash", briefly, root => api.maintenance.hash(message),
    HashKv: pb::HashKvRequest = "/etcdserverpb.Maintenance/HashKV", briefly, root =>
        api.maintenance.hash_kv(message),
    Defragment: pb::DefragmentRequest = "/etcdserverpb.Maintenance/Defragment", briefly, root =>
        api.maintenance.defragment(caller, credentials, message),
    MoveLeader: pb::MoveLeaderRequest = "/etcdserverpb.Maintenance/MoveLeader", briefly, root =>
        api.maintenance.move_leader(caller, credentials, message),
    Downgrade: pb::DowngradeRequest = "/etcdserverpb.Maintenance/Downgrade", apart, root =>
        api.maintenance.downgrade(credentials, message),
    AuthEnable: pb::AuthEnableRequest = "/etcdserverpb.Auth/AuthEnable", briefly, root =>
        api.auth.switch(caller, source, Kind::AuthEnable, message),
    AuthDisable: pb::AuthDisableRequest = "/etcdserverpb.Auth/AuthDisable", briefly, root =>
        api.auth.switch(caller, source, Kind::AuthDisable, message),
    AuthStatus: pb::AuthStatusRequest = "/etcdserverpb.Auth/AuthStatus", briefly, judged =>
        api.auth.status(credentials, message),
    Authenticate: pb::AuthenticateRequest = "/etcdserverpb.Auth/Authenticate", apart, open =>
        api.auth.authenticate(source, message),
    UserAdd: pb::AuthUserAddRequest = "/etcdserverpb.Auth/UserAdd", apart, root =>
        api.auth.user_add(source, credentials, message),
    UserGet: pb::AuthUserGetRequest = "/etcdserverpb.Auth/UserGet", briefly, judged =>
        api.auth.user_get(credentials, message),
    UserList: pb::AuthUserListRequest = "/etcdserverpb.Auth/UserList", briefly, root =>
        api.auth.user_list(credentials, message),
    UserDelete: pb::AuthUserDeleteRequest = "/etcdserverpb.Auth/UserDelete", briefly, root =>
        api.auth.change::<pb::AuthUserDeleteRequest>(caller, source, Kind::UserDelete, message),
    UserChangePassword: pb::AuthUserChangePasswordRequest = "/etcdserverpb.Auth/UserChangePassword", apart, root =>
        api.auth.user_change_password(source, credentials, message),
    UserGrantRole: pb::AuthUserGrantRoleRequest = "/etcdserverpb.Auth/UserGrantRole", briefly, root =>
        api.auth.change::<pb::AuthUserGrantRoleRequest>(caller, source, Kind::UserGrantRole, message),
    UserRevokeRole: pb::AuthUserRevokeRoleRequest = "/etcdserverpb.Auth/UserRevokeRole", briefly, root =>
        api.auth.change::<pb::AuthUserRevokeRoleRequest>(caller, source, Kind::UserRevokeRole, message),
    RoleAdd: pb::AuthRoleAddRequest = "/etcdserverpb.Auth/RoleAdd", briefly, root =>
        api.auth.change::<pb::AuthRoleAddRequest>(caller, source, Kind::RoleAdd, message),
    RoleGet: pb::AuthRoleGetRequest = "/etcdserverpb.Auth/RoleGet", briefly, judged =>
        api.auth.role_get(credentials, message),
    RoleList: pb::AuthRoleListRequest = "/etcdserverpb.Auth/RoleList", briefly, root =>
        api.auth.role_list(credentials, message),
    RoleDelete: pb::AuthRoleDeleteRequest = "/etcdserverpb.Auth/RoleDelete", briefly, root =>
        api.auth.change::<pb::AuthRoleDeleteRequest>(caller, source, Kind::RoleDelete, message),
    RoleGrantPermission: pb::AuthRoleGrantPermissionRequest = "/etcdserverpb.Auth/RoleGrantPermission", briefly, root =>
        api.auth.change::<pb::AuthRoleGrantPermissionRequest>(caller, source, Kind::RoleGrantPermission, message),
    RoleRevokePermission: pb::AuthRoleRevokePermissionRequest = "/etcdserverpb.Auth/RoleRevokePermission", briefly, root =>
        api.auth.change::<pb::AuthRoleRevokePermissionRequest>(caller, source, Kind::RoleRevokePermission, message),
    Lock: v3lockpb::LockRequest = "/v3lockpb.Lock/Lock", endlessly, judged => api.lock.lock(caller, message),
    Unlock: v3lockpb::UnlockRequest = "/v3lockpb.Lock/Unlock", apart, judged =>
        api.lock.unlock(caller, message),
    Campaign: v3electionpb::CampaignRequest = "/v3electionpb.Election/Campaign", endlessly, judged =>
        api.election.campaign(caller, message),
    Proclaim: v3electionpb::ProclaimRequest = "/v3electionpb.Election/Proclaim", apart, judged =>
        api.election.proclaim(caller, message),
    Resign: v3electionpb::ResignRequest = "/v3electionpb.Election/Resign", apart, judged =>
        api.election.resign(caller, message),
    Leader: v3electionpb::LeaderRequest = "/v3electionpb.Election/Leader", briefly, judged =>
        api.election.leader(credentials, message),
    HealthCheck: health::HealthCheckRequest = "/grpc.health.v1.Health/Check", at_once, open =>
        Health::check(message),
    HealthList: health::HealthListRequest = "/grpc.health.v1.Health/List", at_once, open =>
        Health::list(message),
}

streaming! {
    |api, credentials, source, requests, replies|
    RangeStream = "/etcdserverpb.KV/RangeStream", reply, one, briefly, judged =>
        api.kv.range_stream(&credentials, requests, &replies),
    LeaseKeepAlive = "/etcdserverpb.Lease/LeaseKeepAlive", reply, many, endlessly, judged =>
        api.lease.keep_alive(&credentials, requests, &replies),
    Watch = "/etcdserverpb.Watch/Watch", watch, many, endlessly, judged =>
        api.watch.serve(&credentials, source, requests, &replies),
    Observe = "/v3electionpb.Election/Observe", watch, one, endlessly, judged =>
        api.election.observe(&credentials, requests, &replies),
    HealthWatch = "/grpc.health.v1.Health/Watch", reply, one, endlessly, open => Health::watch(requests, &replies),
    Reflection =
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        reply, many, briefly, open => Reflection::serve(requests, &replies),
}

/// How many methods this version has.
const METHODS_COUNT: usize = Unary::NAMES.len() + Streaming::NAMES.len();

/// Every method, by the number under which its calls are counted.
pub(super) const METHODS: [&NamedMethod; METHODS_COUNT] = {
    let mut all = [&Unary::NAMES[0]; METHODS_COUNT];
    let mut number = 0;
    while number < METHODS_COUNT {
        all[number] = if number < Unary::NAMES.len() {
            &Unary::NAMES[number]
        } else {
            &Streaming::NAMES[number - Unary::NAMES.len()]
        };
        number += 1;
    }
    all
};

const _: () = assert!(METHODS_COUNT <= calls::METHODS_MAX);

impl Api {
    /// Answers a call with one request and one reply.
    ///
    /// # Errors
    /// The error that the client gets.
    pub async fn unary(
        self: Rc<Self>,
        method: Unary,
        metadata: Metadata,
        message: Bytes,
        replies: Share,
    ) -> Result<Message, Status> {
        let context = Rc::clone(&self.context);
        let call = context.count_call(method as usize);
        let result = self.answer(method, &metadata, message, replies).await;
        context.end_call(call, METHODS[method as usize], &metadata, result.as_ref().err());
        result
    }

    /// Answers a call with a stream of replies; ready when the call is over. An error is what the
    /// client gets, perhaps after some replies.
    #[must_use]
    pub fn streaming(
        self: Rc<Self>,
        method: Streaming,
        metadata: Metadata,
        requests: Box<dyn Requests>,
        replies: Replies,
    ) -> StreamingCall {
        let context = Rc::clone(&self.context);
        let streaming = self.stream(method, metadata.clone(), requests, replies);
        Box::pin(async move {
            let number = Unary::NAMES.len() + method as usize;
            let call = context.count_call(number);
            let result = streaming.await;
            context.end_call(call, METHODS[number], &metadata, result.as_ref().err());
            result
        })
    }
}

impl Api {
    /// The caller of a method, if this member serves it now, and the caller has what it needs.
    async fn let_in(&self, method: Unary, metadata: &Metadata, message: &Bytes) -> Result<Caller, Error> {
        let is_for_learners = |reads| is_for_learners(method, message, reads);
        self.context.admit(metadata, method.is_of_state(), is_for_learners, false)?;
        self.context.caller(method.need(), method.is_judged_once(), &metadata.caller).await
    }

    /// As with grpc-go, a message is decoded before anything is asked.
    #[cold]
    async fn why_refused(&self, method: Unary, message: &Bytes, refused: Error) -> Error {
        let limits = self.context.limits;
        let bytes = method.proposal_bytes(message, limits.txn_parts_max()).await;
        refused::why(refused, bytes, method.changes_users(), limits)
    }
}

impl Unary {
    /// Nothing judges it again when it is applied: its service has it judged by what is newest.
    fn is_judged_once(self) -> bool {
        matches!(
            self,
            Self::MemberAdd
                | Self::MemberRemove
                | Self::MemberUpdate
                | Self::MemberPromote
                | Self::Defragment
                | Self::MoveLeader
                | Self::Downgrade
        )
    }

    /// Its message may have a password in it.
    fn has_password(self) -> bool {
        matches!(self, Self::Authenticate | Self::UserAdd | Self::UserChangePassword)
    }

    /// The command that it proposes changes users or roles.
    fn changes_users(self) -> bool {
        matches!(
            self,
            Self::UserAdd
                | Self::UserDelete
                | Self::UserChangePassword
                | Self::UserGrantRole
                | Self::UserRevokeRole
                | Self::RoleAdd
                | Self::RoleDelete
                | Self::RoleGrantPermission
                | Self::RoleRevokePermission
        )
    }

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
    unary
        .or_else(|| Streaming::find(path).map(Method::Streaming))
        .ok_or_else(|| contract::unimplemented(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::contract::services;

    #[test]
    fn paths_that_lead_nowhere_are_told_apart() {
        let text = |path| find(path).unwrap_err().message().to_owned();
        assert_eq!(text("/foo.Bar/Baz"), "unknown service foo.Bar");
        assert_eq!(text("/etcdserverpb.KV/Get"), "unknown method Get for service etcdserverpb.KV");
        assert_eq!(
            text("/etcdserverpb.Maintenance/Snapshot"),
            "etcdserverpb.Maintenance/Snapshot is not supported by this version of revd"
        );
        assert_eq!(text("/nothing"), "malformed method name: \"/nothing\"");
    }

    /// Each call under way is as large, and the allocator has a fast way for 1,024 bytes at most.
    #[test]
    fn a_call_takes_little_memory() {
        fn bytes_of<F>(_: impl Fn(Rc<Api>, Unary, Metadata, Bytes, Share) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = bytes_of(Api::unary);
        assert!(bytes <= 1_024, "a call takes {bytes} bytes");
    }

    #[test]
    fn methods_are_counted_under_their_names() {
        assert_eq!((METHODS[1].service, METHODS[1].name), ("etcdserverpb.KV", "Put"));
        let watch = METHODS[Unary::NAMES.len() + Streaming::Watch as usize];
        assert_eq!((watch.service, watch.name, watch.kind), ("etcdserverpb.Watch", "Watch", "bidi_stream"));
        let names = METHODS.iter().map(|method| format!("/{}/{}", method.service, method.name));
        assert!(names.clone().all(|path| find(&path).is_ok()), "{:?}", names.collect::<Vec<_>>());
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
