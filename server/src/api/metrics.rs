//! Metrics of this member as Prometheus reads them, under etcd's names where the number is etcd's.
//!
//! Everything is read from what cores publish anyway: a scrape asks no other core, and costs this
//! one the text.

use revd_engine::mvcc::{KeyRange, View};
use revd_member::schema;
use revd_proto::etcdserverpb::AlarmType;

use crate::api::context::ServiceContext;
use crate::api::method::METHODS;
use crate::api::named_method::NamedMethod;
use crate::observe::calls::CODES;
use crate::observe::exposition::{Exposition, Kind};
use crate::version;

impl ServiceContext {
    /// All metrics, as text.
    #[must_use]
    pub fn metrics(&self) -> String {
        let (mut to, view) = (Exposition::default(), self.views.load());
        self.of_raft(&mut to, &view);
        self.of_member(&mut to, &view);
        of_store(&mut to, &view);
        self.counters.write(&mut to);
        self.of_calls(&mut to);
        self.counters.process.write(&mut to);
        to.into_text()
    }

    fn of_raft(&self, to: &mut Exposition, view: &View) {
        let leader = self.leader();
        let mut gauge = |name, help, value: u64| to.one(name, Kind::Gauge, help, value);
        gauge("etcd_server_has_leader", "1 while this member knows a leader.", u64::from(leader != 0));
        gauge("etcd_server_is_leader", "1 while this member leads.", u64::from(self.leads()));
        let is_learner = u64::from(self.status.is_learner.load());
        gauge("etcd_server_is_learner", "1 while this member has no vote.", is_learner);
        let committed = self.status.committed.load();
        gauge("etcd_server_proposals_committed_total", "Index of the last committed entry.", committed);
        let help = "Index of the last entry in the state that is served.";
        gauge("etcd_server_proposals_applied_total", help, view.applied().index);
        let pending = self.counters.proposals().map(|edge| edge.pending.get()).sum();
        gauge(
            "etcd_server_proposals_pending",
            "Commands of callers of this member without an outcome.",
            pending,
        );
        let failed: u64 = self.counters.proposals().map(|edge| edge.failed.get()).sum();
        let help = "Commands of callers of this member that came to nothing, as far as it knows.";
        to.one("etcd_server_proposals_failed_total", Kind::Counter, help, failed);
        let help = "How often a leader was found.";
        let changes = self.status.leader_changes.load();
        to.one("etcd_server_leader_changes_seen_total", Kind::Counter, help, changes);
    }

    fn of_member(&self, to: &mut Exposition, view: &View) {
        let help = "Bytes of data at which the store takes no more of it; below zero without a bound.";
        to.one("etcd_server_quota_backend_bytes", Kind::Gauge, help, self.quota_bytes);
        let id = format!("{:x}", self.identity.member);
        let mut named = |name, help: &str, label, value: &str| {
            to.family(name, Kind::Gauge, help).sample("", &[(label, value)], 1);
        };
        named("etcd_server_id", "The id of this member.", "server_id", &id);
        named("etcd_server_version", "The etcd that this member is like.", "server_version", version::ETCD);
        named("revd_build_info", "The version of revd.", "version", version::REVD);
        if let Some(cluster) = schema::versions(view.tables()).cluster {
            let help = "The version that the members have agreed upon.";
            named("etcd_cluster_version", help, "cluster_version", &cluster.to_string());
        }
        let mut alarms = schema::alarms(view.tables()).peekable();
        if alarms.peek().is_some() {
            let mut family = to.family("etcd_debugging_server_alarms", Kind::Gauge, "Alarms, of any member.");
            for alarm in alarms {
                let kind = AlarmType::try_from(alarm.alarm).map_or("UNKNOWN", |kind| kind.as_str_name());
                let member = format!("{:x}", alarm.member_id);
                family.sample("", &[("server_id", &member), ("alarm_type", kind)], 1);
            }
        }
        let help = "How often users, roles or whether they count have changed.";
        let revision = schema::auth_state(view.tables()).revision;
        to.one("etcd_debugging_auth_revision", Kind::Gauge, help, revision);
        to.one("revd_leases", Kind::Gauge, "Leases that live.", self.status.leases.load());
    }

    fn of_calls(&self, to: &mut Exposition) {
        let label = |method: &NamedMethod| {
            [("grpc_type", method.kind), ("grpc_service", method.service), ("grpc_method", method.name)]
        };
        let help = "Calls that were begun.";
        let mut started = to.family("grpc_server_started_total", Kind::Counter, help);
        for (number, method) in METHODS.iter().enumerate() {
            let calls = self.counters.calls().map(|edge| edge.method(number).started.get());
            started.sample("", &label(method), calls.sum::<u64>());
        }
        let help = "Calls that have ended, by how they ended.";
        let mut handled = to.family("grpc_server_handled_total", Kind::Counter, help);
        for (number, method) in METHODS.iter().enumerate() {
            let [kind, service, name] = label(method);
            for (code, code_name) in CODES.iter().enumerate() {
                let calls: u64 =
                    self.counters.calls().map(|edge| edge.method(number).ended[code].get()).sum();
                if calls > 0 {
                    handled.sample("", &[kind, service, name, ("grpc_code", code_name)], calls);
                }
            }
        }
    }
}

fn of_store(to: &mut Exposition, view: &View) {
    let sizes = view.sizes();
    let mut gauge = |name, help: &str, value: i128| to.one(name, Kind::Gauge, help, value);
    let help = "Bytes of the store's file, as of the newest checkpoint.";
    gauge("etcd_mvcc_db_total_size_in_bytes", help, sizes.file.into());
    let help = "Bytes of them that hold data.";
    gauge("etcd_mvcc_db_total_size_in_use_in_bytes", help, sizes.in_use.into());
    let help = "The newest revision.";
    gauge("etcd_debugging_mvcc_current_revision", help, view.revision().into());
    let help = "The revision of the last compaction, -1 before the first one.";
    gauge("etcd_debugging_mvcc_compact_revision", help, view.compact_revision().into());
    let keys = view.reader().count(KeyRange::ALL, i64::MAX);
    gauge("etcd_debugging_mvcc_keys_total", "Keys that exist.", keys.into());
}
