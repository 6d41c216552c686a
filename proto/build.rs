//! Generates messages from our .proto files, without protoc.

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["rpc.proto", "lock.proto", "election.proto", "health.proto", "reflection.proto"]
        .map(|name| format!("proto/{name}"));
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(&files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
