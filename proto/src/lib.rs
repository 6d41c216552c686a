//! The etcd v3 wire contract: messages, one module per protobuf package.
//!
//! The .proto files in `proto/proto` are our own words for etcd's services, messages, field numbers and
//! types (etcd 3.7). Every `bytes` field is a [`bytes::Bytes`]: decoding a request from `Bytes` borrows keys
//! and values from the received buffer instead of copying them.
//!
//! Messages derive prost's `Message`. Typed clients are a crate of their own (`revd-clients`), HTTP/2 another (`revd-http2`).

mod generated;

pub use generated::{authpb, etcdserverpb, grpc, mvccpb, v3electionpb, v3lockpb};

/// All files above as an encoded `google.protobuf.FileDescriptorSet`, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
