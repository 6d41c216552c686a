//! Callers that wait until another member leads.

use crate::apply::command::CommandId;
use crate::error::Error;

/// Log core view.
#[derive(Debug, Default)]
pub(super) struct LeaderMoves {
    waiting: Vec<LeaderMove>,
}

#[derive(Debug)]
struct LeaderMove {
    caller: CommandId,
    to: u64,
    /// The tick at which it is given up.
    until: u64,
}

impl LeaderMoves {
    pub(super) fn wait(&mut self, caller: CommandId, to: u64, until: u64) {
        self.waiting.push(LeaderMove { caller, to, until });
    }

    /// The callers whose wait is over.
    pub(super) fn over(&mut self, leader: u64, now: u64) -> Vec<(CommandId, Result<(), Error>)> {
        let over = self.waiting.extract_if(.., |wait| wait.to == leader || wait.until <= now);
        over.map(|wait| {
            (wait.caller, if wait.to == leader { Ok(()) } else { Err(Error::LeaderTransferTimeout) })
        })
        .collect()
    }
}
