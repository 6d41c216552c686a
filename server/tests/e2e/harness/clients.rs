//! gRPC clients made from the wire contract, and one that sends and receives bytes as they are.

use bytes::Bytes;
use revd_proto::etcdserverpb::cluster_client::ClusterClient;
use revd_proto::etcdserverpb::kv_client::KvClient;
use revd_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use revd_proto::raw::RawCodec;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// All services over one connection.
#[derive(Clone)]
pub struct Client {
    pub channel: Channel,
    pub kv: KvClient<Channel>,
    pub maintenance: MaintenanceClient<Channel>,
    pub cluster: ClusterClient<Channel>,
}

/// Connects; there must be a server.
pub async fn connect(endpoint: &str) -> Client {
    let channel = Endpoint::from_shared(endpoint.to_owned()).unwrap().connect().await.unwrap();
    Client {
        kv: KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
        maintenance: MaintenanceClient::new(channel.clone()),
        cluster: ClusterClient::new(channel.clone()),
        channel,
    }
}

impl Client {
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
