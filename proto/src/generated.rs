//! What prost and tonic make of the .proto files.

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
    tonic::include_proto!("mvccpb");
}

/// Users, roles and permissions.
pub mod authpb {
    tonic::include_proto!("authpb");
}

/// KV, Watch, Lease, Cluster, Maintenance and Auth.
pub mod etcdserverpb {
    tonic::include_proto!("etcdserverpb");
}

/// The Lock service.
pub mod v3lockpb {
    tonic::include_proto!("v3lockpb");
}

/// The Election service.
pub mod v3electionpb {
    tonic::include_proto!("v3electionpb");
}

/// Standard gRPC protocols.
pub mod grpc {
    /// Health checking.
    pub mod health {
        tonic::include_proto!("grpc.health.v1");
    }
    /// Server reflection.
    pub mod reflection {
        tonic::include_proto!("grpc.reflection.v1");
    }
}
