//! How large figures are measured.

/// How large they are.
#[derive(Debug, Clone, Copy)]
pub struct FigureSizes {
    /// Rounds of each row.
    pub rounds: usize,
    /// Calls of h2load for each round.
    pub calls: u64,
    /// Keys; none: a million, for growth ten.
    pub keys: Option<u64>,
    /// Revisions to compact.
    pub revisions: u64,
    /// Leases that are due at once.
    pub leases: usize,
    /// Kills of the leader.
    pub kills: usize,
    /// Revisions that a member which was away has to catch up with.
    pub away: u64,
}

impl FigureSizes {
    pub(super) fn keys(&self, usual: u64) -> u64 {
        self.keys.unwrap_or(usual).max(1)
    }
}
