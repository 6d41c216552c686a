//! gRPC clients made from the wire contract, and one that sends and receives bytes as they are.

use bytes::Bytes;
use prost::Message as _;
use revd_clients::ClusterClient;
use revd_clients::KvClient;
use revd_clients::LeaseClient;
use revd_clients::MaintenanceClient;
use revd_clients::WatchClient;
use revd_clients::raw::RawCodec;
use revd_proto::etcdserverpb::watch_request::RequestUnion;
use revd_proto::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, HashKvRequest, HashKvResponse, WatchRequest, WatchResponse,
};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// All services over one connection.
#[derive(Clone)]
pub struct Client {
    /// For other connections; none if it was made otherwise.
    endpoint: Option<Endpoint>,
    pub channel: Channel,
    pub kv: KvClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
    pub cluster: ClusterClient<Channel>,
    pub watch: WatchClient<Channel>,
    pub lease: LeaseClient<Channel>,
}

/// One watch call: requests go in, responses come out in the background.
pub struct WatchStream {
    requests: tokio::sync::mpsc::UnboundedSender<WatchRequest>,
    responses: tokio::sync::mpsc::Receiver<Result<WatchResponse, Status>>,
    paused: std::sync::Arc<std::sync::atomic::AtomicBool>,
    reading: tokio::task::JoinHandle<()>,
}

/// The call is given up, as when a client goes away.
impl Drop for WatchStream {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl WatchStream {
    /// Sends a request; into the void if the call is over.
    pub fn ask(&self, request: RequestUnion) {
        let _ = self.requests.send(WatchRequest { request_union: Some(request) });
    }

    /// Stops reading from the connection, or goes on.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether the call has ended.
    pub fn is_over(&self) -> bool {
        self.reading.is_finished()
    }

    /// The next response; none if nothing comes for so long.
    pub async fn next_within(&mut self, wait: std::time::Duration) -> Option<Result<WatchResponse, Status>> {
        tokio::time::timeout(wait, self.responses.recv()).await.ok().flatten()
    }
}

/// Connects; there must be a server.
pub async fn connect(endpoint: &str) -> Client {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).unwrap();
    Client { endpoint: Some(endpoint.clone()), ..Client::over(endpoint.connect().await.unwrap()) }
}

/// Connects when there is something to send, and again when the connection is lost; a call that is
/// not answered in this time fails.
pub fn connect_lazily(endpoint: &str, patience: std::time::Duration) -> Client {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).unwrap();
    let endpoint = endpoint.connect_timeout(patience).timeout(patience);
    Client { endpoint: Some(endpoint.clone()), ..Client::over(endpoint.connect_lazy()) }
}

/// A request in the name of a user, or of nobody.
pub fn request_as<M>(message: M, token: Option<&str>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

/// Calls any method with the token of a user.
pub async fn call(
    client: &Client,
    path: &'static str,
    message: Bytes,
    token: Option<&str>,
) -> Result<Bytes, Status> {
    let mut request = request_as(message, token);
    request.set_timeout(std::time::Duration::from_secs(20));
    client.raw(path, request).await.map(Response::into_inner)
}

/// A token of a user.
pub async fn login(client: &Client, name: &str, password: &str) -> String {
    let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
    let request = request.encode_to_vec().into();
    let reply = call(client, "/etcdserverpb.Auth/Authenticate", request, None).await.unwrap();
    AuthenticateResponse::decode(reply).unwrap().token
}

impl Client {
    /// Over a connection that is made otherwise.
    pub fn over(channel: Channel) -> Self {
        Self {
            endpoint: None,
            kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            maintenance: MaintenanceClient::new(channel.clone()),
            cluster: ClusterClient::new(channel.clone()),
            watch: WatchClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            lease: LeaseClient::new(channel.clone()),
            channel,
        }
    }

    /// Another connection, from this address of the machine.
    pub fn at_address(&self, own: std::net::IpAddr) -> Self {
        let endpoint = self.endpoint.clone().expect("a client that was made of an endpoint");
        Self::over(endpoint.local_address(Some(own)).connect_lazy())
    }

    /// The hash of all keys at the newest revision that the member knows. A compaction of revision
    /// 0 hides it from those who ask for that of 0, for ever: they get the compaction's.
    pub async fn hash_of_keys(&self, token: Option<&str>) -> HashKvResponse {
        let ask = async |revision| {
            let request = request_as(HashKvRequest { revision }, token);
            self.maintenance.clone().hash_kv(request).await.unwrap().into_inner()
        };
        let hash = ask(0).await;
        let newest = hash.header.unwrap().revision;
        if hash.hash_revision == newest {
            return hash;
        }
        let hash = ask(newest).await;
        assert_eq!(hash.hash_revision, newest);
        hash
    }

    /// Opens a watch call. There is no response before there is a request.
    pub fn open_watch(&self) -> WatchStream {
        let (requests, receiver) = tokio::sync::mpsc::unbounded_channel();
        let (sender, responses) = tokio::sync::mpsc::channel(64);
        let paused = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let pausing = std::sync::Arc::clone(&paused);
        let mut watch = self.watch.clone();
        let reading = tokio::spawn(async move {
            let requests = tokio_stream::wrappers::UnboundedReceiverStream::new(receiver);
            let mut stream = match watch.watch(requests).await {
                Ok(response) => response.into_inner(),
                Err(status) => return drop(sender.send(Err(status)).await),
            };
            loop {
                while pausing.load(std::sync::atomic::Ordering::Relaxed) {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                let (message, is_over) = match stream.message().await {
                    Ok(Some(response)) => (Ok(response), false),
                    Ok(None) => return,
                    Err(status) => (Err(status), true),
                };
                if sender.send(message).await.is_err() || is_over {
                    return;
                }
            }
        });
        WatchStream { requests, responses, paused, reading }
    }

    /// Calls any method with any bytes.
    pub async fn raw(
        &self,
        path: &'static str,
        request: impl tonic::IntoRequest<Bytes>,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        grpc.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
        let request: Request<Bytes> = request.into_request();
        grpc.unary(request, http::uri::PathAndQuery::from_static(path), RawCodec).await
    }
}
