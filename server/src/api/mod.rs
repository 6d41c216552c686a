//! The API for clients: checks a request, then answers it from a View or hands it to the log.
//!
//! One table names every method (`method.rs`), one file holds a service, and all services of an
//! edge share one [`ServiceContext`]. A service sees the bytes of a message and returns bytes; the
//! transport (`net`) knows neither requests nor replies.

mod metrics;

pub mod method;
mod method_words;
mod named_method;

pub mod auth;
mod cluster;
mod election;
mod gets;
mod health;
mod kv;
mod lease;
mod lease_keys;
mod lock;
mod maintenance;
mod reflection;
mod watch;

mod key_queue;
mod txn;

mod propose;
mod quota;

mod context;

mod refused;

pub mod call;
mod contract;
pub mod header;
mod long_calls;
pub mod replies;
pub mod validate;

use std::rc::Rc;
use std::sync::Arc;

use revd_member::error::Error;
use revd_member::watch::HubLimits;

use crate::api::auth::Auth;
use crate::api::cluster::Cluster;
pub use crate::api::context::{ApiSeed, Budgets, MemberRules, NodeReport, ServiceContext};
use crate::api::election::Election;
use crate::api::key_queue::KeyQueue;
use crate::api::kv::Kv;
use crate::api::lease::Lease;
pub use crate::api::lease::More;
use crate::api::lock::Lock;
pub use crate::api::long_calls::may_be_long;
use crate::api::maintenance::Maintenance;
pub use crate::api::maintenance::hashed;
use crate::api::watch::Watch;
use crate::edge::pending::Proposals;
use crate::edge::watchers::Watchers;
use crate::limits;
use crate::observe::bounds::Bound;
use crate::observe::turns::Turns;

/// Edge view: the services of one edge core. Health and reflection have no state.
#[derive(Debug)]
pub struct Api {
    context: Rc<ServiceContext>,
    watchers: Rc<Watchers>,
    kv: Kv,
    watch: Watch,
    lease: Lease,
    lock: Lock,
    election: Election,
    auth: Auth,
    cluster: Cluster,
    maintenance: Maintenance,
}

impl Api {
    /// The services of an edge that proposes through `proposals`.
    #[must_use]
    pub fn new(seed: ApiSeed, proposals: Rc<Proposals>) -> Rc<Self> {
        let fragment_bytes = seed.limits.request_bytes_max.saturating_add(limits::GRPC_OVERHEAD_BYTES);
        let hub_limits = HubLimits { fragment_bytes, step_work: limits::WATCH_STEP_WORK };
        let (views, counters) = (Arc::clone(&seed.views), Arc::clone(&seed.counters));
        let watchers = Watchers::new(proposals.edge(), views, counters, Arc::clone(&seed.status), hub_limits);
        let (lease_seed, lease_ttl_min) = (seed.lease_seed, seed.lease_ttl_min);
        let context = Rc::new(ServiceContext::new(seed, proposals));
        let kv = Kv::new(&context);
        let lease = Lease::new(&context, lease_seed, lease_ttl_min);
        let queue = KeyQueue::new(&context, &kv, &lease, &watchers);
        Rc::new(Self {
            watch: Watch::new(&context, &watchers),
            lock: Lock::new(queue.clone()),
            election: Election::new(queue),
            auth: Auth::new(&context),
            cluster: Cluster::new(&context),
            maintenance: Maintenance::new(&context),
            context,
            watchers,
            kv,
            lease,
        })
    }

    /// The context that its services share.
    #[must_use]
    pub fn context(&self) -> &Rc<ServiceContext> {
        &self.context
    }

    /// The KV service, for what the member does by itself.
    #[must_use]
    pub fn kv(&self) -> &Kv {
        &self.kv
    }

    /// The Lease service, for what the member does by itself.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The watchers of this edge.
    #[must_use]
    pub fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    /// Ends calls that would go on for ever, and logins that wait behind others.
    pub fn stop(&self) {
        self.context.stop();
    }

    /// The memory of this core's connections.
    #[must_use]
    pub fn budgets(&self) -> &Budgets {
        self.context.budgets()
    }

    /// A bound was reached.
    pub fn reached(&self, bound: Bound) {
        self.context.reached(bound);
    }

    /// Numbers for operators, as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.context.metrics()
    }

    /// For the plain HTTP end points.
    #[must_use]
    pub fn report(&self) -> NodeReport {
        self.context.report()
    }

    /// Waits as a linearizable read does, for whatever this member is.
    ///
    /// # Errors
    /// The error that a client would get.
    pub async fn wait_to_read(&self) -> Result<(), Error> {
        self.context.wait_to_read(false).await
    }

    /// How long this edge's turns take.
    #[must_use]
    pub fn turns(&self) -> &Turns {
        self.context.turns()
    }
}
