//! The etcd v3 wire contract, one module per protobuf package, and the HTTP/2 it travels on.
//!
//! The .proto files in `proto/proto` are our own words for etcd's services, messages, field numbers and
//! types (etcd 3.7). Every `bytes` field is a [`bytes::Bytes`]: decoding a request from `Bytes` borrows keys
//! and values from the received buffer instead of copying them.
//!
//! Messages derive prost's `Message`; client stubs (`etcdserverpb::kv_client::KvClient` and so on) are
//! generic over any tonic channel. There are no server stubs: revd serves on its own transport.

mod generated;
pub mod http2;
pub mod raw;

pub use generated::{authpb, etcdserverpb, grpc, mvccpb, v3electionpb, v3lockpb};

/// All files above as an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
