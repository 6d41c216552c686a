//! How the log of a new member begins.

use std::collections::VecDeque;

use revd_engine::mvcc::Applied;

use crate::cluster::Identity;
use crate::wal::HardState;
use crate::wal::places::Places;
use crate::wal::reader::{LogEnd, RecoveredLog};

/// The first entry of every log: the member exists. It is in the tree file before there is a log.
pub const BIRTH: Applied = Applied { index: 1, term: 1 };

/// The log of a new member of a new cluster, behind [`BIRTH`].
#[must_use]
pub fn empty_log(owner: Identity) -> RecoveredLog {
    log_behind(owner, BIRTH)
}

/// The log of a new member of a cluster that there is already: the others send it the state, and
/// the log begins again behind that.
#[must_use]
pub fn joining_log(owner: Identity) -> RecoveredLog {
    log_behind(owner, Applied { index: 0, term: 0 })
}

fn log_behind(owner: Identity, applied: Applied) -> RecoveredLog {
    RecoveredLog {
        owner,
        hard_state: HardState { term: applied.term, vote: 0, commit: applied.index },
        base: (applied.index, applied.term),
        entries: VecDeque::new(),
        older: None,
        places: Places::default(),
        segments: VecDeque::new(),
        // Frame numbers go on across segments; the first segment begins with frame 1.
        end: LogEnd { segment: 0, life: 0, offset: 0, frame: 1 },
    }
}
