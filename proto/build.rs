//! Generates messages and field tags from our .proto files, without protoc.

use std::fmt::Write as _;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

/// Packages of messages that the server also writes field by field.
const WRITTEN_BY_HAND: &[&str] = &["mvccpb", "etcdserverpb"];
/// Messages with secrets in them, which `src/secrets.rs` shows without these.
const SECRET: &[&str] = &[
    ".authpb.User",
    ".etcdserverpb.AuthUserAddRequest",
    ".etcdserverpb.AuthUserChangePasswordRequest",
    ".etcdserverpb.AuthenticateRequest",
    ".etcdserverpb.AuthenticateResponse",
];
/// The highest field number whose tag is one byte.
const FIELD_NUMBER_MAX: u8 = 15;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["rpc.proto", "lock.proto", "election.proto", "health.proto", "reflection.proto"]
        .map(|name| format!("proto/{name}"));
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(&files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    std::fs::write(out.join("tags.rs"), tags(&descriptors))?;
    prost_build::Config::new().bytes(["."]).skip_debug(SECRET).compile_fds(descriptors)?;
    Ok(())
}

/// A module for each message, with a constant for each field.
fn tags(descriptors: &FileDescriptorSet) -> String {
    let files = descriptors.file.iter().filter(|file| WRITTEN_BY_HAND.contains(&file.package()));
    files.flat_map(|file| &file.message_type).map(tags_of_message).collect()
}

fn tags_of_message(message: &DescriptorProto) -> String {
    let mut code = format!("/// `{0}`.\npub mod {1} {{\n", message.name(), snake_case(message.name()));
    for field in &message.field {
        let number = u8::try_from(field.number()).expect("no field of ours has a higher number");
        if number <= FIELD_NUMBER_MAX {
            let (name, tag) = (field.name(), number << 3 | wire_type(field));
            writeln!(code, "/// `{name} = {number}`.\npub const {}: u8 = {tag:#04x};", name.to_uppercase())
                .expect("a string takes everything");
        }
    }
    code + "}\n"
}

/// How a field's value is encoded (protobuf.dev, "Encoding").
fn wire_type(field: &FieldDescriptorProto) -> u8 {
    match field.r#type() {
        Type::String | Type::Bytes | Type::Message => 2,
        _ if field.label() == Label::Repeated => 2, // packed
        Type::Double | Type::Fixed64 | Type::Sfixed64 => 1,
        Type::Float | Type::Fixed32 | Type::Sfixed32 => 5,
        Type::Group => 3,
        _ => 0,
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
