//! `revd check`: every page reachable or free and never both, every checksum right, index and
//! records the same, no revision missing, the log whole, and log and tree file of one member and
//! without a gap between them.

use std::io::Write;

use anyhow::{Context as _, bail};
use revd_engine::check::check;
use revd_engine::mvcc::verify::verify;
use revd_member::schema;

use crate::cli::stopped_member::StoppedMember;

pub(super) fn run(member: &StoppedMember, out: &mut impl Write) -> anyhow::Result<()> {
    let store = member.open_store()?;
    let tree = member.tree();
    let context = || format!("checking {}", tree.display());
    let pages = check(store.db().expect("no checkpoint is being written")).with_context(context)?;
    writeln!(
        out,
        "pages: {} in use, {} free, every one once; {} rows; checksums right",
        pages.reachable, pages.unused, pages.keys
    )?;
    let summary = verify(&store).with_context(context)?;
    writeln!(
        out,
        "records: {} of {} keys ({} live), up to revision {}, compacted at {}; each that the index names is there",
        summary.records,
        summary.keys,
        summary.live_keys,
        store.revision(),
        store.reader().compact_revision()
    )?;
    let applied = store.applied().index;
    let log = member.read_log(applied)?;
    let (base, last) = (log.oldest().0, log.last());
    writeln!(out, "log: {} segments, entries {} to {last}, checksums right", log.segments.len(), base + 1)?;
    if applied < base || applied > last {
        bail!(
            "the tree file holds entries up to {applied}, the log those from {} to {last}: one of them is from another time",
            base + 1
        );
    }
    if schema::member(store.tables(), log.owner.member).is_none() {
        bail!("the log belongs to member {:x}, which the tree file does not know", log.owner.member);
    }
    writeln!(
        out,
        "member {:x}: {} entries of the log are to be applied at the next start",
        log.owner.member,
        last - applied
    )?;
    writeln!(out, "all is well")?;
    out.flush()?;
    Ok(())
}
