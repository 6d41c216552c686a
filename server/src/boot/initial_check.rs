//! The feature InitialCorruptCheck: a member that was one before compares its keys with those of
//! the others before it serves, and does not start if they differ.

use anyhow::bail;
use revd_engine::mvcc::HashKv;
use revd_member::cluster::hash_checks::differs_at_start;
use revd_member::wal::birth::BIRTH;
use revd_proto::etcdserverpb::Member as MemberRow;
use serde_json::json;

use crate::boot::recover::Member;
use crate::config::Config;
use crate::net::tls::TlsDomain;
use crate::observe::log;
use crate::peer::ask;

/// Compares, if it is to.
///
/// # Errors
/// When another member has other keys, in etcd's words; when the own ones cannot be read.
pub(super) fn run(config: &Config, member: &mut Member, tls: &TlsDomain) -> anyhow::Result<()> {
    let own = member.identity;
    if !config.checks.at_start || member.machine.store().applied().index <= BIRTH.index {
        return Ok(()); // a new member has nothing to compare
    }
    let fields = || json!({"local-member-id": format!("{:x}", own.member)});
    log::info("starting initial corruption check", fields());
    let mut hashing = HashKv::new(member.machine.store_mut().view(), 0)?;
    let hashed = loop {
        if let Some(hashed) = hashing.step(usize::MAX)? {
            break hashed;
        }
    };
    let others = member.membership.members().filter(|other| other.id != own.member).cloned();
    let others: Vec<MemberRow> = others.collect();
    let hashes = ask::hashes(&others, own.cluster, hashed.revision, tls);
    if differs_at_start(hashed, &hashes) {
        bail!("{:x} found data inconsistency with peers", own.member);
    }
    log::info("initial corruption checking passed; no corruption", fields());
    Ok(())
}
