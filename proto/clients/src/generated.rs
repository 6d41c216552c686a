//! The clients that `build.rs` generates from the descriptors of all services.

revd_proto::generated_modules! {
    etcdserverpb = "etcdserverpb.rs";
    v3lockpb = "v3lockpb.rs";
    v3electionpb = "v3electionpb.rs";
    grpc_health = "grpc.health.v1.rs";
    grpc_reflection = "grpc.reflection.v1.rs";
}
