//! `revd inspect`: what a member's files hold, as text or as one JSON object per line.

use std::io::Write;

use revd_engine::mvcc::revision::RecordKind;
use revd_engine::mvcc::{Revision, Store, StoredRecord};
use revd_member::apply::command;
use revd_member::cluster::version::ClusterVersion;
use revd_member::schema;
use revd_member::wal::LogEntry;
use revd_member::wal::reader::RecoveredLog;
use serde_json::{Value, json};

use crate::cli::stopped_member::StoppedMember;

/// The parts that `inspect` shows besides the summary, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InspectOptions {
    pub(super) records: bool,
    pub(super) log: bool,
    pub(super) json: bool,
}

pub(super) fn run(member: &StoppedMember, shown: InspectOptions, out: &mut impl Write) -> anyhow::Result<()> {
    let mut show = |line: Value| {
        let text = if shown.json { line.to_string() } else { as_text(&line) };
        writeln!(out, "{text}")
    };
    let store = member.open_store()?;
    show(tree(&store))?;
    for row in schema::members(store.tables()) {
        show(json!({
            "what": "member", "id": format!("{:x}", row.id), "name": row.name,
            "peer-urls": row.peer_ur_ls, "client-urls": row.client_ur_ls,
        }))?;
    }
    for alarm in schema::alarms(store.tables()) {
        show(json!({"what": "alarm", "member": format!("{:x}", alarm.member_id), "alarm": alarm.alarm}))?;
    }
    if shown.records {
        let mut failure = Ok(());
        store.reader().each_record_after(Revision::default(), |key, bytes| {
            failure = show(record(key.revision, key.kind, bytes));
            Ok(failure.is_ok())
        })?;
        failure?;
    }
    // Only what is shown is read into memory.
    let log = member.read_log(if shown.log { 0 } else { store.applied().index })?;
    show(log_summary(&log))?;
    if shown.log {
        for entry in &log.entries {
            show(log_entry(entry))?;
        }
    }
    out.flush()?;
    Ok(())
}

fn tree(store: &Store) -> Value {
    let (sizes, versions) = (store.sizes(), schema::versions(store.tables()));
    json!({
        "what": "tree file", "bytes": sizes.file, "bytes-in-use": sizes.in_use, "revision": store.revision(),
        "compact-revision": store.reader().compact_revision(), "applied-index": store.applied().index,
        "applied-term": store.applied().term, "cluster-version": versions.cluster.map(ClusterVersion::with_patch),
        "downgrade-target": versions.downgrade.map(ClusterVersion::with_patch),
    })
}

fn record(revision: Revision, kind: RecordKind, bytes: &[u8]) -> Value {
    let Some(record) = StoredRecord::parse(bytes) else {
        return json!({"what": "record", "revision": [revision.main, revision.sub], "unreadable-bytes": bytes.len()});
    };
    let mut line = json!({
        "what": if kind == RecordKind::Put { "put" } else { "delete" },
        "revision": [revision.main, revision.sub], "key": escaped(record.key),
    });
    if kind == RecordKind::Put {
        line["value"] = escaped(record.value).into();
        line["create-revision"] = record.stamp.create_revision.into();
        line["version"] = record.stamp.version.into();
        line["lease"] = record.stamp.lease.into();
    }
    line
}

fn log_summary(log: &RecoveredLog) -> Value {
    json!({
        "what": "log", "cluster": format!("{:x}", log.owner.cluster), "member": format!("{:x}", log.owner.member),
        "term": log.hard_state.term, "vote": format!("{:x}", log.hard_state.vote), "commit": log.hard_state.commit,
        "segments": log.segments.iter().map(|segment| segment.number).collect::<Vec<_>>(),
        "first-entry": log.oldest().0 + 1, "last-entry": log.last(),
    })
}

fn log_entry(entry: &LogEntry) -> Value {
    let mut line = json!({"what": "entry", "index": entry.index, "term": entry.term});
    if entry.kind != 0 {
        line["configuration-change-bytes"] = entry.data.len().into();
    } else if !entry.data.is_empty() {
        match command::decode(entry.data.clone()) {
            Ok(batch) => {
                let commands = batch.commands.iter();
                let shown =
                    commands.map(|command| format!("{:?} {} bytes", command.kind, command.payload.len()));
                line["commands"] = shown.collect::<Vec<_>>().into();
            }
            Err(error) => line["unreadable"] = error.to_string().into(),
        }
    }
    line
}

/// Printable bytes as they are, others as `\xNN`.
fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

fn as_text(line: &Value) -> String {
    let fields = line.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| *name != "what").map(|(name, value)| match value {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    format!("{}: {}", line["what"].as_str().unwrap_or_default(), fields.collect::<Vec<_>>().join(", "))
}
