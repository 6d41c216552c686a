//! gRPC health and reflection, and the two plain HTTP paths, as generic tools use them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use prost::Message as _;
use revd_clients::HealthClient;
use revd_clients::ServerReflectionClient;
use revd_proto::etcdserverpb::{HashRequest, PutRequest};
use revd_proto::grpc::health::health_check_response::ServingStatus;
use revd_proto::grpc::health::{HealthCheckRequest, HealthListRequest};
use revd_proto::grpc::reflection::server_reflection_request::MessageRequest;
use revd_proto::grpc::reflection::server_reflection_response::MessageResponse;
use revd_proto::grpc::reflection::{ServerReflectionRequest, ServerReflectionResponse};
use tonic::Code;

use crate::harness::{Client, Server, with_restartable_server, with_server};

#[test]
fn health_is_serving() {
    with_server(&[], async |_, client| {
        let mut health = HealthClient::new(client.channel.clone());
        let whole = HealthCheckRequest { service: String::new() };
        let reply = health.check(whole.clone()).await.unwrap().into_inner();
        assert_eq!(reply.status, ServingStatus::Serving as i32);
        let unknown = HealthCheckRequest { service: "nothing".to_owned() };
        let refused = health.check(unknown).await.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::NotFound, "unknown service"));
        let list = health.list(HealthListRequest {}).await.unwrap().into_inner();
        let statuses: Vec<_> = list.statuses.iter().map(|(name, of)| (name.as_str(), of.status)).collect();
        assert_eq!(statuses, [("", ServingStatus::Serving as i32)]);
        let mut watching = health.watch(whole).await.unwrap().into_inner();
        assert_eq!(watching.message().await.unwrap().unwrap().status, ServingStatus::Serving as i32);
    });
}

fn answer(response: Option<ServerReflectionResponse>) -> MessageResponse {
    response.expect("an answer").message_response.expect("an answer")
}

/// The question after the first waits for the first answer, as grpcurl does it: a real dialogue.
#[test]
fn reflection_lists_and_describes_everything() {
    with_server(&[], async |_, client| {
        let (questions, receiver) = tokio::sync::mpsc::channel(1);
        let ask = async |request| {
            let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
            questions.send(request).await.unwrap();
        };
        ask(MessageRequest::ListServices(String::new())).await;
        let stream = tokio_stream::wrappers::ReceiverStream::new(receiver);
        let mut reflection = ServerReflectionClient::new(client.channel.clone());
        let mut answers = reflection.server_reflection_info(stream).await.unwrap().into_inner();
        let MessageResponse::ListServicesResponse(list) = answer(answers.message().await.unwrap()) else {
            panic!("no list")
        };
        let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
        for name in ["etcdserverpb.KV", "etcdserverpb.Watch", "v3lockpb.Lock", "grpc.health.v1.Health"] {
            assert!(names.contains(&name), "{names:?}");
        }
        ask(MessageRequest::FileContainingSymbol("etcdserverpb.KV.Range".to_owned())).await;
        let MessageResponse::FileDescriptorResponse(files) = answer(answers.message().await.unwrap()) else {
            panic!("no file")
        };
        let decoded = files.file_descriptor_proto.iter();
        let files: Vec<_> =
            decoded.map(|file| prost_types::FileDescriptorProto::decode(file.clone()).unwrap()).collect();
        assert!(files[0].service.iter().any(|service| service.name() == "KV"));
        let known: Vec<&str> = files.iter().map(prost_types::FileDescriptorProto::name).collect();
        let imports = files.iter().flat_map(|file| &file.dependency);
        assert!(
            imports.into_iter().all(|import| known.contains(&import.as_str())),
            "a file is missing: {known:?}"
        );
        ask(MessageRequest::FileContainingSymbol("no.Such.Thing".to_owned())).await;
        let MessageResponse::ErrorResponse(error) = answer(answers.message().await.unwrap()) else {
            panic!("no error")
        };
        assert_eq!(error.error_code, Code::NotFound as i32);
    });
}

fn get(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// The same after a restart; different once something changes.
#[test]
fn hash_tells_states_apart() {
    with_restartable_server(&[], async |server, _| {
        let hash = async |client: &Client| {
            client.maintenance.clone().hash(HashRequest {}).await.unwrap().into_inner().hash
        };
        let client = server.client().await;
        let empty = hash(&client).await;
        client.kv.clone().put(PutRequest { key: "k".into(), ..PutRequest::default() }).await.unwrap();
        let put = hash(&client).await;
        assert_ne!(empty, put);
        server.kill();
        server.start_again();
        assert_eq!(hash(&server.client().await).await, put);
    });
}

#[test]
fn plain_http_has_version_and_health() {
    with_server(&[], async |server, _| {
        let version = get(server, "GET /version");
        assert!(
            version.ends_with(r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#),
            "{version}"
        );
        assert!(get(server, "GET /health").ends_with(r#"{"health":"true","reason":""}"#));
        for query in ["exclude=NOSPACE&serializable=true", "", "x"] {
            let answer = get(server, &format!("GET /health?{query}"));
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        let refused = get(server, "POST /health");
        assert!(
            refused.starts_with("HTTP/1.1 405") && refused.to_lowercase().contains("allow: get"),
            "{refused}"
        );
        assert!(get(server, "GET /nothing").starts_with("HTTP/1.1 404"));
    });
}

/// An HTTP/1.1 connection serves one request after the other, and does not
/// keep the server from stopping.
#[test]
fn plain_http_connections_stay_open() {
    with_restartable_server(&[], async |server, _| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..3 {
            write!(stream, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut reply = String::new();
            while !reply.ends_with(r#"{"health":"true","reason":""}"#) {
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0, "closed after {reply}");
                reply.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
            }
        }
        server.stop();
        assert_eq!(stream.read(&mut buffer).unwrap(), 0, "the connection is left open");
    });
}
