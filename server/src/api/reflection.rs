//! Server reflection, so that generic clients (grpcurl and the like) can list and call everything.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use prost::Message as _;
use revd_member::error::{Code, Status};
use revd_proto::grpc::reflection::server_reflection_request::MessageRequest;
use revd_proto::grpc::reflection::server_reflection_response::MessageResponse;
use revd_proto::grpc::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};
use smallvec::smallvec;

use crate::api::call::{Requests, decoded_in_stream};
use crate::api::contract::{REFLECTION_ALPHA, descriptors, services};
use crate::api::replies::Replies;

/// Encoded descriptor files by name, and which of them defines a symbol.
struct Index {
    files: BTreeMap<String, File>,
    symbols: BTreeMap<String, String>,
}

struct File {
    encoded: bytes::Bytes,
    imports: Vec<String>,
}

/// The same on every core: it describes the contract.
#[derive(Debug)]
pub(super) struct Reflection;

impl Reflection {
    /// `ServerReflectionInfo`: answers one question after the other.
    pub(super) async fn serve(mut requests: Box<dyn Requests>, replies: &Replies) -> Result<(), Status> {
        while let Some(message) = std::future::poll_fn(|context| requests.poll_next(context)).await {
            let request = decoded_in_stream(ServerReflectionRequest::decode(message?))?;
            let answer = answer(request.message_request.as_ref());
            let response = ServerReflectionResponse {
                valid_host: request.host.clone(),
                original_request: Some(request),
                message_response: Some(answer),
            };
            if !replies.send(smallvec![response.encode_to_vec().into()]).await {
                break;
            }
        }
        Ok(())
    }
}

fn answer(request: Option<&MessageRequest>) -> MessageResponse {
    let index = index();
    match request {
        Some(MessageRequest::ListServices(_)) => {
            let service = services().keys().map(|name| ServiceResponse { name: name.clone() }).collect();
            MessageResponse::ListServicesResponse(ListServiceResponse { service })
        }
        Some(MessageRequest::FileByFilename(name)) => {
            found(index.files.contains_key(name).then(|| index.with_imports(name)), name)
        }
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            found(index.symbols.get(symbol).map(|file| index.with_imports(file)), symbol)
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) if index.symbols.contains_key(name) => {
            let base_type_name = name.clone();
            let numbers = ExtensionNumberResponse { base_type_name, extension_number: vec![] };
            MessageResponse::AllExtensionNumbersResponse(numbers)
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => found(None, name),
        Some(MessageRequest::FileContainingExtension(extension)) => found(None, &extension.containing_type),
        None => error(Code::InvalidArgument, "the request asks for nothing".to_owned()),
    }
}

fn found(files: Option<Vec<bytes::Bytes>>, name: &str) -> MessageResponse {
    match files {
        Some(file_descriptor_proto) => {
            MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
        }
        None => error(Code::NotFound, format!("{name} is not known here")),
    }
}

fn error(code: Code, error_message: String) -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(Index::new)
}

impl Index {
    fn new() -> Self {
        let (mut files, mut symbols) = (BTreeMap::new(), BTreeMap::new());
        for file in descriptors().file {
            let name = file.name().to_owned();
            let package = file.package().to_owned();
            let mut define = |symbol: String| symbols.insert(symbol, name.clone());
            for message in &file.message_type {
                define(format!("{package}.{}", message.name()));
                for nested in &message.nested_type {
                    define(format!("{package}.{}.{}", message.name(), nested.name()));
                }
                for nested in &message.enum_type {
                    define(format!("{package}.{}.{}", message.name(), nested.name()));
                }
            }
            for enumeration in &file.enum_type {
                define(format!("{package}.{}", enumeration.name()));
            }
            for service in &file.service {
                define(format!("{package}.{}", service.name()));
                for method in &service.method {
                    define(format!("{package}.{}.{}", service.name(), method.name()));
                }
            }
            let imports = file.dependency.clone();
            files.insert(name, File { encoded: file.encode_to_vec().into(), imports });
        }
        let alpha = REFLECTION_ALPHA.to_owned();
        if let Some(file) = symbols.get("grpc.reflection.v1.ServerReflection").cloned() {
            symbols.insert(alpha, file);
        }
        Self { files, symbols }
    }

    /// A file and everything it needs, itself first.
    fn with_imports(&self, name: &str) -> Vec<bytes::Bytes> {
        let mut names = vec![name];
        let mut next = 0;
        while let Some(name) = names.get(next).copied() {
            next += 1;
            for import in self.files.get(name).into_iter().flat_map(|file| &file.imports) {
                if !names.contains(&import.as_str()) {
                    names.push(import);
                }
            }
        }
        names.iter().filter_map(|name| self.files.get(*name)).map(|file| file.encoded.clone()).collect()
    }
}
