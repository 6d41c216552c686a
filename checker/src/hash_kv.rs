//! `HashKV` of the model: CRC-32C over `key` and every record up to a revision, as etcd stores it.

use std::collections::BTreeMap;

use prost::Message as _;
use revd_proto::mvccpb::KeyValue;

use crate::fault::{Check, Fault};
use crate::history::{History, Response};
use crate::model::{Model, Version};
use crate::replay::Truth;

/// The hash up to a revision on a member that has compacted up to another one.
#[must_use]
pub fn hash_kv(model: &Model, revision: i64, compacted: i64) -> u32 {
    let alive_at = |versions: &[Version], at: i64| {
        let later = versions.partition_point(|version| version.main <= at);
        versions[..later].last().is_some_and(|version| version.kv.is_some())
    };
    let any_is_alive = model.versions().any(|(_, versions)| alive_at(versions, revision));
    // With nothing alive, etcd counts all that a compaction leaves.
    let kept_at = if any_is_alive { revision } else { compacted };
    let mut records = BTreeMap::new();
    for (key, versions) in model.versions() {
        let newest = versions.partition_point(|version| version.main <= kept_at).checked_sub(1);
        for (number, version) in versions.iter().enumerate() {
            let is_kept = version.main > compacted || (Some(number) == newest && version.kv.is_some());
            if version.main <= revision && is_kept {
                records.insert((version.main, version.sub), (key, version.kv.as_ref()));
            }
        }
    }
    let mut hash = crc32c::crc32c(b"key");
    for ((main, sub), (key, kv)) in records {
        let mut bytes = main.to_be_bytes().to_vec();
        bytes.push(b'_');
        bytes.extend(sub.to_be_bytes());
        if let Some(kv) = kv {
            bytes.extend(kv.encode_to_vec());
        } else {
            bytes.push(b't');
            let tombstone = KeyValue { key: key.to_vec().into(), ..KeyValue::default() };
            bytes.extend(tombstone.encode_to_vec());
        }
        hash = crc32c::crc32c_append(hash, &bytes);
    }
    hash
}

/// Every answer is the hash of what the replay has.
#[must_use]
pub(crate) fn check(history: &History, truth: &Truth) -> Vec<Fault> {
    let mut known: BTreeMap<(i64, i64), u32> = BTreeMap::new();
    let mut faults = Vec::new();
    if truth.model.first() > 1 || truth.has_gaps {
        return faults; // there are records that nobody knows
    }
    for call in &history.calls {
        let Some(Response::HashKv(response)) = call.answer() else { continue };
        let at = (response.hash_revision, response.compact_revision);
        if at.0 > truth.model.revision() {
            continue; // the replay says what is missing
        }
        let hash = *known.entry(at).or_insert_with(|| hash_kv(&truth.model, at.0, at.1));
        if hash != response.hash {
            faults.push(Fault::new(Check::HashKv, format!("the hash should be {hash}: {call:?}")));
        }
    }
    faults
}
