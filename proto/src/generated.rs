//! The modules that `build.rs` generates from the .proto files.

/// Declares modules of code that a build script has written; our lints do not apply to it.
#[macro_export]
macro_rules! generated_modules {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)+) => {$(
        $(#[$doc])*
        #[allow(
            clippy::all,
            clippy::pedantic,
            clippy::allow_attributes_without_reason,
            clippy::wildcard_imports,
            unreachable_pub,
            reason = "generated code"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", $file));
        }
    )+};
}

generated_modules! {
    /// Stored key-values and events.
    mvccpb = "mvccpb.rs";
    /// Users, roles and permissions.
    authpb = "authpb.rs";
    /// KV, Watch, Lease, Cluster, Maintenance and Auth.
    etcdserverpb = "etcdserverpb.rs";
    /// The Lock service.
    v3lockpb = "v3lockpb.rs";
    /// The Election service.
    v3electionpb = "v3electionpb.rs";
    /// Protobuf tags (field number and wire type) of the fields of etcd's messages, a module for
    /// each message, for replies that are put together from stored bytes.
    tags = "tags.rs";
}

/// Standard gRPC protocols.
pub mod grpc {
    generated_modules! {
        /// Health checking.
        health = "grpc.health.v1.rs";
        /// Server reflection.
        reflection = "grpc.reflection.v1.rs";
    }
}
