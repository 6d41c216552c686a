//! What prost makes of the .proto files.

#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_imports,
    unreachable_pub,
    reason = "generated code"
)]

/// Stored key-values and events.
pub mod mvccpb {
    include!(concat!(env!("OUT_DIR"), "/mvccpb.rs"));
}

/// Users, roles and permissions.
pub mod authpb {
    include!(concat!(env!("OUT_DIR"), "/authpb.rs"));
}

/// KV, Watch, Lease, Cluster, Maintenance and Auth.
pub mod etcdserverpb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// The Lock service.
pub mod v3lockpb {
    include!(concat!(env!("OUT_DIR"), "/v3lockpb.rs"));
}

/// The Election service.
pub mod v3electionpb {
    include!(concat!(env!("OUT_DIR"), "/v3electionpb.rs"));
}

/// Standard gRPC protocols.
pub mod grpc {
    /// Health checking.
    pub mod health {
        include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
    }
    /// Server reflection.
    pub mod reflection {
        include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
    }
}
