//! The etcd v3 wire contract: one module per protobuf package.
//!
//! The .proto files in `proto/proto` are our own words for etcd's services, messages, field numbers and
//! types (etcd 3.7). Every `bytes` field is a [`bytes::Bytes`]: decoding a request from `Bytes` borrows keys
//! and values from the received buffer instead of copying them.
//!
//! Messages derive prost's `Message`; client stubs (`etcdserverpb::kv_client::KvClient` and so on) are
//! generic over any tonic channel. There are no server stubs: revd serves on its own transport.

#![allow(
    clippy::all,
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

pub mod raw;

/// All files above as an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
