//! etcd's checks for corruption while a member leads: HashKV of all members is compared at a steady
//! pace (`--corrupt-check-time`), or that of compactions (the feature CompactHashCheck).
//! `revd_member::cluster::hash_checks` has the rules.

use std::rc::Rc;
use std::sync::Arc;

use revd_engine::mvcc::Hashed;
use revd_member::cluster::hash_checks::{self, MemberHash, NewestCompaction};
use revd_member::error::Error;
use revd_member::schema;
use revd_proto::etcdserverpb::Member;
use serde_json::json;

use crate::api::{self, Api};
use crate::config::CorruptionChecks;
use crate::duties::pace::rest;
use crate::net::tls::TlsDomain;
use crate::observe::log;
use crate::peer::ask;

/// Runs until it is cancelled: compares HashKV of everything.
pub async fn run(api: Rc<Api>, checks: CorruptionChecks, tls: Arc<TlsDomain>) {
    while !checks.interval.is_zero() {
        rest(checks.interval).await;
        if api.context().leads()
            && let Err(error) = check(&api, &tls).await
        {
            log::warn("failed to check hash KV", json!({"error": error.to_string()}));
        }
    }
}

async fn check(api: &Api, tls: &Arc<TlsDomain>) -> Result<(), Error> {
    let before = api::hashed(&api.context().view(), 0).await?;
    let others = of_others(api, before.revision, tls).await;
    let view = api.context().linearizable_view().await?;
    let after = api::hashed(&view, 0).await?;
    let own = api.context().identity().member;
    let found = hash_checks::periodic(own, (before, after), view.revision(), &others);
    if let Some(member) = found {
        log::warn("found hash mismatch", json!({"member-id": format!("{member:x}")}));
        api.context().raise_corrupt(member).await?;
    }
    log::info("finished peer corruption check", json!({"number-of-peers-checked": others.len()}));
    Ok(())
}

/// Runs until it is cancelled: compares HashKV of compactions.
pub async fn run_of_compactions(api: Rc<Api>, checks: CorruptionChecks, tls: Arc<TlsDomain>) {
    let Some(interval) = checks.compaction_interval else { return };
    let (mut checked, mut newest) = (0, NewestCompaction::default());
    loop {
        rest(interval).await;
        if api.context().leads() {
            check_compactions(&api, &mut checked, &tls).await;
            let view = api.context().view();
            let (revision, hashed) = (view.compact_revision(), view.compaction_hashes().next());
            if newest.lacks_hash(revision, hashed.map(|hashed| hashed.revision)) {
                let fields = json!({"compact-revision": revision});
                log::info("there is no hash of the newest compaction to compare", fields);
            }
        }
    }
}

/// The newest compaction that all members have is enough.
async fn check_compactions(api: &Api, checked: &mut i64, tls: &Arc<TlsDomain>) {
    let view = api.context().view();
    let (own, members) = (api.context().identity().member, schema::members(view.tables()).count());
    let unchecked: Vec<Hashed> =
        view.compaction_hashes().take_while(|hashed| hashed.revision > *checked).collect();
    for hashed in unchecked {
        let others = of_others(api, hashed.revision, tls).await;
        let result = hash_checks::of_compaction((own, hashed), members, &others);
        for member in &result.corrupt {
            let fields = json!({"member-id": format!("{member:x}"), "revision": hashed.revision});
            log::warn("Detected compaction hash mismatch", fields);
            if let Err(error) = api.context().raise_corrupt(*member).await {
                log::warn("the alarm is not raised", json!({"error": error.to_string()}));
                return; // the next check finds it again
            }
        }
        if result.is_over {
            *checked = hashed.revision;
            return;
        }
    }
}

/// HashKV of a revision of the other members that answer.
async fn of_others(api: &Api, revision: i64, tls: &Arc<TlsDomain>) -> Vec<MemberHash> {
    let own = api.context().identity();
    let view = api.context().view();
    let others: Vec<Member> =
        schema::members(view.tables()).filter(|member| member.id != own.member).collect();
    let tls = Arc::clone(tls);
    let asking = move || ask::hashes(&others, own.cluster, revision, &tls);
    glommio::executor().spawn_blocking(asking).await
}
