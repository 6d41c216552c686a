//! Versions: the leader looks which version each member has, and decides that of the cluster; a
//! downgrade is over when all members run the older program. Each member logs what was decided.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use revd_member::apply::command::Kind;
use revd_member::cluster::version::{AgreedVersions, ClusterVersion, Versions};
use revd_member::error::Error;
use serde_json::json;

use crate::api::Api;
use crate::duties::pace::rest;
use crate::limits;
use crate::observe::log;
use crate::version;

/// Runs until it is cancelled; the end of a downgrade is looked for at this interval, or never.
pub async fn run(api: Rc<Api>, downgrade_interval: Duration) {
    let mut told = AgreedVersions::default();
    let mut since = Duration::ZERO;
    loop {
        let agreed = api.context().versions();
        if agreed != told {
            tell(told, agreed);
            told = agreed;
        }
        look(&api).await;
        if !downgrade_interval.is_zero() && since >= downgrade_interval {
            since = Duration::ZERO;
            end_downgrade(&api).await;
        }
        rest(limits::VERSIONS_INTERVAL).await;
        since += limits::VERSIONS_INTERVAL;
    }
}

/// A leader decides about the version of the cluster.
pub async fn look(api: &Api) {
    let Some(versions) = of_members(api).await else { return };
    let Some(next) = versions.decide() else { return };
    match versions.agreed.cluster {
        None => {
            log::info("setting up initial cluster version", json!({"cluster-version": next.to_string()}));
        }
        Some(from) => {
            log::info("updating cluster version", json!({"from": from.to_string(), "to": next.to_string()}));
        }
    }
    if let Err(error) = api.context().propose_patiently(Kind::ClusterVersion, next.with_patch().into()).await
    {
        // It is decided anew at the next look.
        log::warn("failed to update cluster version", json!({"error": error.to_string()}));
    }
}

async fn end_downgrade(api: &Api) {
    if api.context().versions().downgrade.is_none() {
        return;
    }
    let Some(versions) = of_members(api).await.filter(Versions::is_down) else { return };
    let version = versions.agreed.downgrade.map(ClusterVersion::with_patch);
    log::info("the cluster has been downgraded", json!({"cluster-version": version}));
    if let Err(error) = api.context().propose_patiently(Kind::Downgrade, Bytes::new()).await {
        log::warn("failed to cancel downgrade", json!({"error": error.to_string()}));
    }
}

/// The versions of all members, as a leader knows them.
async fn of_members(api: &Api) -> Option<Versions> {
    if !api.context().leads() {
        return None;
    }
    match api.context().versions_of_members(ClusterVersion::of_release(version::ETCD)).await {
        Ok(versions) => Some(versions),
        Err(Error::Stopped) => None,
        Err(error) => {
            log::warn("failed to get the versions of members", json!({"error": error.to_string()}));
            None
        }
    }
}

/// Tells of a change, in etcd's words.
fn tell(before: AgreedVersions, now: AgreedVersions) {
    let shown = |version: ClusterVersion| version.to_string();
    match (before.cluster, now.cluster) {
        (None, Some(to)) => log::info("set initial cluster version", json!({"cluster-version": shown(to)})),
        (Some(from), Some(to)) if from != to => {
            log::info("updated cluster version", json!({"from": shown(from), "to": shown(to)}));
        }
        _ => {}
    }
    let Some(target) = now.downgrade.filter(|target| now.cluster == Some(*target)) else { return };
    let fields = json!({"target-version": target.with_patch(), "server-version": version::ETCD});
    log::info("The server is ready to downgrade", fields);
}
