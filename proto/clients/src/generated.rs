//! What tonic makes of the services.

#![allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    clippy::wildcard_imports,
    unreachable_pub,
    reason = "generated code"
)]

pub mod etcdserverpb {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

pub mod v3lockpb {
    include!(concat!(env!("OUT_DIR"), "/v3lockpb.rs"));
}

pub mod v3electionpb {
    include!(concat!(env!("OUT_DIR"), "/v3electionpb.rs"));
}

pub mod grpc_health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

pub mod grpc_reflection {
    include!(concat!(env!("OUT_DIR"), "/grpc.reflection.v1.rs"));
}
