//! Generates clients for every service of `revd-proto`, which has the messages.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors = prost_types::FileDescriptorSet::decode(revd_proto::DESCRIPTORS)?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .extern_path(".etcdserverpb", "::revd_proto::etcdserverpb")
        .extern_path(".v3lockpb", "::revd_proto::v3lockpb")
        .extern_path(".v3electionpb", "::revd_proto::v3electionpb")
        .extern_path(".grpc.health.v1", "::revd_proto::grpc::health")
        .extern_path(".grpc.reflection.v1", "::revd_proto::grpc::reflection")
        .extern_path(".mvccpb", "::revd_proto::mvccpb")
        .extern_path(".authpb", "::revd_proto::authpb")
        .compile_fds(descriptors)?;
    Ok(())
}
