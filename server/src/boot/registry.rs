//! A discovery service, asked at a first start (`--discovery-endpoints`): calls of etcd's API, one
//! endpoint after the other. The meaning of its rows is in `revd_member::cluster::registry`.

use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use revd_member::cluster::registry::{Progress, RegistryEffects, Row};
use revd_proto::etcdserverpb::{
    AuthenticateRequest, AuthenticateResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
};
use serde_json::json;

use crate::boot::grpc_call::GrpcCall;
use crate::config::{DiscoveryService, ServiceEndpoint};
use crate::limits;
use crate::net::tls::TlsDomain;
use crate::observe::log;

const RANGE: &str = "/etcdserverpb.KV/Range";
const PUT: &str = "/etcdserverpb.KV/Put";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// A service says so when authentication is not enabled.
const NO_USERS: &str = "authentication is not enabled";

/// The service as this member asks it.
pub(super) struct Registry<'c> {
    service: &'c DiscoveryService,
    tls: Arc<TlsDomain>,
    /// The endpoint that is asked first: the last one that has answered.
    endpoint: usize,
    /// Said with each call, where a user is named.
    token: Option<String>,
    /// How many members are there, and when that was said.
    waiting: Option<(Progress<'static>, Instant)>,
}

impl<'c> Registry<'c> {
    /// Reads the files of TLS, if one is named or needed.
    ///
    /// # Errors
    /// The mistake in them, for the operator.
    pub(super) fn new(service: &'c DiscoveryService) -> anyhow::Result<Self> {
        let tls = TlsDomain::open("discovery", service.tls.clone())?;
        if !service.tls.trusted_ca_file.is_empty() || service.endpoints.iter().any(|it| it.is_secure) {
            tls.load()?;
        }
        Ok(Self { service, tls, endpoint: 0, token: None, waiting: None })
    }

    /// The answer of the first endpoint that gives one.
    fn call<A: Message + Default>(&mut self, path: &str, request: &impl Message) -> Result<A, String> {
        let mut problems = Vec::new();
        let endpoints = &self.service.endpoints;
        for _ in endpoints {
            let endpoint = &endpoints[self.endpoint];
            match self.call_at(endpoint, path, &request.encode_to_vec()) {
                Ok(answer) => return Ok(answer),
                Err(problem) => problems.push(format!("{}: {problem}", endpoint.host)),
            }
            self.endpoint = (self.endpoint + 1) % endpoints.len();
            // It may be too old, or of another cluster.
            self.token = None;
        }
        Err(problems.join("; "))
    }

    fn call_at<A: Message + Default>(
        &mut self,
        endpoint: &ServiceEndpoint,
        path: &str,
        request: &[u8],
    ) -> Result<A, String> {
        let DiscoveryService { dial_timeout, request_timeout, credentials, .. } = self.service;
        let tls = Arc::clone(&self.tls);
        let tls = endpoint.is_secure.then_some(&*tls);
        let make = |path, token, message: &[u8]| {
            GrpcCall { host: &endpoint.host, tls, path, token, message }
                .make(*dial_timeout, *request_timeout)
                .map_err(|error| error.to_string())
        };
        if let (Some((name, password)), None) = (credentials, &self.token) {
            let password = String::from_utf8_lossy(password.expose()).into_owned();
            let user = AuthenticateRequest { name: name.clone(), password };
            self.token = match make(AUTHENTICATE, None, &user.encode_to_vec()) {
                Ok(answer) => Some(decoded::<AuthenticateResponse>(&answer)?.token),
                // As etcd's client: the service knows no users, and wants none.
                Err(problem) if problem.contains(NO_USERS) => None,
                Err(problem) => return Err(problem),
            };
        }
        decoded(&make(path, self.token.as_deref(), request)?)
    }

    fn range(&mut self, key: &str, range_end: Vec<u8>) -> Result<Vec<Row>, String> {
        let request = RangeRequest {
            key: key.as_bytes().to_vec().into(),
            range_end: range_end.into(),
            ..RangeRequest::default()
        };
        let answer: RangeResponse = self.call(RANGE, &request)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let rows = answer.kvs.iter();
        Ok(rows
            .map(|kv| Row { key: text(&kv.key), value: text(&kv.value), created: kv.create_revision })
            .collect())
    }
}

fn decoded<A: Message + Default>(answer: &[u8]) -> Result<A, String> {
    A::decode(answer).map_err(|error| format!("an answer that cannot be read: {error}"))
}

impl RegistryEffects for Registry<'_> {
    fn row(&mut self, key: &str) -> Result<Option<Row>, String> {
        Ok(self.range(key, Vec::new())?.pop())
    }

    fn rows(&mut self, prefix: &str) -> Result<Vec<Row>, String> {
        // The prefix ends with a letter: the next one ends the range.
        let mut end = prefix.as_bytes().to_vec();
        end.last_mut().into_iter().for_each(|last| *last += 1);
        self.range(prefix, end)
    }

    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let (key, value) = (key.as_bytes().to_vec().into(), value.as_bytes().to_vec().into());
        self.call::<PutResponse>(PUT, &PutRequest { key, value, ..PutRequest::default() }).map(drop)
    }

    fn wait(&mut self, pause: std::time::Duration) {
        let started = crate::clock::now();
        while let left = pause.saturating_sub(crate::clock::since(started))
            && !left.is_zero()
        {
            std::thread::park_timeout(left);
        }
        if let Some((waiting, told)) = self.waiting
            && crate::clock::since(told) >= limits::REGISTRY_TELL_INTERVAL
        {
            self.tell(waiting);
        }
    }

    fn tell(&mut self, progress: Progress<'_>) {
        self.waiting = None;
        let of_row = |row: &Row| json!({"memberKey": row.key, "memberInfo": row.value});
        match progress {
            Progress::Retry { step, problem, pause } => {
                let why = json!({"reason": step, "error": problem, "backoff": format!("{pause:?}")});
                log::warn("retry connecting to discovery service", why);
            }
            Progress::Registered(row) => log::info("register member itself successfully", of_row(row)),
            Progress::Found(row) => log::info("found peer from discovery service", of_row(row)),
            Progress::PassedOver(row, problem) => log::warn(problem, of_row(row)),
            Progress::Waiting { found, size } => {
                self.waiting = Some((Progress::Waiting { found, size }, crate::clock::now()));
                let counts = json!({"clusterSize": size, "found-peers": found});
                log::info("waiting for peers from discovery service", counts);
            }
            Progress::Complete { size } => {
                let counts = json!({"clusterSize": size, "found-peers": size});
                log::info("found all needed peers from discovery service", counts);
            }
        }
    }
}
