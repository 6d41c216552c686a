//! Typed gRPC clients of etcd's services, generic over any tonic channel. Tests and benchmarks use
//! them; the server, which has its own transport, does not.

mod generated;
pub mod raw;

pub use generated::etcdserverpb::auth_client::AuthClient;
pub use generated::etcdserverpb::cluster_client::ClusterClient;
pub use generated::etcdserverpb::kv_client::KvClient;
pub use generated::etcdserverpb::lease_client::LeaseClient;
pub use generated::etcdserverpb::maintenance_client::MaintenanceClient;
pub use generated::etcdserverpb::watch_client::WatchClient;
pub use generated::grpc_health::health_client::HealthClient;
pub use generated::grpc_reflection::server_reflection_client::ServerReflectionClient;
pub use generated::v3electionpb::election_client::ElectionClient;
pub use generated::v3lockpb::lock_client::LockClient;
